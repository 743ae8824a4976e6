#include "tensors/tensor_codec.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensors/fused_tensor.h"
#include "tensors/pool_allocator.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;

bool TravelsAsMemory(const Tensor& tensor) {
  return !tensor.IsInitialized() || tensor.NumElements() == 0 ||
         tensorflow::DataTypeCanUseMemcpy(tensor.dtype());
}

Tensor BytesIn(tensorflow::Allocator* allocator, uint64_t size) {
  Tensor bytes(allocator, tensorflow::DT_UINT8, {static_cast<int64_t>(size)});
  return bytes.IsInitialized() ? bytes : Tensor(tensorflow::DT_UINT8, {0});
}

void EncodeTensor(const Tensor& tensor, uint8_t flags, uint32_t made_us, wire::Message* message) {
  // A dead tensor may be uninitialised: it has a type and a shape, but no contents.
  const bool empty = !tensor.IsInitialized() || tensor.NumElements() == 0;
  const bool encoded = !empty && !TravelsAsMemory(tensor);
  const TensorShape& shape = tensor.shape();
  const FusedTensors* const fused = encoded ? FusedIn(tensor) : nullptr;
  message->Put<uint8_t>(
      static_cast<uint8_t>(flags | (encoded ? kAsBytes : 0) | (fused != nullptr ? kFused : 0)));
  message->Put<uint8_t>(static_cast<uint8_t>(shape.dims()));
  message->Put<uint16_t>(static_cast<uint16_t>(tensor.dtype()));
  message->Put<uint32_t>(made_us);
  for (int i = 0; i < shape.dims(); ++i) message->Put<int64_t>(shape.dim_size(i));
  if (empty) return;
  if (fused != nullptr) {
    auto sent = std::make_shared<FusedBytes>(EncodeFused(*fused));
    message->Put<uint8_t>(static_cast<uint8_t>(sent->large.size()));
    message->AddPayload(BytesOf(sent->block).data(), BytesOf(sent->block).size());
    for (const Tensor& large : sent->large) {
      message->Put<uint64_t>(BytesOf(large).size());
      message->AddPayload(BytesOf(large).data(), BytesOf(large).size());
    }
    message->KeepAlive(std::move(sent));
    return;
  }
  auto sent = std::make_shared<Tensor>(encoded ? EncodeContents(tensor) : tensor);
  const std::string_view bytes = BytesOf(*sent);
  message->AddPayload(bytes.data(), bytes.size());
  message->KeepAlive(std::move(sent));
}

