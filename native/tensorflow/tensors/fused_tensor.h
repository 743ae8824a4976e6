#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tensorwire::plugin {

// The tensors of a group that travel as one: what a scalar of type DT_VARIANT holds.
struct FusedTensors {
  std::vector<tensorflow::Tensor> tensors;

  // How TensorFlow encodes it where tensors go over gRPC.
  std::string TypeName() const { return "tensorwire::FusedTensors"; }
  std::string DebugString() const { return TypeName(); }
  void Encode(tensorflow::VariantTensorData* data) const {
    for (const tensorflow::Tensor& tensor : tensors) *data->add_tensors() = tensor;
  }
  bool Decode(const tensorflow::VariantTensorData& data) {
    tensors = data.tensors();
    return true;
  }
};

tensorflow::Tensor MakeFused(FusedTensors fused);
// What such a tensor holds; null for any other tensor.
const FusedTensors* FusedIn(const tensorflow::Tensor& tensor);

// Fused tensors on grpc++: a block of bytes, which has a header that describes the tensors and the
// small ones, each aligned as TensorFlow aligns a tensor; and each large tensor as it is in memory.
struct FusedBytes {
  tensorflow::Tensor block;
  std::vector<tensorflow::Tensor> large;
};

// The block has no elements if there is no memory.
FusedBytes EncodeFused(const FusedTensors& fused);

// Makes a tensor as of MakeFused from what EncodeFused made and what arrived as DT_UINT8 vectors.
// Its tensors share their memory. Fails with Internal for anything else.
absl::Status DecodeFused(const FusedBytes& bytes, tensorflow::DeviceBase* device,
                         tensorflow::Tensor* out);

}  // namespace tensorwire::plugin
