#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tensorwire/wire/export.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// A connection carries a sequence of frames: a header of kHeaderBytes, then
// `metadata_bytes` of metadata, then `payload_bytes` of payload. All integers are little-endian:
//
//   offset  0  u32  magic            "TWIR"
//           4  u8   version          kWireVersion; both ends must agree
//           5  u8   kind             FrameKind
//           6  u16  flags            FrameFlags
//           8  u64  request_id       chosen by the side that asks; a reply repeats it
//          16  u32  metadata_bytes
//          20  u16  method           of a request; of kError: the status code; with kLent: pieces
//          22  u16  reserved         zero
//          24  u64  payload_bytes
//
// With kChecked there are checksums (CRC-32C): between header and metadata that of the metadata
// (u32) and that of the header and these four bytes (u32); behind the payload, if there is one,
// that of the payload (u32).
//
// The client opens a connection with kHello and waits for kHelloAck (with a job token there are two
// frames between them: authenticator.h); see connection.h for what follows.

inline constexpr size_t kHeaderBytes = 32;
inline constexpr size_t kChecksumBytes = 4;
inline constexpr size_t kCheckedHeaderBytes = kHeaderBytes + 2 * kChecksumBytes;
inline constexpr uint32_t kMagic = 0x52495754;  // "TWIR", read as a little-endian u32
inline constexpr uint8_t kWireVersion = 1;

enum class FrameKind : uint8_t {
  kHello = 1,     // client to server: who I am, whom I want; metadata in hello.h's form
  kHelloAck = 2,  // server to client: who I am
  kRequest = 3,
  kReply = 4,   // a request's success
  kError = 5,   // a request's failure: method is the code, metadata or payload the message
  kCancel = 6,  // the asker no longer wants request_id
  kPing = 7,    // answered by kPong, whatever else goes on
  kPong = 8,
  kGoodbye = 9,     // the sender closes now; metadata says why
  kPush = 10,       // server to client, unasked: request_id says what for
  kMapped = 11,     // client to server: it reads the server's memory, and payloads may be lent
  kReturn = 12,     // client to server: request_id is the number of a loan that has been read
  kFetches = 13,    // client to server: it has several streams, and payloads may be held for it
  kChallenge = 14,  // server to client, before kHelloAck: prove that you have the job token
  kProof = 15,      // client to server: the answer to it
};

enum FrameFlags : uint16_t {
  kOneWay = 1,   // of a request: no reply is wanted
  kLent = 2,     // of a reply or push: the payload is in the server's memory; see loans.h
  kHeld = 4,     // of a reply or push: the payload is fetched in ranges; see loans.h
  kChecked = 8,  // with checksums; once a peer has sent one so, all that it sends are
};

// The method of a request for a range of a payload that is held; the engine answers it itself.
inline constexpr uint16_t kFetchRange = 0xffff;
// And that of a request for what the server is and what its clock says; see about.h.
inline constexpr uint16_t kAbout = 0xfffe;

struct FrameHeader {
  FrameKind kind = FrameKind::kPing;
  uint16_t flags = 0;
  uint16_t method = 0;
  uint64_t request_id = 0;
  uint32_t metadata_bytes = 0;
  uint64_t payload_bytes = 0;
};

// Lengths beyond these are an attack or a defect; they are refused before anything is allocated.
struct FrameLimits {
  uint32_t metadata_bytes = 128u << 10;
  uint64_t payload_bytes = 1ull << 40;
};

// A request carries at most one protobuf, and that is what those can be.
inline constexpr uint64_t kMaxRequestPayloadBytes = 1ull << 31;

// The message of an error is cut there; up to the first size it is metadata, beyond it payload.
inline constexpr size_t kMaxErrorMetadataBytes = 64u << 10;
inline constexpr uint64_t kMaxErrorBytes = 16u << 20;

TENSORWIRE_API void EncodeHeader(const FrameHeader& header, void* out);

// Names the protocol of a peer whose first bytes (a few suffice) are not ours, for people who mixed
// up two ports. "" when they may be the beginning of a frame.
TENSORWIRE_API std::string DescribeForeign(std::string_view first_bytes);

// Reads a header from the kHeaderBytes at `bytes`. A pure function, total over all inputs. Fails
// with kInvalidArgument, in words that name what was expected, when the bytes are not ours, are of
// another version or break a limit.
TENSORWIRE_API Status ParseHeader(const void* bytes, const FrameLimits& limits, FrameHeader* out);

}  // namespace tensorwire::wire
