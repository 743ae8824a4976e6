// DecodeFused takes apart what EncodeFused makes, and refuses everything else. Exits with 0 if all
// checks hold.

#include "tensors/fused_tensor.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tensors/tensor_codec.h"

namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorwire::plugin::BytesIn;
using tensorwire::plugin::BytesOf;
using tensorwire::plugin::DecodeFused;
using tensorwire::plugin::EncodeFused;
using tensorwire::plugin::FusedBytes;
using tensorwire::plugin::FusedIn;
using tensorwire::plugin::FusedTensors;
using tensorwire::plugin::MemoryOf;

int failures = 0;

void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  ++failures;
}

class Device : public tensorflow::DeviceBase {
 public:
  Device() : DeviceBase(tensorflow::Env::Default()) {}
  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes) override {
    return tensorflow::cpu_allocator();
  }
  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                   const tensorflow::AllocatorAttributes, Tensor* tensor) override {
    return tensor->FromProto(proto) ? absl::OkStatus() : absl::InternalError("not a tensor");
  }
};

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

void WhatWasFusedComesApartAgain(Device* device) {
  const FusedTensors parts = Parts();
  const FusedBytes sent = EncodeFused(parts);
  Check(sent.large.size() == 1, "a large tensor is not copied into the block");
  Tensor fused;
  Check(DecodeFused(Arrived(sent), device, &fused).ok(), "tensors come apart");
  const FusedTensors* const found = FusedIn(fused);
  Check(found != nullptr && found->tensors.size() == parts.tensors.size(), "as many as there were");
  for (size_t i = 0; i < parts.tensors.size(); ++i) {
    Check(Same(parts.tensors[i], found->tensors[i]), "tensors are as they were");
    Check(found->tensors[i].IsAligned(), "and aligned as kernels need it");
  }
  FusedBytes wrong = Arrived(sent);
  wrong.large.clear();
  Check(!DecodeFused(wrong, device, &fused).ok(), "a large tensor that is not there is refused");
  wrong.large = {sent.block, sent.block};
  Check(!DecodeFused(wrong, device, &fused).ok(), "and one of another size");
  Check(FusedIn(sent.block) == nullptr, "other tensors hold nothing");
}

void VariantsOfTensorFlowHoldThem() {
  const FusedTensors parts = Parts();
  tensorflow::TensorProto proto;
  tensorwire::plugin::MakeFused(parts).AsProtoTensorContent(&proto);
  Tensor parsed;
  Check(parsed.FromProto(proto), "they travel over gRPC");
  const FusedTensors* const found = FusedIn(parsed);
  Check(found != nullptr && found->tensors.size() == parts.tensors.size(), "as many as there were");
  for (size_t i = 0; i < parts.tensors.size(); ++i) {
    Check(Same(parts.tensors[i], found->tensors[i]), "tensors are as they were");
  }
}

void ManyLargeTensorsAreLentAtOnce(Device* device) {
  FusedTensors many;
  many.tensors.assign(300, Tensor(tensorflow::DT_UINT8, TensorShape({131'072})));
  const FusedBytes sent = EncodeFused(many);
  Check(sent.large.size() == 255, "as many as a loan has room for, beside the block");
  Tensor fused;
  Check(DecodeFused(Arrived(sent), device, &fused).ok(), "and all come apart");
  Check(FusedIn(fused)->tensors.size() == 300, "as many as there were");
}

void BadBytesAreRefusedOrReadAsTensors(Device* device) {
  const FusedBytes sent = Arrived(EncodeFused(Parts()));
  Tensor out;
  for (int64_t bytes = 0; bytes < 400; ++bytes) {
    Check(!DecodeFused({sent.block.Slice(0, bytes), sent.large}, device, &out).ok(),
          "a tensor that is cut off is refused");
  }
  std::mt19937_64 random(7);
  uint64_t sum = 0;
  for (int round = 0; round < 20'000; ++round) {
    const auto size = static_cast<int64_t>(10'000);
    Tensor changed = BytesIn(tensorflow::cpu_allocator(), size);
    std::memcpy(MemoryOf(changed), BytesOf(sent.block).data(), size);
    for (int changes = 0; changes < 3; ++changes) {
      MemoryOf(changed)[8 + random() % 300] = static_cast<char>(random());
    }
    if (!DecodeFused({changed, sent.large}, device, &out).ok()) continue;
    for (const Tensor& part : FusedIn(out)->tensors) {  // every byte can be read
      if (!tensorflow::DataTypeCanUseMemcpy(part.dtype())) continue;
      for (const char byte : part.tensor_data()) sum += static_cast<unsigned char>(byte);
    }
  }
  std::printf("%llu\n", static_cast<unsigned long long>(sum));
}

}  // namespace

int main() {
  Device device;
  VariantsOfTensorFlowHoldThem();
  ManyLargeTensorsAreLentAtOnce(&device);
  WhatWasFusedComesApartAgain(&device);
  BadBytesAreRefusedOrReadAsTensors(&device);
  return failures == 0 ? 0 : 1;
}
