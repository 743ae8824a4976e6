// Split takes apart what Fuse makes, and refuses everything else. Exits with 0 if all checks hold.

#include "fused_tensor.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"

namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorwire::plugin::Fuse;
using tensorwire::plugin::FusedPart;
using tensorwire::plugin::IsLongToSplit;
using tensorwire::plugin::Split;
using tensorwire::plugin::WayOf;

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

FusedPart Live(Tensor tensor) {
  FusedPart part;
  part.way = WayOf(tensor);
  part.tensor = std::move(tensor);
  return part;
}

std::vector<FusedPart> Parts() {
  Tensor floats(tensorflow::DT_FLOAT, TensorShape({3, 500}));
  floats.flat<float>().setConstant(1.5f);
  Tensor strings(tensorflow::DT_STRING, TensorShape({2}));
  strings.flat<tensorflow::tstring>()(0) = "a tensor";
  Tensor flag(tensorflow::DT_BOOL, TensorShape({}));
  flag.scalar<bool>()() = true;
  return {Live(floats),
          Live(strings),
          Live(flag),
          Live(Tensor(tensorflow::DT_INT64, TensorShape({0, 7}))),
          Live(Tensor(tensorflow::DT_UINT8, TensorShape({200'000})))};
}

bool Same(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (a.dtype() == tensorflow::DT_STRING) {
    return a.flat<tensorflow::tstring>()(0) == b.flat<tensorflow::tstring>()(0);
  }
  return a.tensor_data() == b.tensor_data();
}

void WhatWasFusedComesApartAgain(Device* device) {
  const std::vector<FusedPart> parts = Parts();
  Tensor fused;
  Check(Fuse(parts, &fused).ok(), "parts are fused");
  std::vector<FusedPart> found;
  Check(Split(fused, parts.size(), device, &found).ok(), "and come apart");
  Check(found.size() == parts.size(), "as many as there were");
  Check(found[4].way == FusedPart::Way::kApart, "a large one is to come on its own");
  for (const size_t i : {0, 1, 2, 3}) {
    Check(Same(parts[i].tensor, found[i].tensor), "tensors are as they were");
    Check(found[i].tensor.IsAligned(), "and aligned as kernels need it");
  }
  Check(!Split(fused, parts.size() + 1, device, &found).ok(), "another number of parts is refused");
  Check(!Split(parts[0].tensor, 1, device, &found).ok(), "a tensor of another type is refused");
}

void BadBytesAreRefusedOrReadAsTensors(Device* device) {
  const std::vector<FusedPart> parts = Parts();
  Tensor fused;
  Check(Fuse(parts, &fused).ok(), "parts are fused");
  std::vector<FusedPart> found;
  for (int64_t bytes = 0; bytes < 400; ++bytes) {
    Check(!Split(fused.Slice(0, bytes), parts.size(), device, &found).ok(),
          "a tensor that is cut off is refused");
  }
  std::mt19937_64 random(7);
  uint64_t sum = 0;
  for (int round = 0; round < 20'000; ++round) {
    Tensor changed(tensorflow::DT_UINT8, fused.shape());
    char* const bytes = const_cast<char*>(changed.tensor_data().data());
    std::memcpy(bytes, fused.tensor_data().data(), fused.TotalBytes());
    for (int changes = 0; changes < 3; ++changes)
      bytes[8 + random() % 300] = static_cast<char>(random());
    if (!Split(changed, parts.size(), device, &found).ok()) continue;
    for (const FusedPart& part : found) {  // every byte can be read
      if (part.way != FusedPart::Way::kMemory) continue;
      for (const char byte : part.tensor.tensor_data()) sum += static_cast<unsigned char>(byte);
    }
  }
  std::printf("%llu\n", static_cast<unsigned long long>(sum));
}

// A tensor that takes long to split must not be split on a reactor.
void WhatTakesLongToSplitIsKnown() {
  auto is_long = [](int count, const Tensor& tensor) {
    Tensor fused;
    Check(Fuse(std::vector<FusedPart>(count, Live(tensor)), &fused).ok(), "parts are fused");
    return IsLongToSplit(fused);
  };
  const Tensor floats(tensorflow::DT_FLOAT, TensorShape({1000}));
  const Tensor strings(tensorflow::DT_STRING, TensorShape({1000}));
  Check(!is_long(1, floats) && !is_long(200, floats), "parts that share memory are quick");
  Check(is_long(2000, floats), "very many are not");
  Check(!is_long(2, strings), "few strings are quick");
  Check(is_long(200, strings), "many are not");
  Check(!IsLongToSplit(floats), "what was not fused is refused at once");
  Check(IsLongToSplit(Tensor(tensorflow::DT_UINT8, TensorShape({0}))) == false, "nothing as well");
}

}  // namespace

int main() {
  Device device;
  WhatTakesLongToSplitIsKnown();
  WhatWasFusedComesApartAgain(&device);
  BadBytesAreRefusedOrReadAsTensors(&device);
  return failures == 0 ? 0 : 1;
}
