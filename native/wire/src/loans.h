#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "random.h"
#include "shared_memory.h"
#include "tensorwire/wire/message.h"

namespace tensorwire::wire {

// A payload that stays with its owner until the peer returns it. In a frame with kLent, the place
// of the payload in the owner's SharedMemory follows the metadata:
//
//   u64  number
//   u32  slot
//   u32  reserved        zero
//   u64  offset, u64 bytes      repeated; the frame's method is the number
//
// In a frame with kHeld, only its size follows:
//
//   u64  number
//   u64  bytes
//
// The peer then requests ranges of it (kFetchRange: u64 number, u64 offset, u64 bytes), each over
// another of its streams.
struct Loan {
  uint64_t number = 0;  // 0: no loan
  uint32_t slot = 0;
  struct Piece {
    const char* data;  // in the reader's mapping
    uint64_t bytes;
  };
  std::vector<Piece> pieces;
  uint64_t bytes = 0;

  // Cuts the description off the end of `metadata`. False if it is malformed, or describes memory
  // outside of the mapping.
  static bool Read(const ForeignMemory& memory, uint16_t pieces, std::string_view* metadata,
                   Loan* out);
  static bool ReadHeld(std::string_view* metadata, Loan* out);
};

// The payloads that a task holds for its peers. All of its connections look them up here.
// Thread-safe.
class HeldPayloads {
 public:
  struct Payload {
    std::vector<ConstBuffer> buffers;
    std::shared_ptr<const void> owner;
    uint64_t bytes = 0;
  };
  explicit HeldPayloads(RandomNumbers::Source source = RandomBytes) : random_(source) {}

  // The payload's number, which other clients cannot guess. 0 if the system has no random bytes;
  // then the payload is not held.
  uint64_t Add(const std::shared_ptr<const Payload>& payload);
  void Remove(uint64_t number);
  // Null if the payload has been returned.
  std::shared_ptr<const Payload> Find(uint64_t number);

 private:
  std::mutex mutex_;
  RandomNumbers random_;
  std::unordered_map<uint64_t, std::weak_ptr<const Payload>> held_;
};

// Adds bytes [offset, offset + bytes) of `payload` to `message`. False if the range is not within
// the payload.
bool AddRange(const std::shared_ptr<const HeldPayloads::Payload>& payload, uint64_t offset,
              uint64_t bytes, Message* message);

// The loans to one peer. Nothing is lent before the peer has said that it can read the memory, and
// nothing held before it has said that it fetches ranges. Thread-safe.
class Loans {
 public:
  // `memory` is null if nothing is shared.
  Loans(SharedMemory* memory, HeldPayloads* held) : memory_(memory), held_(held) {}
  ~Loans() { ReturnAll(); }

  // The peer can read our memory: from now on Lend may lend.
  void AllowLending() { may_lend_.store(true, std::memory_order_release); }
  // The peer can fetch payloads: from now on Hold holds those of `least_bytes` and more.
  void AllowHolding(uint64_t least_bytes) {
    least_held_bytes_.store(least_bytes, std::memory_order_release);
  }

  // Replaces the message's payload by its description and returns the number of pieces, for the
  // frame's method. Returns zero if the payload has to be sent: it is small, or not in shared
  // memory, or the peer has not returned many bytes.
  uint16_t Lend(Message* message) {
    return may_lend_.load(std::memory_order_acquire) ? LendFromMemory(message) : 0;
  }
  // Replaces the payload by a description for fetching. False if sending it is better.
  bool Hold(Message* message);
  void Return(uint64_t number);
  // The peer is gone. If it is still reading a loan, it will find that the loan has ended.
  void ReturnAll();

 private:
  struct Lent {
    bool in_memory = false;
    uint32_t slot = 0;  // in_memory only
    uint64_t bytes = 0;
    std::shared_ptr<const void> owner;
  };
  uint16_t LendFromMemory(Message* message);
  void End(uint64_t number, const Lent& lent);

  SharedMemory* const memory_;
  HeldPayloads* const held_;
  std::atomic<bool> may_lend_{false};
  std::atomic<uint64_t> least_held_bytes_{UINT64_MAX};
  std::mutex mutex_;
  uint64_t bytes_ = 0;
  std::unordered_map<uint64_t, Lent> lent_;
};

}  // namespace tensorwire::wire
