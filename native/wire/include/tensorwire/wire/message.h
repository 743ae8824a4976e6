#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensorwire/wire/frame.h"

namespace tensorwire::wire {

struct ConstBuffer {
  const void* data = nullptr;
  size_t size = 0;
};

struct MutableBuffer {
  void* data = nullptr;
  size_t size = 0;
};

// An outgoing request or reply. Its metadata is copied, its payload is not: the buffers are written
// to the socket from where they are, and `KeepAlive` keeps them alive until then.
class Message {
 public:
  explicit Message(uint16_t method = 0) : method_(method) {
    head_.reserve(kUsualHeadBytes);
    head_.assign(kHeaderBytes, '\0');
  }

  void AppendMetadata(std::string_view bytes) { head_.append(bytes); }

  // Appends a little-endian number to the metadata.
  template <typename T>
  void Put(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    head_.append(bytes, sizeof(T));
  }

  void AddPayload(const void* data, size_t size) {
    if (size > 0) payload_.push_back({data, size});
  }
  void KeepAlive(std::shared_ptr<const void> owner) { owner_ = std::move(owner); }

  // Sets a payload that the message owns.
  void SetOwnedPayload(std::string bytes) {
    auto owned = std::make_shared<const std::string>(std::move(bytes));
    payload_.assign(1, ConstBuffer{owned->data(), owned->size()});
    if (owned->empty()) payload_.clear();
    owner_ = std::move(owned);
  }

  uint16_t method() const { return method_; }
  void set_method(uint16_t method) { method_ = method; }
  size_t metadata_bytes() const { return head_.size() - kHeaderBytes; }
  uint64_t payload_bytes() const {
    uint64_t bytes = 0;
    for (const ConstBuffer& buffer : payload_) bytes += buffer.size;
    return bytes;
  }

 private:
  friend struct OutFrame;
  friend class Loans;
  // Room for a tensor's metadata, so that a frame allocates its head once.
  static constexpr size_t kUsualHeadBytes = kHeaderBytes + 56;
  uint16_t method_;
  std::string head_;  // space for the header, then the metadata: one buffer for the gathering write
  std::vector<ConstBuffer> payload_;
  std::shared_ptr<const void> owner_;
};

// Reads numbers that Message::Put wrote; every read is checked.
class MetadataReader {
 public:
  explicit MetadataReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  bool Get(T* value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return true;
  }
  bool GetBytes(size_t size, std::string_view* out) {
    if (rest_.size() < size) return false;
    *out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

}  // namespace tensorwire::wire
