#include "pool_allocator.h"

#include <cstdlib>

#include "tensorflow/core/platform/logging.h"

namespace tensorwire::plugin {

PoolAllocator* PoolAllocator::Get() {
  static PoolAllocator* const allocator = []() -> PoolAllocator* {
    wire::BufferPool::Options options;
    if (const char* text = std::getenv("TENSORWIRE_POOL_MB"); text != nullptr && *text != '\0') {
      char* end = nullptr;
      const unsigned long long megabytes = std::strtoull(text, &end, 10);
      if (*end != '\0') {
        LOG(WARNING) << "grpc++: TENSORWIRE_POOL_MB=" << text << " is not a number; using "
                     << (options.kept_bytes_cap >> 20);
      } else {
        options.kept_bytes_cap = static_cast<size_t>(megabytes) << 20;
      }
    }
    if (options.kept_bytes_cap == 0) return nullptr;
    return new PoolAllocator(options);
  }();
  return allocator;
}

tensorflow::Allocator* HostMemoryFor(uint64_t bytes) {
  PoolAllocator* const pool = PoolAllocator::Get();
  if (bytes >= PoolAllocator::kMinBytes && pool != nullptr) return pool;
  return tensorflow::cpu_allocator();
}

}  // namespace tensorwire::plugin
