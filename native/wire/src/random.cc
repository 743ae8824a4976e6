#include "random.h"

#include <sys/random.h>

#include <cerrno>
#include <utility>

namespace tensorwire::wire {

bool RandomBytes(void* to, size_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = getrandom(at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

uint64_t RandomNumbers::Next() {
  if (left_ == 0) {
    if (!source_(numbers_.data(), sizeof(numbers_))) return 0;
    left_ = numbers_.size();
  }
  return std::exchange(numbers_[--left_], 0);
}

}  // namespace tensorwire::wire
