#include "tensorwire/wire/frame.h"

#include <cstring>
#include <random>
#include <string>

#include "check.h"

namespace tensorwire::wire {
namespace {

std::string Encoded(const FrameHeader& header) {
  std::string bytes(kHeaderBytes, '\xee');
  EncodeHeader(header, bytes.data());
  return bytes;
}

FrameHeader Sample() {
  FrameHeader header;
  header.kind = FrameKind::kRequest;
  header.flags = 0x1234;
  header.method = 0x5678;
  header.request_id = 0x0102030405060708;
  header.metadata_bytes = 0x1011;
  header.payload_bytes = 0x2122232425;
  return header;
}

bool Fails(const std::string& bytes, const std::string& with, const FrameLimits& limits = {}) {
  FrameHeader header;
  const Status status = ParseHeader(bytes.data(), limits, &header);
  if (status.code() != Code::kInvalidArgument) return false;
  if (status.message().find(with) != std::string::npos) return true;
  std::fprintf(stderr, "the message is: %s\n", status.message().c_str());
  return false;
}

TEST(a_header_lies_on_the_wire_as_its_table_says) {
  const std::string expected(
      "TWIR\x01\x03\x34\x12"
      "\x08\x07\x06\x05\x04\x03\x02\x01"
      "\x11\x10\x00\x00\x78\x56\x00\x00"
      "\x25\x24\x23\x22\x21\x00\x00\x00",
      kHeaderBytes);
  CHECK(Encoded(Sample()) == expected);
}

TEST(every_field_of_every_kind_survives_the_way) {
  for (int kind = 1; kind <= 10; ++kind) {
    FrameHeader in = Sample();
    in.kind = static_cast<FrameKind>(kind);
    FrameHeader out;
    CHECK(ParseHeader(Encoded(in).data(), FrameLimits(), &out).ok());
    CHECK(out.kind == in.kind);
    CHECK_EQ(out.flags, in.flags);
    CHECK_EQ(out.method, in.method);
    CHECK_EQ(out.request_id, in.request_id);
    CHECK_EQ(out.metadata_bytes, in.metadata_bytes);
    CHECK_EQ(out.payload_bytes, in.payload_bytes);
  }
}

TEST(unknown_kinds_are_refused) {
  for (int kind : {0, 16, 17, 128, 255}) {
    std::string bytes = Encoded(Sample());
    bytes[5] = static_cast<char>(kind);
    CHECK(Fails(bytes, "unknown kind " + std::to_string(kind)));
  }
}

TEST(another_version_is_named_with_ours_and_the_way_out) {
  std::string bytes = Encoded(Sample());
  bytes[4] = 7;
  CHECK(Fails(bytes, "version 7"));
  CHECK(Fails(bytes, "this is version 1"));
  CHECK(Fails(bytes, "install the same tensorwire on both"));
}

TEST(lengths_are_held_against_the_limits_to_the_byte) {
  FrameLimits limits;
  limits.metadata_bytes = 1000;
  limits.payload_bytes = 5000;
  FrameHeader header = Sample();
  FrameHeader out;
  header.metadata_bytes = 1000;
  header.payload_bytes = 5000;
  CHECK(ParseHeader(Encoded(header).data(), limits, &out).ok());
  header.metadata_bytes = 1001;
  CHECK(Fails(Encoded(header), "1001 bytes of metadata; the limit is 1000", limits));
  header.metadata_bytes = 0;
  header.payload_bytes = 5001;
  CHECK(Fails(Encoded(header), "5001 bytes of payload; the limit is 5000", limits));
  header.payload_bytes = ~0ull;
  CHECK(Fails(Encoded(header), "18446744073709551615 bytes of payload"));
}

TEST(a_tensor_of_more_than_2_gb_is_within_the_limits) {
  FrameHeader header = Sample();
  header.payload_bytes = 5'000'000'000;
  FrameHeader out;
  CHECK(ParseHeader(Encoded(header).data(), FrameLimits(), &out).ok());
  CHECK_EQ(out.payload_bytes, 5'000'000'000u);
}

TEST(foreign_protocols_are_named) {
  CHECK(Fails("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0", "gRPC client"));
  CHECK(Fails("GET /metrics HTTP/1.1\r\nHost: ps0\r\n\r\n", "HTTP"));
  CHECK(Fails("POST /predict HTTP/1.1\r\nHost: ps0\r\n", "HTTP"));
  CHECK(Fails("HTTP/1.1 400 Bad Request\r\nServer: x", "HTTP"));
  CHECK(Fails(std::string("\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0d", 15) + std::string(32, 'x'),
              "gRPC port"));
  CHECK(Fails("\x16\x03\x01\x02" + std::string(32, 'x'), "TLS"));
  CHECK(Fails("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3", "not tensorwire's"));
}

TEST(first_bytes_that_may_still_become_ours_are_not_foreign) {
  const std::string ours = Encoded(Sample());
  for (size_t size = 0; size <= ours.size(); ++size) {
    CHECK_EQ(DescribeForeign(ours.substr(0, size)), std::string());
  }
  CHECK_EQ(DescribeForeign("TX"), std::string("its first bytes are not tensorwire's"));
  CHECK(!DescribeForeign(std::string("\0", 1)).empty());
}

TEST(parsing_is_total_over_random_bytes) {
  std::mt19937_64 random(20180223);
  FrameHeader valid = Sample();
  for (int i = 0; i < 300'000; ++i) {
    // Random bytes hardly ever have the right magic, so most rounds damage a valid header instead.
    std::string bytes = Encoded(valid);
    if (i % 4 == 0) {
      for (char& c : bytes) c = static_cast<char>(random());
    } else {
      for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
        bytes[random() % bytes.size()] ^= static_cast<char>(1u << random() % 8);
      }
    }
    FrameHeader out;
    const FrameLimits limits;
    if (const Status s = ParseHeader(bytes.data(), limits, &out); s.ok()) {
      CHECK(out.metadata_bytes <= limits.metadata_bytes);
      CHECK(out.payload_bytes <= limits.payload_bytes);
      CHECK(out.kind >= FrameKind::kHello && out.kind <= FrameKind::kProof);
    } else {
      CHECK(!s.message().empty());
    }
  }
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
