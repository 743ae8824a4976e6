#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "call_table.h"
#include "loans.h"
#include "tensorwire/wire/engine.h"
#include "tensorwire/wire/frame.h"

namespace tensorwire::wire {

// A frame on its way in: its head is here, its payload is arriving.
struct InFrame {
  FrameHeader header;
  enum class Payload { kDiscard, kInto, kBytes } payload = Payload::kDiscard;
  std::vector<MutableBuffer> into;  // kInto: adds up to header.payload_bytes
  std::string bytes;                // kBytes: grows as they arrive, never ahead of them
  std::string metadata;             // kept where the receiver needs it at the end
  std::shared_ptr<char> placed;     // of a request: owns what `into` names
  Claim claim;                      // of a request

  // The loan of a reply or push whose payload did not come along; the call that it ends, and how.
  Loan loan;
  CallTable::Entry entry;
  Status status;

  // True if a checksum comes behind the payload. Then that of what has arrived:
  bool checked = false;
  uint32_t checksum = 0;
};

// Makes frames of the bytes that a connection receives. It reads nothing itself: it says where the
// next bytes go (MakeRoom), hears how many came (Take), and is asked for what they are (Next) until
// it needs more. Whoever asks decides about each head where the payload goes.
class FrameReader {
 public:
  // The room for the next bytes.
  struct Room {
    static constexpr int kMostParts = 64;
    std::array<iovec, kMostParts> parts;
    int count = 0;
    size_t bytes = 0;

    size_t direct_bytes = 0;  // of these, into the memory of the payload
    const char* scratch = nullptr;
    size_t scratch_bytes = 0;  // that are in `scratch` already
  };
  // `scratch` is for what has no place of its own. It may serve other readers after Stash.
  void MakeRoom(char* scratch, size_t scratch_bytes, Room* room);
  // So many bytes were read there.
  void Take(const Room& room, size_t bytes);

  enum class Found {
    kNothing,  // more bytes are needed
    kHead,     // of `frame`, with `metadata`; to be followed by ExpectPayload
    kFrame,    // `frame` is whole; to be followed by Forget
    kBroken,   // nobody knows where the next frame begins; `why` is kDataLoss where a checksum does
               // not match
  };
  Found Next(const FrameLimits& limits, Status* why);
  // True if Next would find something, or look.
  bool has_more() const { return bytes_left_ > 0 || at_ == At::kEnd; }
  // The bytes that have not been looked at are kept for the next Take, or dropped.
  void Stash();
  void Discard() { bytes_left_ = 0; }

  InFrame& frame() { return frame_; }
  // After kHead, until the next call.
  std::string_view metadata() const { return metadata_; }
  // The frame's fields say where its payload goes.
  void ExpectPayload();
  // `frame` has been taken: what is left of it goes.
  void Forget() { frame_ = InFrame(); }
  // True if the payload of the whole frame has another checksum than it was sent with. One that was
  // discarded has not been looked at.
  bool is_damaged() const;
  static Status Damaged(const std::string& what);

  // Between frames, or in a head that is not complete.
  bool at_head() const { return at_ == At::kHead; }
  // The frame whose payload is arriving; null where there is none.
  InFrame* unfinished() { return at_ == At::kHead ? nullptr : &frame_; }
  // The beginning of a head, from Stash.
  std::string_view stashed() const { return stash_; }

 private:
  // The part of a frame to which the next byte belongs:
  //
  //   kHead -> kPayload -> kChecksum -> kEnd -> kHead     each but kHead may be left out
  enum class At { kHead, kPayload, kChecksum, kEnd };

  Found ParseHead(const FrameLimits& limits, Status* why);
  void TakePayload();
  void TakeChecksum();
  void AdvanceInto(size_t bytes);
  void AdvancePayload(size_t bytes);
  void Drop(size_t bytes) {
    bytes_ += bytes;
    bytes_left_ -= bytes;
  }

  At at_ = At::kHead;
  InFrame frame_;
  std::string_view metadata_;
  uint64_t payload_got_ = 0;
  size_t into_index_ = 0;
  size_t into_offset_ = 0;
  std::array<char, kChecksumBytes> checksum_{};  // that comes behind the payload
  size_t checksum_got_ = 0;
  bool checked_ = false;  // the peer's frames have checksums: once it has sent one so, all have

  const char* bytes_ = nullptr;  // not looked at yet
  size_t bytes_left_ = 0;
  std::string stash_;
};

}  // namespace tensorwire::wire
