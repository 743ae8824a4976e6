// Headers, and the description of bytes that are no header.

#include <cstdint>
#include <cstring>
#include <string>

#include "checked.h"
#include "tensorwire/wire/frame.h"

using namespace tensorwire::wire;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  DescribeForeign(bytes);
  FrameHeader header;
  if (size >= kCheckedHeaderBytes) {
    IsHeaderIntact(bytes.data());
    IsMetadataIntact(bytes.data(), size - kCheckedHeaderBytes);
  }
  if (size < kHeaderBytes || !ParseHeader(bytes.data(), FrameLimits(), &header).ok()) return 0;
  // An accepted header is within the limits, and is the same when it is encoded and parsed again.
  char again[kHeaderBytes];
  FrameHeader twice;
  EncodeHeader(header, again);
  if (header.metadata_bytes > FrameLimits().metadata_bytes ||
      header.payload_bytes > FrameLimits().payload_bytes ||
      !ParseHeader(again, FrameLimits(), &twice).ok() || twice.kind != header.kind ||
      twice.flags != header.flags || twice.request_id != header.request_id ||
      twice.method != header.method) {
    __builtin_trap();
  }
  std::string head(again, kHeaderBytes);
  head.append(bytes.substr(kHeaderBytes));
  SealHead(&head);
  if (!IsHeaderIntact(head.data()) ||
      !IsMetadataIntact(head.data(), head.size() - kCheckedHeaderBytes)) {
    __builtin_trap();
  }
  return 0;
}
