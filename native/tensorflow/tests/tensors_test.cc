// The formats of tensors: what is sent arrives as it was, and what differs from what was announced
// is refused before memory is allocated for it. Compiled as one unit with the plug-in's files
// (tests/plugin_unit.py).

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "calls/proto_call.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "tensors/fused_tensor.h"
#include "tensors/tensor_codec.h"

// TensorFlow's logging has macros of these names.
#undef CHECK
#undef CHECK_EQ
#include "../../wire/tests/check.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorProto;
using tensorflow::TensorShape;

constexpr int64_t kHuge = int64_t{1} << 27;  // strings of 24 bytes: 3 GiB
constexpr int64_t kMostMb = 256;             // limit for the test's memory beside TensorFlow's

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

Device* TestDevice() {
  static auto* const device = new Device;
  return device;
}

FusedTensors Parts() {
  Tensor floats(tensorflow::DT_FLOAT, TensorShape({3, 500}));
  floats.flat<float>().setConstant(1.5f);
  Tensor strings(tensorflow::DT_STRING, TensorShape({2}));
  strings.flat<tensorflow::tstring>()(0) = "a tensor";
  strings.flat<tensorflow::tstring>()(1) = std::string(200'000, 's');
  Tensor flag(tensorflow::DT_BOOL, TensorShape({}));
  flag.scalar<bool>()() = true;
  Tensor large(tensorflow::DT_INT16, TensorShape({70'000}));
  large.flat<int16_t>().setConstant(7);
  return {{floats, strings, flag, Tensor(tensorflow::DT_INT64, TensorShape({0, 7})), large,
           Tensor(tensorflow::DT_STRING, TensorShape({0, 2})),
           // One that has memory, and still no elements.
           Tensor(tensorflow::DT_STRING, TensorShape({1, 2})).Slice(0, 0)}};
}

// What arrives: the large tensors as bytes.
FusedBytes Arrived(const FusedBytes& sent) {
  FusedBytes arrived{sent.block, {}};
  for (const Tensor& tensor : sent.large) {
    Tensor& bytes =
        arrived.large.emplace_back(BytesIn(tensorflow::cpu_allocator(), BytesOf(tensor).size()));
    std::memcpy(MemoryOf(bytes), BytesOf(tensor).data(), BytesOf(tensor).size());
  }
  return arrived;
}

bool Same(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (a.dtype() == tensorflow::DT_STRING) {
    const auto strings = a.flat<tensorflow::tstring>();
    return std::equal(strings.data(), strings.data() + strings.size(),
                      b.flat<tensorflow::tstring>().data());
  }
  return a.tensor_data() == b.tensor_data();
}

TEST(what_was_fused_comes_apart_again) {
  const FusedTensors parts = Parts();
  const FusedBytes sent = EncodeFused(parts);
  CHECK(sent.large.size() == 1);
  Tensor fused;
  CHECK(DecodeFused(Arrived(sent), TestDevice(), &fused).ok());
  const FusedTensors* const found = FusedIn(fused);
  CHECK(found != nullptr && found->tensors.size() == parts.tensors.size());
  for (size_t i = 0; i < parts.tensors.size(); ++i) {
    CHECK(Same(parts.tensors[i], found->tensors[i]));
    CHECK(found->tensors[i].IsAligned());
  }
  FusedBytes wrong = Arrived(sent);
  wrong.large.clear();
  CHECK(!DecodeFused(wrong, TestDevice(), &fused).ok());
  wrong.large = {sent.block, sent.block};
  CHECK(!DecodeFused(wrong, TestDevice(), &fused).ok());
  CHECK(FusedIn(sent.block) == nullptr);
}

TEST(fused_tensors_travel_as_variants_over_grpc) {
  const FusedTensors parts = Parts();
  tensorflow::TensorProto proto;
  MakeFused(parts).AsProtoTensorContent(&proto);
  Tensor parsed;
  CHECK(parsed.FromProto(proto));
  const FusedTensors* const found = FusedIn(parsed);
  CHECK(found != nullptr && found->tensors.size() == parts.tensors.size());
  for (size_t i = 0; i < parts.tensors.size(); ++i) {
    CHECK(Same(parts.tensors[i], found->tensors[i]));
  }
}

TEST(as_many_large_tensors_are_lent_as_a_loan_has_room_for) {
  FusedTensors many;
  many.tensors.assign(300, Tensor(tensorflow::DT_UINT8, TensorShape({131'072})));
  const FusedBytes sent = EncodeFused(many);
  CHECK(sent.large.size() == 255);
  Tensor fused;
  CHECK(DecodeFused(Arrived(sent), TestDevice(), &fused).ok());
  CHECK(FusedIn(fused)->tensors.size() == 300);
}

TEST(bad_bytes_are_refused_or_read_as_tensors) {
  const FusedBytes sent = Arrived(EncodeFused(Parts()));
  Tensor out;
  for (int64_t bytes = 0; bytes < 400; ++bytes) {
    CHECK(!DecodeFused({sent.block.Slice(0, bytes), sent.large}, TestDevice(), &out).ok());
  }
  std::mt19937_64 random(7);
  uint64_t sum = 0;
  const std::string_view block = BytesOf(sent.block);
  for (int round = 0; round < 20'000; ++round) {
    Tensor changed = BytesIn(tensorflow::cpu_allocator(), static_cast<int64_t>(block.size()));
    std::memcpy(MemoryOf(changed), block.data(), block.size());
    for (int changes = 0; changes < 3; ++changes) {
      MemoryOf(changed)[8 + random() % 300] = static_cast<char>(random());
    }
    if (!DecodeFused({changed, sent.large}, TestDevice(), &out).ok()) continue;
    for (const Tensor& part : FusedIn(out)->tensors) {  // every byte can be read
      if (!tensorflow::DataTypeCanUseMemcpy(part.dtype())) continue;
      for (const char byte : part.tensor_data()) sum += static_cast<unsigned char>(byte);
    }
  }
  CHECK(sum > 0);  // some can be decoded
}

std::string Metadata(uint8_t flags, tensorflow::DataType dtype, int64_t elements) {
  std::string bytes(16, '\0');  // flags, rank, type, when it was made, one dimension
  const auto type = static_cast<uint16_t>(dtype);
  bytes[0] = static_cast<char>(flags);
  bytes[1] = 1;
  std::memcpy(&bytes[2], &type, sizeof(type));
  std::memcpy(&bytes[8], &elements, sizeof(elements));
  return bytes;
}

absl::Status Arrive(const std::string& metadata, const std::string& payload, Tensor* out) {
  IncomingTensor incoming;
  std::vector<wire::MutableBuffer> into;
  absl::Status status =
      incoming.Prepare(metadata, payload.size(), tensorflow::cpu_allocator(), &into);
  if (!status.ok()) return status;
  if (!into.empty()) std::memcpy(into.at(0).data, payload.data(), into.at(0).size);
  return incoming.Decode(TestDevice(), tensorflow::AllocatorAttributes(), out);
}

std::string Variants(int64_t announced, const std::string& content) {
  TensorProto proto;
  proto.set_dtype(tensorflow::DT_VARIANT);
  proto.mutable_tensor_shape()->add_dim()->set_size(announced);
  proto.set_tensor_content(content);
  if (content.empty()) proto.add_variant_val();  // TensorFlow would repeat it
  return proto.SerializeAsString();
}

TEST(strings_arrive_as_they_were_and_others_than_announced_are_refused) {
  // An empty string, and one whose length needs 1, 2 or 4 bytes.
  for (const size_t length : {1, 255, 256, 70'000}) {
    Tensor sent(tensorflow::DT_STRING, TensorShape({2}));
    sent.flat<tensorflow::tstring>()(1) = std::string(length, '\0');
    const Tensor bytes = EncodeContents(sent);
    const std::string payload(BytesOf(bytes));
    const auto metadata = Metadata(kAsBytes, tensorflow::DT_STRING, 2);
    Tensor tensor;
    CHECK(Arrive(metadata, payload, &tensor).ok());
    CHECK(tensor.flat<tensorflow::tstring>()(0).empty());
    CHECK(tensor.flat<tensorflow::tstring>()(1) == std::string(length, '\0'));
    for (const int64_t other : {1, 3}) {
      const auto wrong = Metadata(kAsBytes, tensorflow::DT_STRING, other);
      CHECK(!Arrive(wrong, payload, &tensor).ok());
    }
    for (const std::string& damaged :
         {payload.substr(1), payload + "x", payload.substr(0, payload.size() - 1)}) {
      CHECK(!Arrive(metadata, damaged, &tensor).ok());
    }
  }
  const auto metadata = Metadata(kAsBytes, tensorflow::DT_VARIANT, 2);
  TensorProto floats;
  floats.set_dtype(tensorflow::DT_FLOAT);
  floats.mutable_tensor_shape()->add_dim()->set_size(2);
  floats.set_tensor_content("12345678");
  Tensor tensor;
  CHECK(!Arrive(metadata, floats.SerializeAsString(), &tensor).ok());
}

TEST(elements_that_are_not_there_get_no_memory) {
  const int64_t before_mb = PeakMb();
  Tensor tensor;
  for (const auto& [dtype, bytes] : std::vector<std::pair<tensorflow::DataType, std::string>>{
           {tensorflow::DT_STRING, ""},
           {tensorflow::DT_STRING, "\1\1x"},
           {tensorflow::DT_STRING, "\3\1x"},
           {tensorflow::DT_VARIANT, Variants(kHuge, "")},
           {tensorflow::DT_VARIANT, Variants(kHuge, "\1x")}}) {
    const auto metadata = Metadata(kAsBytes, dtype, kHuge);
    CHECK(!Arrive(metadata, bytes, &tensor).ok());

    Tensor fused(tensorflow::DT_UINT8, TensorShape({128}));
    char* const header = const_cast<char*>(fused.tensor_data().data());
    std::memset(header, 0, 128);
    // Magic and number of parts; way, rank and type; offset, size, and the dimension.
    const uint64_t words[] = {0x1'46575431, 0x01'01 | static_cast<uint64_t>(dtype) << 16, 64,
                              bytes.size(), kHuge};
    std::memcpy(header, words, sizeof(words));
    std::memcpy(header + 64, bytes.data(), bytes.size());
    const absl::Status split = DecodeFused({fused, {}}, TestDevice(), &tensor);
    CHECK(absl::StrContains(split.message(), "announced"));
  }
  CHECK(PeakMb() - before_mb < kMostMb);
}

TEST(what_no_protobuf_can_be_gets_no_memory) {
  const int64_t before_mb = PeakMb();
  IncomingTensor incoming;
  std::vector<wire::MutableBuffer> into;
  const auto metadata = Metadata(kAsBytes, tensorflow::DT_VARIANT, 1);
  for (const uint64_t bytes : {wire::kMaxRequestPayloadBytes, uint64_t{1} << 39}) {
    CHECK(!incoming.Prepare(metadata, bytes, tensorflow::cpu_allocator(), &into).ok());
    tensorflow::RunGraphResponse response;
    ProtoCall call(&response, [](const absl::Status&) {});
    CHECK(!call.PrepareFromReactor("", bytes, &into).ok());
  }
  // 2^60 + 1 elements of 16 bytes are 16 bytes in 64 bits.
  const auto wraps = Metadata(0, tensorflow::DT_COMPLEX128, (int64_t{1} << 60) + 1);
  CHECK(!incoming.Prepare(wraps, 16, tensorflow::cpu_allocator(), &into).ok());
  CHECK(into.empty());
  CHECK(PeakMb() - before_mb < kMostMb);
}

}  // namespace
}  // namespace tensorwire::plugin
