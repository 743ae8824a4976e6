#include "frame_reader.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "checked.h"
#include "crc32c.h"

namespace tensorwire::wire {
namespace {

constexpr size_t kForeignBytes = 12;  // enough for DescribeForeign

}  // namespace

void FrameReader::MakeRoom(char* scratch, size_t scratch_bytes, Room* room) {
  assert(bytes_left_ == 0);
  bool all_direct = false;
  if (at_ == At::kPayload && frame_.payload == InFrame::Payload::kInto) {
    // Straight into the tensor's memory. One part is left for the bytes after the payload.
    for (size_t i = into_index_; i < frame_.into.size() && room->count < Room::kMostParts - 1;
         ++i) {
      const size_t skip = i == into_index_ ? into_offset_ : 0;
      room->parts[static_cast<size_t>(room->count++)] = {
          static_cast<char*>(frame_.into[i].data) + skip, frame_.into[i].size - skip};
      room->direct_bytes += frame_.into[i].size - skip;
    }
    all_direct = room->direct_bytes < frame_.header.payload_bytes - payload_got_;
  }
  room->bytes = room->direct_bytes;
  room->scratch = scratch;
  if (all_direct) return;
  // The bytes after the payload go to the scratch buffer, after the part of a frame that was
  // stashed last time.
  room->scratch_bytes = stash_.size();
  if (!stash_.empty()) std::memcpy(scratch, stash_.data(), stash_.size());
  const size_t rest = scratch_bytes - stash_.size();
  room->parts[static_cast<size_t>(room->count++)] = {scratch + stash_.size(), rest};
  room->bytes += rest;
}

void FrameReader::Take(const Room& room, size_t bytes) {
  const size_t direct = std::min(bytes, room.direct_bytes);
  for (size_t left = direct; left > 0;) {
    const size_t step = std::min(frame_.into[into_index_].size - into_offset_, left);
    AdvanceInto(step);
    left -= step;
  }
  if (direct > 0) AdvancePayload(direct);
  bytes_ = room.scratch;
  bytes_left_ = room.scratch_bytes + bytes - direct;
  stash_.clear();
}

void FrameReader::Stash() {
  if (bytes_left_ > 0) stash_.assign(bytes_, bytes_left_);
  bytes_left_ = 0;
}

FrameReader::Found FrameReader::Next(const FrameLimits& limits, Status* why) {
  if (at_ == At::kHead) return ParseHead(limits, why);
  while (at_ != At::kEnd && bytes_left_ > 0) {
    if (at_ == At::kPayload) {
      TakePayload();
    } else {
      TakeChecksum();
    }
  }
  if (at_ != At::kEnd) return Found::kNothing;
  at_ = At::kHead;
  return Found::kFrame;
}

FrameReader::Found FrameReader::ParseHead(const FrameLimits& limits, Status* why) {
  if (bytes_left_ < kHeaderBytes) {
    if (bytes_left_ < kForeignBytes || checked_) return Found::kNothing;
    // Recognises a short greeting in another protocol at once, so that it need not wait for the
    // handshake's timeout.
    const std::string foreign = DescribeForeign({bytes_, bytes_left_});
    if (foreign.empty()) return Found::kNothing;
    *why = Status(Code::kInvalidArgument, foreign);
    return Found::kBroken;
  }
  // Once frames have checksums, check the header before using any field of it.
  if (checked_) {
    if (bytes_left_ < kCheckedHeaderBytes) return Found::kNothing;
    if (!IsHeaderIntact(bytes_)) {
      *why = Damaged("the head of a frame");
      return Found::kBroken;
    }
  }
  FrameHeader header;
  if (Status s = ParseHeader(bytes_, limits, &header); !s.ok()) {
    *why = std::move(s);
    return Found::kBroken;
  }
  if (!checked_ && (header.flags & kChecked) != 0) {
    checked_ = true;
    return ParseHead(limits, why);
  }
  const size_t header_bytes = checked_ ? kCheckedHeaderBytes : kHeaderBytes;
  if (bytes_left_ < header_bytes + header.metadata_bytes) return Found::kNothing;
  if (checked_ && !IsMetadataIntact(bytes_, header.metadata_bytes)) {
    *why = Damaged("the metadata of a frame");
    return Found::kBroken;
  }
  metadata_ = {bytes_ + header_bytes, header.metadata_bytes};
  Drop(header_bytes + header.metadata_bytes);

  frame_.header = header;
  frame_.checked = checked_ && header.payload_bytes > 0;
  payload_got_ = 0;
  checksum_got_ = 0;
  into_index_ = 0;
  into_offset_ = 0;
  return Found::kHead;
}

void FrameReader::ExpectPayload() {
  assert(at_ == At::kHead);
  at_ = frame_.header.payload_bytes > 0 ? At::kPayload : At::kEnd;
  // Reading would never advance past an empty buffer.
  std::erase_if(frame_.into, [](const MutableBuffer& buffer) { return buffer.size == 0; });
}

void FrameReader::TakePayload() {
  const uint64_t missing = frame_.header.payload_bytes - payload_got_;
  size_t take = static_cast<size_t>(std::min<uint64_t>(missing, bytes_left_));
  switch (frame_.payload) {
    case InFrame::Payload::kDiscard:
      break;
    case InFrame::Payload::kBytes:
      frame_.bytes.append(bytes_, take);
      if (frame_.checked) frame_.checksum = ExtendCrc32c(frame_.checksum, bytes_, take);
      break;
    case InFrame::Payload::kInto: {
      const MutableBuffer& buffer = frame_.into[into_index_];
      take = std::min(take, buffer.size - into_offset_);
      std::memcpy(static_cast<char*>(buffer.data) + into_offset_, bytes_, take);
      AdvanceInto(take);
      break;
    }
  }
  Drop(take);
  AdvancePayload(take);
}

// `bytes` more have arrived in the payload's memory.
void FrameReader::AdvanceInto(size_t bytes) {
  const MutableBuffer& buffer = frame_.into[into_index_];
  if (frame_.checked) {
    // Now, while the bytes are in the cache.
    frame_.checksum =
        ExtendCrc32c(frame_.checksum, static_cast<const char*>(buffer.data) + into_offset_, bytes);
  }
  into_offset_ += bytes;
  if (into_offset_ < buffer.size) return;
  ++into_index_;
  into_offset_ = 0;
}

void FrameReader::AdvancePayload(size_t bytes) {
  payload_got_ += bytes;
  if (payload_got_ == frame_.header.payload_bytes) at_ = frame_.checked ? At::kChecksum : At::kEnd;
}

void FrameReader::TakeChecksum() {
  const size_t take = std::min(kChecksumBytes - checksum_got_, bytes_left_);
  std::memcpy(checksum_.data() + checksum_got_, bytes_, take);
  checksum_got_ += take;
  Drop(take);
  if (checksum_got_ == kChecksumBytes) at_ = At::kEnd;
}

Status FrameReader::Damaged(const std::string& what) {
  return Status(Code::kDataLoss, what + " arrived damaged: its checksum does not match");
}

bool FrameReader::is_damaged() const {
  return frame_.checked && frame_.payload != InFrame::Payload::kDiscard &&
         std::memcmp(&frame_.checksum, checksum_.data(), kChecksumBytes) != 0;
}

}  // namespace tensorwire::wire
