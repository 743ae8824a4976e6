#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorwire::plugin {

// One of the tensors that travel as one.
struct FusedPart {
  enum class Way : uint8_t {
    kMemory = 0,  // within the fused tensor, as it lies in memory
    kProto = 1,   // within it, as a serialised TensorProto
    kDead = 2,    // there is no tensor
    kApart = 3,   // on its own, under a key of its own
  };
  Way way = Way::kDead;
  tensorflow::Tensor tensor;  // not of kDead; of kApart only where it is sent
};

// Copying a tensor of this size takes as long as a message of its own, which needs no copy.
constexpr int64_t kApartBytes = 128 << 10;

// The way that a live tensor takes.
FusedPart::Way WayOf(const tensorflow::Tensor& tensor);

// A DT_UINT8 vector that holds the parts: a header that describes them, and behind it their bytes,
// each part's aligned as TensorFlow aligns a tensor. ResourceExhausted where there is no memory.
absl::Status Fuse(const std::vector<FusedPart>& parts, tensorflow::Tensor* fused);

// True if splitting takes longer than handing it to another thread. A hint: the tensor may be
// malformed.
bool IsLongToSplit(const tensorflow::Tensor& fused);

// The parts of what Fuse made. They share its memory where that is worth while; those that are
// kApart have no tensor yet. Internal for anything that Fuse does not make of `count` parts.
absl::Status Split(const tensorflow::Tensor& fused, size_t count, tensorflow::DeviceBase* device,
                   std::vector<FusedPart>* parts);

}  // namespace tensorwire::plugin
