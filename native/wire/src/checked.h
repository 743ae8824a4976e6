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

// Adds kChecked and the checksums to an encoded header and the metadata after it.
void SealHead(std::string* head);

// Checks the kCheckedHeaderBytes at `bytes`, which may be anything.
bool IsHeaderIntact(const char* bytes);
// Checks the metadata after such a header. The header must have been checked.
bool IsMetadataIntact(const char* bytes, size_t metadata_bytes);

// An outgoing payload followed by its checksum. The payload is copied window by window, and the
// copy is sent: the memory may belong to a variable that a step changes meanwhile, so only a copy
// has a stable checksum. A window stays in the cache from the copy until the kernel reads it.
class CheckedPayload {
 public:
  CheckedPayload(std::vector<ConstBuffer> payload, uint64_t payload_bytes);

  bool has_more() const { return !ended_; }
  // The next window; valid until the next call.
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
