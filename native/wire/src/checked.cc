#include "checked.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "crc32c.h"

namespace tensorwire::wire {
namespace {

// Fits into a core's cache, and is enough for one system call.
constexpr uint64_t kMostWindowBytes = 256u << 10;
constexpr size_t kFlagsOffset = 6;  // in a header

uint32_t Load(const char* bytes) {
  uint32_t checksum = 0;
  std::memcpy(&checksum, bytes, kChecksumBytes);
  return checksum;
}

void Store(uint32_t checksum, char* bytes) { std::memcpy(bytes, &checksum, kChecksumBytes); }

}  // namespace

void SealHead(std::string* head) {
  (*head)[kFlagsOffset] = static_cast<char>((*head)[kFlagsOffset] | kChecked);
  char checksums[2 * kChecksumBytes];
  Store(ExtendCrc32c(0, head->data() + kHeaderBytes, head->size() - kHeaderBytes), checksums);
  const uint32_t of_header = ExtendCrc32c(0, head->data(), kHeaderBytes);
  Store(ExtendCrc32c(of_header, checksums, kChecksumBytes), checksums + kChecksumBytes);
  head->insert(kHeaderBytes, checksums, sizeof(checksums));
}

bool IsHeaderIntact(const char* bytes) {
  constexpr size_t kCovered = kHeaderBytes + kChecksumBytes;
  return ExtendCrc32c(0, bytes, kCovered) == Load(bytes + kCovered);
}

bool IsMetadataIntact(const char* bytes, size_t metadata_bytes) {
  return ExtendCrc32c(0, bytes + kCheckedHeaderBytes, metadata_bytes) == Load(bytes + kHeaderBytes);
}

CheckedPayload::CheckedPayload(std::vector<ConstBuffer> payload, uint64_t payload_bytes)
    : payload_(std::move(payload)),
      window_bytes_(std::min(payload_bytes + kChecksumBytes, kMostWindowBytes)),
      window_(new char[window_bytes_]) {}

std::string_view CheckedPayload::Next() {
  size_t filled = 0;
  while (index_ < payload_.size() && filled < window_bytes_) {
    const ConstBuffer& buffer = payload_[index_];
    const size_t step = std::min(buffer.size - offset_, window_bytes_ - filled);
    std::memcpy(window_.get() + filled, static_cast<const char*>(buffer.data) + offset_, step);
    filled += step;
    offset_ += step;
    if (offset_ == buffer.size) {
      ++index_;
      offset_ = 0;
    }
  }
  checksum_ = ExtendCrc32c(checksum_, window_.get(), filled);
  if (index_ == payload_.size() && window_bytes_ - filled >= kChecksumBytes) {
    Store(checksum_, window_.get() + filled);
    filled += kChecksumBytes;
    ended_ = true;
  }
  return {window_.get(), filled};
}

}  // namespace tensorwire::wire
