#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "call_table.h"
#include "loans.h"
#include "tensorwire/wire/engine.h"
#include "tensorwire/wire/frame.h"

namespace tensorwire::wire {

// An incoming frame: its head has arrived, its payload is arriving.
struct InFrame {
  FrameHeader header;
  enum class Payload { kDiscard, kInto, kBytes } payload = Payload::kDiscard;
  std::vector<MutableBuffer> into;  // kInto: adds up to header.payload_bytes
  std::string bytes;                // kBytes: grows only as bytes arrive
  std::string metadata;             // kept if the receiver needs it at the end
  std::shared_ptr<char> placed;     // of a request: owns the memory in `into`
  Claim claim;                      // of a request

  // For a reply or push: the loan, if the payload is not in the frame; the call that it ends, and
  // with which status.
  Loan loan;
  CallTable::Entry entry;
  Status status;

  // True if a checksum follows the payload; then `checksum` is that of the bytes that have arrived.
  bool checked = false;
  uint32_t checksum = 0;
};

// Splits the bytes that a connection receives into frames. It does not read from the socket itself:
// MakeRoom says where the next bytes go, Take says how many arrived, and Next returns what they
// are, until more are needed. The caller decides for each head where the payload goes.
class FrameReader {
 public:
  // The room for the next bytes.
  struct Room {
    static constexpr int kMostParts = 64;
    std::array<iovec, kMostParts> parts;
    int count = 0;
    size_t bytes = 0;

    size_t direct_bytes = 0;  // of these, bytes of the payload's own memory
    const char* scratch = nullptr;
    size_t scratch_bytes = 0;  // bytes that are in `scratch` already
  };
  // `scratch` receives all bytes but those that go straight into a payload's memory. Other readers
  // may use it after Stash.
  void MakeRoom(char* scratch, size_t scratch_bytes, Room* room);
  // `bytes` bytes were read into `room`.
  void Take(const Room& room, size_t bytes);

  enum class Found {
    kNothing,  // more bytes are needed
    kHead,     // the head of `frame`, with `metadata`; the caller must then call ExpectPayload
    kFrame,    // `frame` is complete; the caller must then call Forget
    kBroken,   // it is unknown where the next frame begins; `why` is kDataLoss if a checksum does
               // not match
  };
  Found Next(const FrameLimits& limits, Status* why);
  // True if Next has something to look at.
  bool has_more() const { return bytes_left_ > 0 || at_ == At::kEnd; }
  // Keeps the bytes that have not been parsed for the next Take, or drops them.
  void Stash();
  void Discard() { bytes_left_ = 0; }

  InFrame& frame() { return frame_; }
  // Valid after kHead, until the next call.
  std::string_view metadata() const { return metadata_; }
  // Called after kHead, when the frame's fields say where its payload goes.
  void ExpectPayload();
  // Called after kFrame: clears `frame`.
  void Forget() {
    std::vector<MutableBuffer> into =
        std::move(frame_.into);  // keeps its memory for the next frame
    into.clear();
    frame_ = InFrame();
    frame_.into = std::move(into);
  }
  // True if the payload's checksum differs from the one that was sent. A discarded payload is not
  // checked.
  bool is_damaged() const;
  static Status Damaged(const std::string& what);

  // Between frames, or in a head that is not complete.
  bool at_head() const { return at_ == At::kHead; }
  // The frame whose payload is arriving, or null.
  InFrame* unfinished() { return at_ == At::kHead ? nullptr : &frame_; }
  // The beginning of a head that Stash has kept.
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
  std::array<char, kChecksumBytes> checksum_{};  // received after the payload
  size_t checksum_got_ = 0;
  bool checked_ = false;  // the peer's frames have checksums: after the first such frame, all must

  const char* bytes_ = nullptr;  // not parsed yet
  size_t bytes_left_ = 0;
  std::string stash_;
};

}  // namespace tensorwire::wire
