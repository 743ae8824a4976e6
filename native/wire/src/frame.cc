#include "tensorwire/wire/frame.h"

#include <cstring>
#include <string>

namespace tensorwire::wire {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian");

template <typename T>
T Load(const void* bytes, size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(bytes) + offset, sizeof(T));
  return value;
}

template <typename T>
void Store(void* bytes, size_t offset, T value) {
  std::memcpy(static_cast<char*>(bytes) + offset, &value, sizeof(T));
}

Status Bad(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

}  // namespace

std::string DescribeForeign(std::string_view first_bytes) {
  constexpr std::string_view kOurs("TWIR", 4);
  const auto begins_with = [&](std::string_view text) {
    return first_bytes.substr(0, text.size()) == text;
  };
  if (first_bytes.substr(0, 4) == kOurs.substr(0, first_bytes.size())) return "";
  if (begins_with("PRI * HTTP/2")) return "it speaks HTTP/2: a gRPC client on the data port";
  for (const std::string_view method : {"GET ", "POST ", "HEAD ", "PUT ", "OPTIONS ", "HTTP/1."}) {
    if (begins_with(method)) return "it speaks HTTP";
  }
  // An HTTP/2 server greets with a SETTINGS frame: 24 bits of length, then type 4.
  if (first_bytes.size() >= 4 && first_bytes[0] == 0 && first_bytes[3] == 4) {
    return "it speaks HTTP/2: this looks like a gRPC port";
  }
  // A record of a TLS handshake: type 22, version 3.x.
  if (begins_with("\x16\x03")) {
    return "it speaks TLS: set TENSORWIRE_TLS in every task of the job, or in none";
  }
  return "its first bytes are not tensorwire's";
}

void EncodeHeader(const FrameHeader& header, void* out) {
  Store<uint32_t>(out, 0, kMagic);
  Store<uint8_t>(out, 4, kWireVersion);
  Store<uint8_t>(out, 5, static_cast<uint8_t>(header.kind));
  Store<uint16_t>(out, 6, header.flags);
  Store<uint64_t>(out, 8, header.request_id);
  Store<uint32_t>(out, 16, header.metadata_bytes);
  Store<uint16_t>(out, 20, header.method);
  Store<uint16_t>(out, 22, 0);
  Store<uint64_t>(out, 24, header.payload_bytes);
}

Status ParseHeader(const void* bytes, const FrameLimits& limits, FrameHeader* out) {
  if (Load<uint32_t>(bytes, 0) != kMagic) {
    return Bad(DescribeForeign({static_cast<const char*>(bytes), kHeaderBytes}));
  }
  const uint8_t version = Load<uint8_t>(bytes, 4);
  if (version != kWireVersion) {
    return Bad("it speaks version " + std::to_string(version) +
               " of tensorwire's wire format, this is version " + std::to_string(kWireVersion) +
               ": install the same tensorwire on both");
  }
  const uint8_t kind = Load<uint8_t>(bytes, 5);
  if (kind < static_cast<uint8_t>(FrameKind::kHello) ||
      kind > static_cast<uint8_t>(FrameKind::kProof)) {
    return Bad("a frame of unknown kind " + std::to_string(kind));
  }
  out->kind = static_cast<FrameKind>(kind);
  out->flags = Load<uint16_t>(bytes, 6);
  out->request_id = Load<uint64_t>(bytes, 8);
  out->metadata_bytes = Load<uint32_t>(bytes, 16);
  out->method = Load<uint16_t>(bytes, 20);
  out->payload_bytes = Load<uint64_t>(bytes, 24);
  if (out->metadata_bytes > limits.metadata_bytes) {
    return Bad("a frame that announces " + std::to_string(out->metadata_bytes) +
               " bytes of metadata; the limit is " + std::to_string(limits.metadata_bytes));
  }
  if (out->payload_bytes > limits.payload_bytes) {
    return Bad("a frame that announces " + std::to_string(out->payload_bytes) +
               " bytes of payload; the limit is " + std::to_string(limits.payload_bytes));
  }
  return Status();
}

}  // namespace tensorwire::wire
