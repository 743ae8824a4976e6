#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shared_memory.h"
#include "tensorwire/wire/message.h"

namespace tensorwire::wire {

// A payload that stays in its owner's SharedMemory, as a frame with kLent describes it: behind the
// metadata
//
//   u64  number
//   u32  slot
//   u32  reserved        zero
//   u64  offset, u64 bytes      as often as the frame's method says
struct Loan {
  uint64_t number = 0;  // 0: there is none
  uint32_t slot = 0;
  struct Piece {
    const char* data;  // in the reader's mapping
    uint64_t bytes;
  };
  std::vector<Piece> pieces;
  uint64_t bytes = 0;

  // Cuts the description off `metadata`. False when it is none, or of memory that is not there.
  static bool Read(const ForeignMemory& memory, uint16_t pieces, std::string_view* metadata,
                   Loan* out);
};

// What has been lent to one peer. Thread-safe.
class Loans {
 public:
  // Null: nothing is ever lent.
  explicit Loans(SharedMemory* memory) : memory_(memory) {}
  ~Loans() { ReturnAll(); }

  // Replaces the message's payload by its description. Zero when it has to be sent: it is small, or
  // not in shared memory, or the peer has much that it has not returned; otherwise the number of
  // pieces, for the frame's method.
  uint16_t Lend(Message* message);
  void Return(uint64_t number);
  // The peer is gone. What it still reads it will find to be returned.
  void ReturnAll();

 private:
  struct Lent {
    uint32_t slot = 0;
    uint64_t bytes = 0;
    std::shared_ptr<const void> owner;
  };
  SharedMemory* const memory_;
  std::mutex mutex_;
  uint64_t bytes_ = 0;
  std::unordered_map<uint64_t, Lent> lent_;
};

}  // namespace tensorwire::wire
