#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorwire/wire/message.h"

namespace tensorwire::plugin {

// How a tensor travels. Metadata:
//
//   u8   flags        TensorFlags
//   u8   rank
//   u16  dtype        DataType
//   u32  made_us      of a reply: how long the request waited for the tensor to be made
//                     of a push: when it was made, by the producer's steady clock (its low bits)
//   i64  dimensions   `rank` of them
//   u8   large        with kFused: the number of large tensors
//   u64  bytes        of each of them
//   i64  numbers      with kOrderAccepted: when the order was accepted, by the producer's count of
//                     events, then the steps for which it does not hold; with kDeclined outside of
//                     steps: when the order was revoked
//
// The payload is the tensor's memory or, for types whose memory has no meaning outside the process
// (strings, variants, resources), what EncodeContents makes of it, or EncodeFused: the block, then
// the large tensors.
enum TensorFlags : uint8_t {
  kDead = 1,
  kAsBytes = 2,
  kOrderAccepted = 4,  // of a reply: tensors of this key are pushed in later steps
  kDeclined = 8,       // of a push: there is no tensor; the consumer has to request it this time
  kPushed = 16,        // of a reply: there is no tensor; it was pushed before the request came
  kFused = 32,         // the tensor is one of fused_tensor.h
};

// True if the tensor's memory itself is sent. Otherwise the tensor has to be encoded, which takes
// time.
bool TravelsAsMemory(const tensorflow::Tensor& tensor);

// Adds `tensor`, which is in host memory, to the message; keeps it alive until it has been sent.
// `flags`: kDead and kOrderAccepted as they apply.
void EncodeTensor(const tensorflow::Tensor& tensor, uint8_t flags, uint32_t made_us,
                  wire::Message* message);

// A tensor's contents as bytes, a DT_UINT8 vector in host memory:
//
//   of strings  u8 width (1, 2, 4 or 8), then the length of each in `width` bytes, then the strings
//   of others   a serialised TensorProto
//
// Without elements if there is no memory for it, or if a TensorProto would be 2 GB or more.
tensorflow::Tensor EncodeContents(const tensorflow::Tensor& tensor);

// Makes a tensor of this type and shape from what EncodeContents made. Fails with Internal for
// anything else, and allocates nothing for a few bytes that announce a large tensor.
absl::Status DecodeContents(std::string_view bytes, tensorflow::DataType dtype,
                            const tensorflow::TensorShape& shape, tensorflow::DeviceBase* device,
                            const tensorflow::AllocatorAttributes& attributes,
                            tensorflow::Tensor* out);

// Whether that many bytes are the memory of a tensor of this type and shape.
bool IsMemoryOf(tensorflow::DataType dtype, const tensorflow::TensorShape& shape, uint64_t bytes);

// Reads `rank` dimensions, 8 bytes each. False if they are not those of a shape.
bool ReadShape(wire::MetadataReader* reader, uint8_t rank, tensorflow::TensorShape* shape);

// A DT_UINT8 vector of `size` elements; without elements if there is no memory.
tensorflow::Tensor BytesIn(tensorflow::Allocator* allocator, uint64_t size);

// The memory of a tensor that nobody else has.
inline char* MemoryOf(const tensorflow::Tensor& tensor) {
  return const_cast<char*>(tensor.tensor_data().data());
}

// The bytes of a tensor of TravelsAsMemory in host memory.
inline std::string_view BytesOf(const tensorflow::Tensor& tensor) {
  // Of a type that cannot be copied as memory, TensorFlow does not allow to ask.
  if (tensor.NumElements() == 0) return {};
  const auto bytes = tensor.tensor_data();
  return {bytes.data(), bytes.size()};
}

// A tensor that arrives.
class IncomingTensor {
 public:
  // Reads the metadata, checks it against the payload's size, and allocates memory for the payload:
  // from `allocator`, unless the payload is encoded. Runs on a reactor.
  absl::Status Prepare(std::string_view metadata, uint64_t payload_bytes,
                       tensorflow::Allocator* allocator, std::vector<wire::MutableBuffer>* into);

  // After the payload has arrived: true if it still has to be decoded, false if tensor() is
  // complete.
  bool is_encoded() const { return (flags_ & kAsBytes) != 0; }
  absl::Status Decode(tensorflow::DeviceBase* device,
                      const tensorflow::AllocatorAttributes& attributes,
                      tensorflow::Tensor* out) const;

  bool order_accepted() const { return (flags_ & kOrderAccepted) != 0; }
  const std::vector<int64_t>& numbers() const { return numbers_; }
  bool declined() const { return (flags_ & kDeclined) != 0; }
  bool was_pushed() const { return (flags_ & kPushed) != 0; }
  bool is_dead() const { return (flags_ & kDead) != 0; }
  uint32_t made_us() const { return made_us_; }
  // When its metadata came, by this task's steady clock.
  int64_t head_us() const { return head_us_; }
  uint64_t payload_bytes() const { return payload_bytes_; }
  const tensorflow::Tensor& tensor() const { return tensor_; }

 private:
  uint8_t flags_ = 0;
  uint32_t made_us_ = 0;
  int64_t head_us_ = 0;
  uint64_t payload_bytes_ = 0;
  std::vector<int64_t> numbers_;
  tensorflow::Tensor tensor_;              // or its encoded contents
  std::vector<tensorflow::Tensor> large_;  // kFused only
  tensorflow::DataType dtype_ = tensorflow::DT_INVALID;
  tensorflow::TensorShape shape_;
};

}  // namespace tensorwire::plugin
