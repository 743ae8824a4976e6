#include "out_frame.h"

#include <utility>

namespace tensorwire::wire {

OutFrame::OutFrame(FrameKind kind, uint16_t flags, uint64_t request_id, Message message)
    : kind(kind),
      head(std::move(message.head_)),
      payload(std::move(message.payload_)),
      owner(std::move(message.owner_)) {
  FrameHeader header;
  header.kind = kind;
  header.flags = flags;
  header.method = message.method_;
  header.request_id = request_id;
  header.metadata_bytes = static_cast<uint32_t>(head.size() - kHeaderBytes);
  for (const ConstBuffer& buffer : payload) header.payload_bytes += buffer.size;
  EncodeHeader(header, head.data());
  total_bytes = head.size() + header.payload_bytes;
}

void OutFrame::Check() {
  const uint64_t payload_bytes = total_bytes - head.size();
  SealHead(&head);
  total_bytes = head.size();
  if (payload_bytes == 0) return;
  total_bytes += payload_bytes + kChecksumBytes;
  checked = std::make_unique<CheckedPayload>(std::move(payload), payload_bytes);
  payload.clear();
  if (!small()) return;
  head.append(checked->Next());
  checked.reset();
  owner.reset();
}

bool OutFrame::has_more() const { return checked != nullptr && checked->has_more(); }

void OutFrame::Refill() {
  const bool waits = !payload.empty() && part <= payload.size();
  if (!has_more() || waits) return;
  const std::string_view window = checked->Next();
  payload.assign(1, {window.data(), window.size()});
  if (part == 0) return;
  part = 1;
  part_offset = 0;
}

}  // namespace tensorwire::wire