namespace {

using tensorflow::tstring;

absl::Status NoMemoryFor(const TensorShape& shape) {
  return absl::ResourceExhaustedError("grpc++: no memory for an arriving tensor of shape " +
                                      shape.DebugString());
}

absl::Status MalformedMetadata() {
  return absl::InternalError("grpc++: a tensor with malformed metadata arrived");
}

absl::Status MalformedStrings() {
  return absl::InternalError(
      "grpc++: strings arrived that are not of the announced number or length");
}

Tensor EncodeStrings(const Tensor& tensor) {
  const auto strings = tensor.flat<tstring>();
  uint64_t longest = 0;
  uint64_t total = 0;
  for (int64_t i = 0; i < strings.size(); ++i) {
    longest = std::max<uint64_t>(longest, strings(i).size());
    total += strings(i).size();
  }
  const uint8_t width = longest <= UINT8_MAX    ? 1
                        : longest <= UINT16_MAX ? 2
                        : longest <= UINT32_MAX ? 4
                                                : 8;
  const uint64_t size = 1 + width * static_cast<uint64_t>(strings.size()) + total;
  Tensor bytes = BytesIn(HostMemoryFor(size), size);
  if (bytes.NumElements() == 0) return bytes;
  char* length_at = MemoryOf(bytes);
  *length_at++ = static_cast<char>(width);
  char* at = length_at + width * strings.size();
  for (int64_t i = 0; i < strings.size(); ++i) {
    const uint64_t length = strings(i).size();
    std::memcpy(length_at, &length, width);  // little-endian
    std::memcpy(at, strings(i).data(), length);
    length_at += width;
    at += length;
  }
  return bytes;
}

absl::Status DecodeStrings(std::string_view bytes, const TensorShape& shape,
                           tensorflow::Allocator* allocator, Tensor* out) {
  const auto count = static_cast<uint64_t>(shape.num_elements());
  const uint8_t width = bytes.empty() ? 0 : static_cast<uint8_t>(bytes.front());
  if ((width != 1 && width != 2 && width != 4 && width != 8) ||
      count > (bytes.size() - 1) / width) {
    return MalformedStrings();
  }
  std::string_view lengths = bytes.substr(1, width * count);
  std::string_view rest = bytes.substr(1 + width * count);
  *out = Tensor(allocator, tensorflow::DT_STRING, shape);
  if (!out->IsInitialized()) return NoMemoryFor(shape);
  for (tstring *to = out->flat<tstring>().data(), *end = to + count; to != end; ++to) {
    uint64_t length = 0;
    std::memcpy(&length, lengths.data(), width);
    if (length > rest.size()) return MalformedStrings();
    to->assign(rest.data(), length);
    lengths.remove_prefix(width);
    rest.remove_prefix(length);
  }
  return rest.empty() ? absl::OkStatus() : MalformedStrings();
}

}  // namespace

Tensor EncodeContents(const Tensor& tensor) {
  if (tensor.dtype() == tensorflow::DT_STRING) return EncodeStrings(tensor);
  tensorflow::TensorProto proto;
  tensor.AsProtoTensorContent(&proto);
  const size_t size = proto.ByteSizeLong();
  const bool fits = size < wire::kMaxRequestPayloadBytes;
  Tensor bytes = BytesIn(HostMemoryFor(size), fits ? size : 0);
  proto.SerializeToArray(MemoryOf(bytes), static_cast<int>(bytes.NumElements()));
  return bytes;
}

absl::Status DecodeContents(std::string_view bytes, DataType dtype, const TensorShape& shape,
                            tensorflow::DeviceBase* device,
                            const tensorflow::AllocatorAttributes& attributes, Tensor* out) {
  if (dtype == tensorflow::DT_STRING) {
    return DecodeStrings(bytes, shape, device->GetAllocator(attributes), out);
  }
  tensorflow::TensorProto proto;
  if (bytes.size() >= wire::kMaxRequestPayloadBytes ||
      !proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InternalError("grpc++: a TensorProto that cannot be parsed arrived");
  }
  if (proto.dtype() != dtype || !TensorShape::IsValid(proto.tensor_shape()) ||
      TensorShape(proto.tensor_shape()) != shape) {
    return absl::InternalError("grpc++: a tensor arrived of another type or shape than announced");
  }
  // TensorFlow allocates the whole shape before it looks at the elements, and repeats the last
  // element.
  if (shape.num_elements() > static_cast<int64_t>(proto.tensor_content().size())) {
    return absl::InternalError("grpc++: a tensor arrived that has fewer elements than announced");
  }
  absl::Status decoded = device->MakeTensorFromProto(proto, attributes, out);
  if (decoded.ok()) return decoded;
  return absl::InternalError("grpc++: a tensor arrived that cannot be decoded: " +
                             std::string(decoded.message()));
}

bool IsMemoryOf(DataType dtype, const TensorShape& shape, uint64_t bytes) {
  const auto elements = static_cast<uint64_t>(shape.num_elements());
  if (elements == 0) return bytes == 0;
  const auto element_bytes = static_cast<uint64_t>(tensorflow::DataTypeSize(dtype));
  return tensorflow::DataTypeCanUseMemcpy(dtype) && element_bytes > 0 &&
         elements == bytes / element_bytes && bytes % element_bytes == 0;
}

