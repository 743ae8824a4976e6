// In the place of TensorFlow's, for a process that is started with LD_PRELOAD: the generator of
// request ids, which here has the same seed in every thread and so begins with the same number.

#include <cstdint>

namespace tsl::random {
uint64_t ThreadLocalNew64() {
  thread_local uint64_t drawn = 0;
  return ++drawn;
}
}  // namespace tsl::random
