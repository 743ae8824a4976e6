#include "tensors/fused_tensor.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tensors/pool_allocator.h"
#include "tensors/tensor_codec.h"
#include "tensorwire/wire/message.h"

// The block's header, little-endian: magic (4 bytes), number of tensors (4), and for each its way
// (1), rank (1), type (2), 4 bytes of zero, offset (8) and size (8) of its bytes in the block, and
// rank sizes of dimensions (8 each).

namespace tensorwire::plugin {
namespace {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;

enum class Way : uint8_t {
  kMemory = 0,   // in the block, as it is in memory
  kEncoded = 1,  // in the block, as EncodeContents makes it
  kLarge = 2,    // the next one of FusedBytes::large
};

constexpr uint32_t kFusedMagic = 0x46575431;
constexpr size_t kAlignment = 64;
// Copying a tensor of this size into the block takes as long as a buffer of its own.
constexpr size_t kLargeBytes = 128u << 10;
// So that all can be lent at once (loans.cc).
constexpr size_t kMostLarge = 255;
// A smaller part is copied. That is as fast as sharing, and a part that is kept for long does not
// keep the whole block.
constexpr uint64_t kSharedBytes = 1024;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

absl::Status Malformed(const char* what) {
  return absl::InternalError(std::string("tensor_fuse: what arrived is not a fused tensor: ") +
                             what);
}

struct PartHeader {
  Way way = Way::kMemory;
  DataType dtype = tensorflow::DT_INVALID;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  TensorShape shape;

  bool Read(wire::MetadataReader* from);
};

bool PartHeader::Read(wire::MetadataReader* from) {
  uint8_t rank = 0;
  uint16_t dtype_number = 0;
  uint32_t zero = 0;
  if (!from->Get(&way) || !from->Get(&rank) || !from->Get(&dtype_number) || !from->Get(&zero) ||
      !from->Get(&offset) || !from->Get(&bytes) || way > Way::kLarge ||
      !tensorflow::DataType_IsValid(dtype_number)) {
    return false;
  }
  dtype = static_cast<DataType>(dtype_number);
  return ReadShape(from, rank, &shape);
}

// Makes the tensor whose memory is `bytes`, a vector of DT_UINT8.
absl::Status DecodeMemory(const Tensor& bytes, const PartHeader& header, Tensor* out) {
  const auto size = static_cast<uint64_t>(bytes.NumElements());
  if (!IsMemoryOf(header.dtype, header.shape, size)) {
    return Malformed("a part is not of its shape's size");
  }
  if (size >= kSharedBytes && bytes.IsAligned()) {
    return out->BitcastFrom(bytes, header.dtype, header.shape);
  }
  *out = Tensor(header.dtype, header.shape);
  if (size > 0) std::memcpy(MemoryOf(*out), BytesOf(bytes).data(), size);
  return absl::OkStatus();
}

REGISTER_UNARY_VARIANT_DECODE_FUNCTION(FusedTensors, "tensorwire::FusedTensors");

}  // namespace

Tensor MakeFused(FusedTensors fused) {
  Tensor tensor(tensorflow::DT_VARIANT, {});
  tensor.scalar<tensorflow::Variant>()() = std::move(fused);
  return tensor;
}

const FusedTensors* FusedIn(const Tensor& tensor) {
  if (tensor.dtype() != tensorflow::DT_VARIANT || tensor.dims() != 0) return nullptr;
  return tensor.scalar<tensorflow::Variant>()().get<FusedTensors>();
}

FusedBytes EncodeFused(const FusedTensors& fused) {
  FusedBytes made;
  const size_t count = fused.tensors.size();
  std::vector<Way> ways(count, Way::kMemory);
  std::vector<Tensor> encoded(count);
  std::vector<std::string_view> bytes(count);
  size_t header_bytes = 8;
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    const Tensor& tensor = fused.tensors[i];
    header_bytes += 24 + 8 * static_cast<size_t>(tensor.dims());
    if (!TravelsAsMemory(tensor)) {
      ways[i] = Way::kEncoded;
      encoded[i] = EncodeContents(tensor);
      bytes[i] = BytesOf(encoded[i]);
    } else if (tensor.TotalBytes() >= kLargeBytes && made.large.size() < kMostLarge) {
      ways[i] = Way::kLarge;
      made.large.push_back(tensor);
    } else {
      bytes[i] = BytesOf(tensor);
    }
    total += Aligned(bytes[i].size());
  }
  size_t offset = Aligned(header_bytes);
  total += offset;
  // Beside large tensors the block has to be in the pool, too, so that all is lent.
  const size_t room = made.large.empty() ? total : std::max(total, PoolAllocator::kMinBytes);
  made.block = BytesIn(HostMemoryFor(room), room);
  if (made.block.NumElements() == 0) return made;
  made.block = made.block.Slice(0, static_cast<int64_t>(total));
  char* const begin = MemoryOf(made.block);
  char* header = begin;
  const auto put = [&header](auto value) {
    std::memcpy(header, &value, sizeof(value));
    header += sizeof(value);
  };
  put(kFusedMagic);
  put(static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) {
    const Tensor& tensor = fused.tensors[i];
    put(ways[i]);
    put(static_cast<uint8_t>(tensor.dims()));
    put(static_cast<uint16_t>(tensor.dtype()));
    put(uint32_t{0});
    put(uint64_t{offset});
    put(uint64_t{bytes[i].size()});
    for (int d = 0; d < tensor.dims(); ++d) put(int64_t{tensor.dim_size(d)});
    if (!bytes[i].empty()) std::memcpy(begin + offset, bytes[i].data(), bytes[i].size());
    offset += Aligned(bytes[i].size());
  }
  return made;
}

absl::Status DecodeFused(const FusedBytes& bytes, tensorflow::DeviceBase* device, Tensor* out) {
  const std::string_view block = BytesOf(bytes.block);
  wire::MetadataReader reader(block);
  uint32_t magic = 0;
  uint32_t count = 0;
  if (!reader.Get(&magic) || magic != kFusedMagic || !reader.Get(&count)) {
    return Malformed("another header");
  }
  FusedTensors fused;
  auto large = bytes.large.begin();
  for (; count > 0; --count) {
    PartHeader header;
    if (!header.Read(&reader)) return Malformed("a part without a header");
    if (header.offset > block.size() || header.bytes > block.size() - header.offset) {
      return Malformed("a part that lies outside of it");
    }
    Tensor& part = fused.tensors.emplace_back();
    absl::Status status;
    if (header.way == Way::kEncoded) {
      status = DecodeContents(block.substr(header.offset, header.bytes), header.dtype, header.shape,
                              device, {}, &part);
    } else if (header.way == Way::kMemory) {
      const auto begin = static_cast<int64_t>(header.offset);
      const auto end = begin + static_cast<int64_t>(header.bytes);
      status = DecodeMemory(bytes.block.Slice(begin, end), header, &part);
    } else if (large == bytes.large.end()) {
      return Malformed("a part that is not there");
    } else {
      status = DecodeMemory(*large++, header, &part);
    }
    if (!status.ok()) return status;
  }
  if (large != bytes.large.end()) return Malformed("more parts than announced");
  *out = MakeFused(std::move(fused));
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
