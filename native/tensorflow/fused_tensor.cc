#include "fused_tensor.h"

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "pool_allocator.h"
#include "tensor_codec.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

// The header, little-endian: magic (4 bytes), number of parts (4), and for each part its way (1),
// rank (1), type (2), 4 bytes of zero, offset (8) and size (8) of its bytes, and rank sizes of
// dimensions (8 each).

namespace tensorwire::plugin {
namespace {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr uint32_t kFusedMagic = 0x46575431;
constexpr size_t kAlignment = 64;
// A smaller part is copied. That is as fast as sharing, and a part that is kept for long does not
// keep the whole fused tensor.
constexpr uint64_t kSharedBytes = 1024;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class HeaderWriter {
 public:
  explicit HeaderWriter(char* at) : at_(at) {}
  template <typename T>
  void Put(T value) {
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
  }

 private:
  char* at_;
};

class HeaderReader {
 public:
  explicit HeaderReader(std::string_view bytes) : rest_(bytes) {}
  template <typename T>
  bool Get(T* value) {
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return true;
  }

 private:
  std::string_view rest_;
};

absl::Status Malformed(const char* what) {
  return absl::InternalError(std::string("tensor_fuse: what arrived is not a fused tensor: ") +
                             what);
}

struct PartHeader {
  FusedPart::Way way = FusedPart::Way::kMemory;
  DataType dtype = tensorflow::DT_INVALID;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  TensorShape shape;

