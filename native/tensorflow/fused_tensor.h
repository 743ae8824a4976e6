#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorwire::plugin {

// One part of a fused tensor.
struct FusedPart {
  enum class Way : uint8_t {
    kMemory = 0,   // within the fused tensor, as it is in memory
    kEncoded = 1,  // within it, as EncodeContents makes it
    kApart = 2,    // in a message of its own, under its own key
  };
  Way way = Way::kMemory;
  tensorflow::Tensor tensor;  // unset for kApart after Split
};

// For a tensor of this size, the copy into a fused tensor takes as long as a message of its own.
constexpr int64_t kApartBytes = 128 << 10;

// How a tensor travels.
FusedPart::Way WayOf(const tensorflow::Tensor& tensor);

// Makes a DT_UINT8 vector that holds the parts: a header that describes them, then their bytes,
// each part aligned as TensorFlow aligns a tensor. Fails with ResourceExhausted if there is no
// memory.
absl::Status Fuse(const std::vector<FusedPart>& parts, tensorflow::Tensor* fused);

// True if splitting takes longer than handing it to another thread. A hint: the tensor may be
// malformed.
bool IsLongToSplit(const tensorflow::Tensor& fused);

// Splits a tensor that Fuse made. Large parts share its memory; kApart parts have no tensor yet.
// Fails with Internal for anything that Fuse does not make of `count` parts.
absl::Status Split(const tensorflow::Tensor& fused, size_t count, tensorflow::DeviceBase* device,
                   std::vector<FusedPart>* parts);

}  // namespace tensorwire::plugin
