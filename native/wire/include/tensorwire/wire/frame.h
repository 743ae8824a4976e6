#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tensorwire/wire/export.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// A connection carries a sequence of frames: a header of kHeaderBytes, then `metadata_bytes` of
// metadata, then `payload_bytes` of payload. All integers are little-endian:
//
//   offset  0  u32  magic            "TWIR"
//           4  u8   version          kWireVersion; both ends must agree
//           5  u8   kind             FrameKind
//           6  u16  flags            FrameFlags
//           8  u64  request_id       chosen by the client; a reply repeats it
//          16  u32  metadata_bytes
//          20  u16  method           of a request; of kError: the status code; with kLent: pieces
//          22  u16  reserved         zero
//          24  u64  payload_bytes
//
// With kChecked there are checksums (CRC-32C): between header and metadata, the checksum of the
// metadata (u32) and that of the header and these four bytes (u32); after the payload, if there is
// one, the checksum of the payload (u32).
//
// The client opens a connection with kHello and waits for kHelloAck (with a job token there are two
// frames between them: authenticator.h); see connection.h for what follows.

inline constexpr size_t kHeaderBytes = 32;
inline constexpr size_t kChecksumBytes = 4;
inline constexpr size_t kCheckedHeaderBytes = kHeaderBytes + 2 * kChecksumBytes;
inline constexpr uint32_t kMagic = 0x52495754;  // "TWIR", read as a little-endian u32
inline constexpr uint8_t kWireVersion = 1;

enum class FrameKind : uint8_t {
  kHello = 1,     // client to server: its name and the task that it wants; metadata as in hello.h
  kHelloAck = 2,  // server to client: its name
  kRequest = 3,
  kReply = 4,   // a request's success
  kError = 5,   // a request's failure: method is the code, metadata or payload the message
  kCancel = 6,  // the client no longer wants the reply to request_id
  kPing = 7,    // answered by kPong
  kPong = 8,
  kGoodbye = 9,     // the sender closes the connection; metadata says why
  kPush = 10,       // server to client, without a request: request_id says what for
  kMapped = 11,     // client to server: it can read the server's memory, so payloads may be lent
  kReturn = 12,     // client to server: request_id is the number of a loan that has been read
  kFetches = 13,    // client to server: it has several streams, so payloads may be held for it
  kChallenge = 14,  // server to client, before kHelloAck: demands a proof of the job token
  kProof = 15,      // client to server: that proof
};

enum FrameFlags : uint16_t {
  kOneWay = 1,   // of a request: there is no reply
  kLent = 2,     // of a reply or push: the payload is in the server's memory; see loans.h
  kHeld = 4,     // of a reply or push: the payload is fetched in ranges; see loans.h
  kChecked = 8,  // with checksums; after a peer's first such frame, all its frames have them
};

// The method of a request for a range of a held payload; the engine answers it itself.
inline constexpr uint16_t kFetchRange = 0xffff;
// The method of a request for the server's version and clock; see about.h.
inline constexpr uint16_t kAbout = 0xfffe;

struct FrameHeader {
  FrameKind kind = FrameKind::kPing;
  uint16_t flags = 0;
  uint16_t method = 0;
  uint64_t request_id = 0;
  uint32_t metadata_bytes = 0;
  uint64_t payload_bytes = 0;
};

// Larger lengths mean an attack or a defect. They are refused before anything is allocated.
struct FrameLimits {
  uint32_t metadata_bytes = 128u << 10;
  uint64_t payload_bytes = 1ull << 40;
};

// A request carries at most one protobuf; this is the largest size of one.
inline constexpr uint64_t kMaxRequestPayloadBytes = 1ull << 31;

// The message of an error is metadata up to the first size, payload beyond it, and cut at the
// second.
inline constexpr size_t kMaxErrorMetadataBytes = 64u << 10;
inline constexpr uint64_t kMaxErrorBytes = 16u << 20;

TENSORWIRE_API void EncodeHeader(const FrameHeader& header, void* out);

// Names the protocol of a peer from its first bytes (a few are enough), for users who mixed up two
// ports. "" if they may be the beginning of a frame.
TENSORWIRE_API std::string DescribeForeign(std::string_view first_bytes);

// Parses a header from the kHeaderBytes at `bytes`. A pure function, defined for all inputs. Fails
// with kInvalidArgument and a message that names what was expected, if the bytes are not a
// tensorwire header, have another version or exceed a limit.
TENSORWIRE_API Status ParseHeader(const void* bytes, const FrameLimits& limits, FrameHeader* out);

}  // namespace tensorwire::wire
