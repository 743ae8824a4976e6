#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensorwire/wire/frame.h"
#include "tensorwire/wire/message.h"

namespace tensorwire::wire {

// Frames with kChecked; see frame.h for where their checksums stand.

// Makes the encoded header and the metadata behind it those of such a frame.
void SealHead(std::string* head);

// Checks the kCheckedHeaderBytes at `bytes`, whatever they are.
bool IsHeaderIntact(const char* bytes);
// Checks the metadata behind such a header, when its size is true.
bool IsMetadataIntact(const char* bytes, size_t metadata_bytes);

// A payload on its way out, and its checksum behind it. It is copied, a window at a time, and what
// is sent is the copy: the memory may be that of a variable that a step writes to meanwhile, so
// only a copy has a checksum. The window stays in the cache from the copy until the kernel reads
// it.
class CheckedPayload {
 public:
  CheckedPayload(std::vector<ConstBuffer> payload, uint64_t payload_bytes);

  bool has_more() const { return !ended_; }
  // Valid until it is called again.
  std::string_view Next();

 private:
  const std::vector<ConstBuffer> payload_;
  const size_t window_bytes_;
  const std::unique_ptr<char[]> window_;
  size_t index_ = 0;
  size_t offset_ = 0;
  uint32_t checksum_ = 0;
  bool ended_ = false;
};

}  // namespace tensorwire::wire
