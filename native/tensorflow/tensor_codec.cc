#include "tensor_codec.h"

#include <memory>
#include <utility>

#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;

bool TravelsAsMemory(const Tensor& tensor) {
  return !tensor.IsInitialized() || tensor.NumElements() == 0 ||
         tensorflow::DataTypeCanUseMemcpy(tensor.dtype());
}

void EncodeTensor(const Tensor& tensor, uint8_t flags, uint32_t made_us, wire::Message* message) {
  // A dead tensor may be uninitialised: it has a type and a shape, but no contents.
  const bool empty = !tensor.IsInitialized() || tensor.NumElements() == 0;
  const bool as_proto = !empty && !TravelsAsMemory(tensor);
  const TensorShape& shape = tensor.shape();
  message->Put<uint8_t>(static_cast<uint8_t>(flags | (as_proto ? kAsProto : 0)));
  message->Put<uint8_t>(static_cast<uint8_t>(shape.dims()));
  message->Put<uint16_t>(static_cast<uint16_t>(tensor.dtype()));
  message->Put<uint32_t>(made_us);
  for (int i = 0; i < shape.dims(); ++i) message->Put<int64_t>(shape.dim_size(i));
  if (empty) return;
  if (as_proto) {
    tensorflow::TensorProto proto;
    tensor.AsProtoTensorContent(&proto);
    message->SetOwnedPayload(proto.SerializeAsString());
    return;
  }
  const auto bytes = tensor.tensor_data();
  message->AddPayload(bytes.data(), bytes.size());
  message->KeepAlive(std::make_shared<Tensor>(tensor));
}

absl::Status TensorFromProto(std::string_view bytes, DataType dtype, const TensorShape& shape,
                             tensorflow::DeviceBase* device,
                             const tensorflow::AllocatorAttributes& attributes, Tensor* out) {
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

absl::Status IncomingTensor::Prepare(std::string_view metadata, uint64_t payload_bytes,
                                     tensorflow::Allocator* allocator,
                                     std::vector<wire::MutableBuffer>* into) {
  head_us_ = wire::ArrivedUs();
  payload_bytes_ = payload_bytes;
  wire::MetadataReader reader(metadata);
  uint8_t rank = 0;
  uint16_t dtype_number = 0;
  TensorShape shape;
  bool well_formed = reader.Get(&flags_) && reader.Get(&rank) && reader.Get(&dtype_number) &&
                     reader.Get(&made_us_) && rank <= TensorShape::MaxDimensions() &&
                     tensorflow::DataType_IsValid(dtype_number);
  for (int i = 0; well_formed && i < rank; ++i) {
    int64_t size = 0;
    well_formed = reader.Get(&size) && shape.AddDimWithStatus(size).ok();
  }
  if (!well_formed) return absl::InternalError("grpc++: a tensor with malformed metadata arrived");
  if (order_accepted() || declined()) {
    for (int64_t number = 0; reader.Get(&number);) numbers_.push_back(number);
  }
  const auto dtype = static_cast<DataType>(dtype_number);

  if (as_proto()) {
    if (payload_bytes >= wire::kMaxRequestPayloadBytes) {
      return absl::InternalError("grpc++: a tensor arrived that is larger than a protobuf can be");
    }
    proto_dtype_ = dtype;
    proto_shape_ = std::move(shape);
    proto_bytes_.resize(payload_bytes);
    into->push_back({proto_bytes_.data(), proto_bytes_.size()});
    return absl::OkStatus();
  }
  if (payload_bytes == 0 && (is_dead() || shape.num_elements() > 0)) {
    tensor_ = Tensor(dtype == tensorflow::DT_INVALID ? tensorflow::DT_FLOAT : dtype);
    return absl::OkStatus();  // dead: its contents are never read
  }
  if (!tensorflow::DataTypeCanUseMemcpy(dtype) && shape.num_elements() > 0) {
    return absl::InternalError("grpc++: a tensor of a type that cannot travel as memory arrived");
  }
  const auto elements = static_cast<uint64_t>(shape.num_elements());
  const auto element_bytes = static_cast<uint64_t>(tensorflow::DataTypeSize(dtype));
  if (element_bytes == 0
          ? payload_bytes != 0
          : elements != payload_bytes / element_bytes || payload_bytes % element_bytes != 0) {
    return absl::InternalError("grpc++: a tensor arrived whose payload is not of its shape's size");
  }
  tensor_ = Tensor(allocator, dtype, shape);
  if (!tensor_.IsInitialized() && payload_bytes > 0) {
    return absl::ResourceExhaustedError("grpc++: no memory for an arriving tensor of shape " +
                                        shape.DebugString());
  }
  if (payload_bytes > 0) {
    into->push_back({const_cast<char*>(tensor_.tensor_data().data()), payload_bytes});
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