bool ReadShape(wire::MetadataReader* reader, uint8_t rank, TensorShape* shape) {
  if (rank > TensorShape::MaxDimensions()) return false;
  for (int i = 0; i < rank; ++i) {
    int64_t size = 0;
    if (!reader->Get(&size) || !shape->AddDimWithStatus(size).ok()) return false;
  }
  return true;
}

absl::Status IncomingTensor::Decode(tensorflow::DeviceBase* device,
                                    const tensorflow::AllocatorAttributes& attributes,
                                    Tensor* out) const {
  if ((flags_ & kFused) != 0) return DecodeFused({tensor_, large_}, device, out);
  return DecodeContents(BytesOf(tensor_), dtype_, shape_, device, attributes, out);
}

absl::Status IncomingTensor::Prepare(std::string_view metadata, uint64_t payload_bytes,
                                     tensorflow::Allocator* allocator,
                                     std::vector<wire::MutableBuffer>* into) {
  head_us_ = wire::ArrivedUs();
  payload_bytes_ = payload_bytes;
  wire::MetadataReader reader(metadata);
  uint8_t rank = 0;
  uint16_t dtype_number = 0;
  TensorShape shape;
  const bool well_formed = reader.Get(&flags_) && reader.Get(&rank) && reader.Get(&dtype_number) &&
                           reader.Get(&made_us_) && tensorflow::DataType_IsValid(dtype_number) &&
                           ReadShape(&reader, rank, &shape);
  if (!well_formed) return MalformedMetadata();
  uint64_t rest = payload_bytes;
  uint8_t large_count = 0;
  if ((flags_ & kFused) != 0 && !reader.Get(&large_count)) return MalformedMetadata();
  std::vector<uint64_t> large(large_count);
  for (uint64_t& bytes : large) {
    if (!reader.Get(&bytes) || bytes > rest) return MalformedMetadata();
    rest -= bytes;
  }
  if (order_accepted() || declined()) {
    for (int64_t number = 0; reader.Get(&number);) numbers_.push_back(number);
  }
  const auto dtype = static_cast<DataType>(dtype_number);

  if (is_encoded()) {
    if (dtype != tensorflow::DT_STRING && rest >= wire::kMaxRequestPayloadBytes) {
      return absl::InternalError("grpc++: a tensor arrived that is larger than a protobuf can be");
    }
    dtype_ = dtype;
    shape_ = std::move(shape);
    const auto add = [this, into](uint64_t size, Tensor* bytes) {
      *bytes = BytesIn(HostMemoryFor(size), size);
      if (BytesOf(*bytes).size() < size) return NoMemoryFor(shape_);
      if (size > 0) into->push_back({MemoryOf(*bytes), size});
      return absl::OkStatus();
    };
    absl::Status added = add(rest, &tensor_);
    for (size_t i = 0; i < large.size() && added.ok(); ++i) {
      added = add(large[i], &large_.emplace_back());
    }
    return added;
  }
  if (payload_bytes == 0 && (is_dead() || shape.num_elements() > 0)) {
    tensor_ = Tensor(dtype == tensorflow::DT_INVALID ? tensorflow::DT_FLOAT : dtype);
    return absl::OkStatus();  // dead: its contents are never read
  }
  if (!tensorflow::DataTypeCanUseMemcpy(dtype) && shape.num_elements() > 0) {
    return absl::InternalError("grpc++: a tensor of a type that cannot travel as memory arrived");
  }
  if (!IsMemoryOf(dtype, shape, payload_bytes)) {
    return absl::InternalError("grpc++: a tensor arrived whose payload is not of its shape's size");
  }
  tensor_ = Tensor(allocator, dtype, shape);
  if (!tensor_.IsInitialized() && payload_bytes > 0) {
    return NoMemoryFor(shape);
  }
  if (payload_bytes > 0) {
    into->push_back({MemoryOf(tensor_), payload_bytes});
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
