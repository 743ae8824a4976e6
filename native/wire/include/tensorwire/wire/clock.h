#pragma once

#include <chrono>
#include <cstdint>

namespace tensorwire::wire {

// Microseconds of the steady clock; its zero has no meaning.
inline int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline int64_t NowMs() { return NowUs() / 1000; }

}  // namespace tensorwire::wire
