#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tensorwire::wire {

// Fills `to` with unpredictable bytes. False if the system has none.
bool RandomBytes(void* to, size_t bytes);

// Unpredictable numbers, many for one system call. Not thread-safe.
class RandomNumbers {
 public:
  using Source = bool (*)(void* to, size_t bytes);
  explicit RandomNumbers(Source source = RandomBytes) : source_(source) {}

  // 0 if the system has no random bytes.
  uint64_t Next();

 private:
  const Source source_;
  std::array<uint64_t, 32> numbers_{};
  size_t left_ = 0;
};

}  // namespace tensorwire::wire