  bool Read(HeaderReader* from);
};

bool PartHeader::Read(HeaderReader* from) {
  uint8_t way_number = 0;
  uint8_t rank = 0;
  uint16_t dtype_number = 0;
  uint32_t zero = 0;
  if (!from->Get(&way_number) || !from->Get(&rank) || !from->Get(&dtype_number) ||
      !from->Get(&zero) || !from->Get(&offset) || !from->Get(&bytes)) {
    return false;
  }
  if (way_number > static_cast<uint8_t>(FusedPart::Way::kApart) ||
      rank > TensorShape::MaxDimensions() || !tensorflow::DataType_IsValid(dtype_number)) {
    return false;
  }
  way = static_cast<FusedPart::Way>(way_number);
  dtype = static_cast<DataType>(dtype_number);
  for (int i = 0; i < rank; ++i) {
    int64_t size = 0;
    if (!from->Get(&size) || !shape.AddDimWithStatus(size).ok()) return false;
  }
  return true;
}

// Makes the tensor of a part whose bytes in `fused` are those of its memory (kMemory).
absl::Status SplitMemory(const Tensor& fused, const PartHeader& header, Tensor* part) {
  const int element_bytes = tensorflow::DataTypeSize(header.dtype);
  const uint64_t elements = static_cast<uint64_t>(header.shape.num_elements());
  if (!tensorflow::DataTypeCanUseMemcpy(header.dtype) || element_bytes <= 0 ||
      elements != header.bytes / element_bytes || header.bytes % element_bytes != 0) {
    return Malformed("a part is not of its shape's size");
  }
  const char* const bytes = fused.tensor_data().data() + header.offset;
  const bool aligned = reinterpret_cast<uintptr_t>(bytes) % kAlignment == 0;
  if (header.bytes >= kSharedBytes && aligned) {
    const auto begin = static_cast<int64_t>(header.offset);
    return part->BitcastFrom(fused.Slice(begin, begin + static_cast<int64_t>(header.bytes)),
                             header.dtype, header.shape);
  }
  *part = Tensor(header.dtype, header.shape);
  if (header.bytes > 0) {
    std::memcpy(const_cast<char*>(part->tensor_data().data()), bytes, header.bytes);
  }
  return absl::OkStatus();
}

}  // namespace

FusedPart::Way WayOf(const Tensor& tensor) {
  if (static_cast<int64_t>(tensor.TotalBytes()) >= kApartBytes) return FusedPart::Way::kApart;
  return tensorflow::DataTypeCanUseMemcpy(tensor.dtype()) ? FusedPart::Way::kMemory
                                                          : FusedPart::Way::kEncoded;
}

absl::Status Fuse(const std::vector<FusedPart>& parts, Tensor* fused) {
  std::vector<Tensor> encoded(parts.size());
  std::vector<std::string_view> bytes(parts.size());
  size_t header_bytes = 8;
  size_t payload_bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& tensor = parts[i].tensor;
    header_bytes += 24 + 8 * static_cast<size_t>(tensor.dims());
    if (parts[i].way == FusedPart::Way::kMemory) {
      bytes[i] = BytesOf(tensor);
    } else if (parts[i].way == FusedPart::Way::kEncoded) {
      encoded[i] = EncodeContents(tensor);
      bytes[i] = BytesOf(encoded[i]);
    }
    payload_bytes += Aligned(bytes[i].size());
  }
  size_t offset = Aligned(header_bytes);
  const size_t total = offset + payload_bytes;
  *fused = Tensor(HostMemoryFor(total), tensorflow::DT_UINT8, {static_cast<int64_t>(total)});
  if (!fused->IsInitialized()) {
    return absl::ResourceExhaustedError("tensor_fuse: no memory for " + std::to_string(total) +
                                        " bytes");
  }
  char* const begin = const_cast<char*>(fused->tensor_data().data());
  HeaderWriter header(begin);
  header.Put<uint32_t>(kFusedMagic);
  header.Put<uint32_t>(static_cast<uint32_t>(parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& tensor = parts[i].tensor;
    header.Put<uint8_t>(static_cast<uint8_t>(parts[i].way));
    header.Put<uint8_t>(static_cast<uint8_t>(tensor.dims()));
    header.Put<uint16_t>(static_cast<uint16_t>(tensor.dtype()));
    header.Put<uint32_t>(0);
    header.Put<uint64_t>(offset);
    header.Put<uint64_t>(bytes[i].size());
    for (int d = 0; d < tensor.dims(); ++d) header.Put<int64_t>(tensor.dim_size(d));
    if (!bytes[i].empty()) std::memcpy(begin + offset, bytes[i].data(), bytes[i].size());
    offset += Aligned(bytes[i].size());
  }
  return absl::OkStatus();
}

bool IsLongToSplit(const Tensor& fused) {
  constexpr size_t kQuickBytes = 64u << 10;
  constexpr uint32_t kQuickParts = 512;
  constexpr uint64_t kQuickEncodedBytes = 8u << 10;
  if (fused.dtype() != tensorflow::DT_UINT8 || fused.TotalBytes() <= kQuickBytes) return false;
  HeaderReader reader(BytesOf(fused));
  uint32_t magic = 0;
  uint32_t number = 0;
  if (!reader.Get(&magic) || !reader.Get(&number) || number > kQuickParts) return true;
  uint64_t encoded_bytes = 0;
  for (PartHeader header; number > 0 && header.Read(&reader); --number, header = PartHeader()) {
    if (header.way == FusedPart::Way::kEncoded) encoded_bytes += header.bytes;
  }
  return encoded_bytes > kQuickEncodedBytes;
}

absl::Status Split(const Tensor& fused, size_t count, tensorflow::DeviceBase* device,
                   std::vector<FusedPart>* parts) {
  if (fused.dtype() != tensorflow::DT_UINT8 || fused.dims() != 1) return Malformed("another type");
  const std::string_view data = BytesOf(fused);
  HeaderReader reader(data);
  uint32_t magic = 0;
  uint32_t number = 0;
  if (!reader.Get(&magic) || magic != kFusedMagic || !reader.Get(&number) || number != count) {
    return Malformed("another header");
  }
  parts->resize(count);
  for (FusedPart& part : *parts) {
    PartHeader header;
    if (!header.Read(&reader)) return Malformed("a part without a header");
    if (header.offset > data.size() || header.bytes > data.size() - header.offset) {
      return Malformed("a part that lies outside of it");
    }
    part.way = header.way;
    absl::Status status;
    if (part.way == FusedPart::Way::kMemory) {
      status = SplitMemory(fused, header, &part.tensor);
    } else if (part.way == FusedPart::Way::kEncoded) {
      status = DecodeContents(data.substr(header.offset, header.bytes), header.dtype, header.shape,
                              device, {}, &part.tensor);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
