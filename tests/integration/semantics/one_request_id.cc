// Replaces TensorFlow's generator of request ids in a process that is started with LD_PRELOAD. It
// has the same seed in every thread, so that each thread begins with the same id.

#include <cstdint>

namespace tsl::random {
uint64_t ThreadLocalNew64() {
  thread_local uint64_t drawn = 0;
  return ++drawn;
}
}  // namespace tsl::random
