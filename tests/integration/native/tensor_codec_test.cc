// A tensor that differs from what was announced is refused before memory is allocated for it. Exits
// with 0 if all checks hold.

#include "tensor_codec.h"

#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "fused_tensor.h"
#include "proto_call.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace {

using tensorflow::Tensor;
using tensorflow::TensorProto;
using tensorflow::TensorShape;
using tensorwire::plugin::IncomingTensor;
namespace wire = tensorwire::wire;

constexpr int64_t kHuge = int64_t{1} << 27;  // strings of 24 bytes: 3 GiB
constexpr int64_t kMostMb = 256;             // limit for the test's memory beside TensorFlow's

int failures = 0;

void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  ++failures;
}

int64_t PeakMb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss >> 10;
}

class Device : public tensorflow::DeviceBase {
 public:
  Device() : DeviceBase(tensorflow::Env::Default()) {}
  absl::Status MakeTensorFromProto(const TensorProto& proto, const tensorflow::AllocatorAttributes,
                                   Tensor* tensor) override {
    return tensor->FromProto(proto) ? absl::OkStatus() : absl::InternalError("not a tensor");
  }
};

std::string Metadata(uint8_t flags, tensorflow::DataType dtype, int64_t elements) {
  std::string bytes(16, '\0');  // flags, rank, type, when it was made, one dimension
  const auto type = static_cast<uint16_t>(dtype);
  bytes[0] = static_cast<char>(flags);
  bytes[1] = 1;
  std::memcpy(&bytes[2], &type, sizeof(type));
  std::memcpy(&bytes[8], &elements, sizeof(elements));
  return bytes;
}

absl::Status Arrive(const std::string& metadata, const std::string& payload, Device* device,
                    Tensor* out) {
  IncomingTensor incoming;
  std::vector<wire::MutableBuffer> into;
  absl::Status status =
      incoming.Prepare(metadata, payload.size(), tensorflow::cpu_allocator(), &into);
  if (!status.ok()) return status;
  std::memcpy(into.at(0).data, payload.data(), into.at(0).size);
  return incoming.Decode(device, tensorflow::AllocatorAttributes(), out);
}

std::string Strings(int64_t announced, const std::string& content) {
  TensorProto proto;
  proto.set_dtype(tensorflow::DT_STRING);
  proto.mutable_tensor_shape()->add_dim()->set_size(announced);
  proto.set_tensor_content(content);
  if (content.empty()) proto.add_string_val("x");  // TensorFlow would repeat it
  return proto.SerializeAsString();
}

void WhatWasSentComes(Device* device) {
  const auto metadata = Metadata(tensorwire::plugin::kAsProto, tensorflow::DT_STRING, 2);
  const std::string two("\1\0x", 3);  // one string of one byte and an empty one
  Tensor tensor;
  Check(Arrive(metadata, Strings(2, two), device, &tensor).ok(), "two strings arrive");
  Check(tensor.NumElements() == 2 && tensor.flat<tensorflow::tstring>()(0) == "x", "as they were");
  Check(!Arrive(metadata, Strings(1, std::string("\0", 1)), device, &tensor).ok(),
        "another shape than announced is refused");
  TensorProto floats;
  floats.set_dtype(tensorflow::DT_FLOAT);
  floats.mutable_tensor_shape()->add_dim()->set_size(2);
  floats.set_tensor_content("12345678");
  Check(!Arrive(metadata, floats.SerializeAsString(), device, &tensor).ok(),
        "another type than announced is refused");
}

void ElementsFromNowhereGetNoRoom(Device* device) {
  const auto metadata = Metadata(tensorwire::plugin::kAsProto, tensorflow::DT_STRING, kHuge);
  Tensor tensor;
  for (const char* content : {"", "\1x"}) {
    const std::string proto = Strings(kHuge, content);
    Check(!Arrive(metadata, proto, device, &tensor).ok(), "strings that are not there are refused");

    Tensor fused(tensorflow::DT_UINT8, TensorShape({128}));
    char* const header = const_cast<char*>(fused.tensor_data().data());
    std::memset(header, 0, 128);
    // Magic and number of parts; way, rank and type; offset, size, and the dimension.
    const uint64_t words[] = {0x1'46575431, 0x7'01'01, 64, proto.size(), kHuge};
    std::memcpy(header, words, sizeof(words));
    std::memcpy(header + 64, proto.data(), proto.size());
    std::vector<tensorwire::plugin::FusedPart> parts;
    const absl::Status split = Split(fused, 1, device, &parts);
    Check(absl::StrContains(split.message(), "fewer elements"), "nor do they come in a fused one");
  }
}

void WhatNoProtobufCanBeGetsNoRoom() {
  IncomingTensor incoming;
  std::vector<wire::MutableBuffer> into;
  const auto metadata = Metadata(tensorwire::plugin::kAsProto, tensorflow::DT_STRING, 1);
  for (const uint64_t bytes : {wire::kMaxRequestPayloadBytes, uint64_t{1} << 39}) {
    Check(!incoming.Prepare(metadata, bytes, tensorflow::cpu_allocator(), &into).ok(),
          "a TensorProto beyond 2 GiB is refused");
    tensorflow::RunGraphResponse response;
    tensorwire::plugin::ProtoCall call(&response, [](const absl::Status&) {});
    Check(!call.PrepareFromReactor("", bytes, &into).ok(), "and so is a reply");
  }
  // 2^60 + 1 elements of 16 bytes are 16 bytes in 64 bits.
  const auto wraps = Metadata(0, tensorflow::DT_COMPLEX128, (int64_t{1} << 60) + 1);
  Check(!incoming.Prepare(wraps, 16, tensorflow::cpu_allocator(), &into).ok(),
        "a size that does not fit is refused");
  Check(into.empty(), "no room is made");
}

}  // namespace

int main() {
  Device device;
  const int64_t before_mb = PeakMb();
  WhatWasSentComes(&device);
  ElementsFromNowhereGetNoRoom(&device);
  WhatNoProtobufCanBeGetsNoRoom();
  Check(PeakMb() - before_mb < kMostMb, "memory stays as it was");
  return failures == 0 ? 0 : 1;
}
