#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checked.h"
#include "mpsc_queue.h"
#include "tensorwire/wire/frame.h"
#include "tensorwire/wire/message.h"

namespace tensorwire::wire {

// A frame up to this size is sent before larger ones, and may be written by the thread that sends
// it.
inline constexpr uint64_t kSmallFrameBytes = 64u << 10;

// An outgoing frame.
struct OutFrame : MpscNode {
  // Fills in the header before `message`'s metadata.
  OutFrame(FrameKind kind, uint16_t flags, uint64_t request_id, Message message);

  bool small() const { return total_bytes <= kSmallFrameBytes; }
  // Adds the checksums. A small payload moves into the head.
  void Check();
  // Updates `head` and `payload`, which hold what can be written next: a large checked payload
  // is taken in parts. Called by the writer, before it gathers the frame.
  void Refill();
  bool has_more() const;  // true if more follows `head` and `payload`

  const FrameKind kind;
  std::string head;  // header and metadata
  std::vector<ConstBuffer> payload;
  std::shared_ptr<const void> owner;
  uint64_t total_bytes = 0;

  // The position of the writer: part 0 is the head, part i + 1 is payload[i].
  size_t part = 0;
  size_t part_offset = 0;

  // The whole of a large payload with a checksum; then `payload` is one window of it.
  std::unique_ptr<CheckedPayload> checked;
};

}  // namespace tensorwire::wire
