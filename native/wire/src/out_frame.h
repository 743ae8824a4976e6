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

// A frame up to this size goes ahead of larger ones, and may leave in the thread that sends it.
inline constexpr uint64_t kSmallFrameBytes = 64u << 10;

// A frame on its way out.
struct OutFrame : MpscNode {
  // Fills in the header before `message`'s metadata.
  OutFrame(FrameKind kind, uint16_t flags, uint64_t request_id, Message message);

  bool small() const { return total_bytes <= kSmallFrameBytes; }
  // Puts in the checksums. A small payload moves into the head.
  void Check();
  // Updates `head` and `payload`, which hold what can be written next: a large checked payload
  // is taken in parts. Called by the writer, before it gathers the frame.
  void Refill();
  bool has_more() const;  // when `head` and `payload` have left

  const FrameKind kind;
  std::string head;  // header and metadata
  std::vector<ConstBuffer> payload;
  std::shared_ptr<const void> owner;
  uint64_t total_bytes = 0;

  // The position of the writer: part 0 is the head, part i + 1 is payload[i].
  size_t part = 0;
  size_t part_offset = 0;

  // A large payload with a checksum, all of it, while `payload` is a window.
  std::unique_ptr<CheckedPayload> checked;
};

}  // namespace tensorwire::wire
