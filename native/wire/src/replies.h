#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "frame_reader.h"
#include "reactor.h"

namespace tensorwire::wire {

// What a client does with a reply, or push, whose call is in the frame.

// The head has arrived: decides where the payload goes. `payload_bytes` is the size of the payload,
// wherever it is.
inline void PrepareReply(std::string_view metadata, uint64_t payload_bytes, InFrame* frame) {
  frame->status = frame->entry.call->PrepareFromReactor(metadata, payload_bytes, &frame->into);
  uint64_t room = 0;
  for (const MutableBuffer& buffer : frame->into) room += buffer.size;
  if (frame->status.ok() && room != payload_bytes) {
    frame->status = Status(Code::kInternal, "a reply of another size than it announced");
  }
  if (frame->status.ok() && frame->loan.number == 0) frame->payload = InFrame::Payload::kInto;
}

// The head of a kError frame has arrived.
inline void PrepareError(std::string_view metadata, InFrame* frame) {
  constexpr uint16_t kLastCode = 16;  // the last canonical code
  const bool known = frame->header.method > 0 && frame->header.method <= kLastCode;
  frame->status = Status(known ? static_cast<Code>(frame->header.method) : Code::kUnknown,
                         std::string(metadata));
  // A longer message comes as payload.
  const uint64_t bytes = frame->header.payload_bytes;
  if (bytes > 0 && bytes <= kMaxErrorBytes) frame->payload = InFrame::Payload::kBytes;
}

// The whole frame has arrived: ends its call.
inline void CompleteReply(InFrame* frame, Reactor* reactor) {
  // The message of an error. A damaged frame has its message already.
  if (!frame->bytes.empty() && frame->status.message().empty()) {
    frame->status = Status(frame->status.code(), std::move(frame->bytes));
  }
  reactor->CompleteFromReactor(std::move(frame->entry), std::move(frame->status));
}

}  // namespace tensorwire::wire
