// A tensor that differs from what was announced is refused before memory is allocated for it. Exits
// with 0 if all checks hold.

#include "tensors/tensor_codec.h"

#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "calls/proto_call.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "tensors/fused_tensor.h"

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
  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes) override {
    return tensorflow::cpu_allocator();
  }
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
  if (!into.empty()) std::memcpy(into.at(0).data, payload.data(), into.at(0).size);
  return incoming.Decode(device, tensorflow::AllocatorAttributes(), out);
}

std::string Variants(int64_t announced, const std::string& content) {
  TensorProto proto;
  proto.set_dtype(tensorflow::DT_VARIANT);
  proto.mutable_tensor_shape()->add_dim()->set_size(announced);
  proto.set_tensor_content(content);
  if (content.empty()) proto.add_variant_val();  // TensorFlow would repeat it
  return proto.SerializeAsString();
}

void WhatWasSentComes(Device* device) {
  // An empty string, and one whose length needs 1, 2 or 4 bytes.
  for (const size_t length : {1, 255, 256, 70'000}) {
    Tensor sent(tensorflow::DT_STRING, TensorShape({2}));
    sent.flat<tensorflow::tstring>()(1) = std::string(length, '\0');
    const Tensor bytes = tensorwire::plugin::EncodeContents(sent);
    const std::string payload(tensorwire::plugin::BytesOf(bytes));
    const auto metadata = Metadata(tensorwire::plugin::kAsBytes, tensorflow::DT_STRING, 2);
    Tensor tensor;
    Check(Arrive(metadata, payload, device, &tensor).ok(), "two strings arrive");
    Check(tensor.flat<tensorflow::tstring>()(0).empty(), "as they were");
    Check(tensor.flat<tensorflow::tstring>()(1) == std::string(length, '\0'), "as they were");
    for (const int64_t other : {1, 3}) {
      const auto wrong = Metadata(tensorwire::plugin::kAsBytes, tensorflow::DT_STRING, other);
      Check(!Arrive(wrong, payload, device, &tensor).ok(), "another shape is refused");
    }
    for (const std::string& damaged :
         {payload.substr(1), payload + "x", payload.substr(0, payload.size() - 1)}) {
      Check(!Arrive(metadata, damaged, device, &tensor).ok(), "other strings are refused");
    }
  }
  const auto metadata = Metadata(tensorwire::plugin::kAsBytes, tensorflow::DT_VARIANT, 2);
  TensorProto floats;
  floats.set_dtype(tensorflow::DT_FLOAT);
  floats.mutable_tensor_shape()->add_dim()->set_size(2);
  floats.set_tensor_content("12345678");
  Tensor tensor;
  Check(!Arrive(metadata, floats.SerializeAsString(), device, &tensor).ok(),
        "another type than announced is refused");
}

void ElementsFromNowhereGetNoRoom(Device* device) {
  Tensor tensor;
  for (const auto& [dtype, bytes] : std::vector<std::pair<tensorflow::DataType, std::string>>{
           {tensorflow::DT_STRING, ""},
           {tensorflow::DT_STRING, "\1\1x"},
           {tensorflow::DT_STRING, "\3\1x"},
           {tensorflow::DT_VARIANT, Variants(kHuge, "")},
           {tensorflow::DT_VARIANT, Variants(kHuge, "\1x")}}) {
    const auto metadata = Metadata(tensorwire::plugin::kAsBytes, dtype, kHuge);
    Check(!Arrive(metadata, bytes, device, &tensor).ok(), "what is not there is refused");

    Tensor fused(tensorflow::DT_UINT8, TensorShape({128}));
    char* const header = const_cast<char*>(fused.tensor_data().data());
    std::memset(header, 0, 128);
    // Magic and number of parts; way, rank and type; offset, size, and the dimension.
    const uint64_t words[] = {0x1'46575431, 0x01'01 | static_cast<uint64_t>(dtype) << 16, 64,
                              bytes.size(), kHuge};
    std::memcpy(header, words, sizeof(words));
    std::memcpy(header + 64, bytes.data(), bytes.size());
    const absl::Status split = tensorwire::plugin::DecodeFused({fused, {}}, device, &tensor);
    Check(absl::StrContains(split.message(), "announced"), "nor do they come in a fused one");
  }
}

void WhatNoProtobufCanBeGetsNoRoom() {
  IncomingTensor incoming;
  std::vector<wire::MutableBuffer> into;
  const auto metadata = Metadata(tensorwire::plugin::kAsBytes, tensorflow::DT_VARIANT, 1);
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
