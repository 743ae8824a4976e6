#include "pool_allocator.h"

#include <cstdlib>
#include <string>

#include "tensorflow/core/platform/logging.h"

namespace tensorwire::plugin {
namespace {

constexpr size_t kBlockAlignment = 4096;  // no machine has smaller pages

}  // namespace

PoolAllocator* PoolAllocator::Get() {
  static PoolAllocator* const allocator = []() -> PoolAllocator* {
    wire::BufferPool::Options options;
    options.shared = true;
    if (const char* text = std::getenv("TENSORWIRE_POOL_MB"); text != nullptr && *text != '\0') {
      char* end = nullptr;
      const unsigned long long megabytes = std::strtoull(text, &end, 10);
      if (*end != '\0') {
        // As text: TensorFlow 2.18 to 2.20 do not export the function that logs a number.
        LOG(WARNING) << "grpc++: TENSORWIRE_POOL_MB=" << text << " is not a number; using "
                     << std::to_string(options.kept_bytes_cap >> 20);
      } else {
        options.kept_bytes_cap = static_cast<size_t>(megabytes) << 20;
      }
    }
    if (options.kept_bytes_cap == 0) return nullptr;
    return new PoolAllocator(options);
  }();
  return allocator;
}

void* PoolAllocator::AllocateRaw(size_t alignment, size_t bytes) {
  if (bytes >= kMinBytes && alignment <= kBlockAlignment) {
    if (void* const block = pool_.Acquire(bytes); block != nullptr) return block;
  }
  return tensorflow::cpu_allocator()->AllocateRaw(alignment, bytes);
}

void PoolAllocator::DeallocateRaw(void* memory) {
  if (pool_.Owns(memory)) {
    pool_.Release(memory);
  } else {
    tensorflow::cpu_allocator()->DeallocateRaw(memory);
  }
}

tensorflow::Allocator* HostMemoryFor(uint64_t bytes) {
  PoolAllocator* const pool = PoolAllocator::Get();
  if (bytes >= PoolAllocator::kMinBytes && pool != nullptr) return pool;
  return tensorflow::cpu_allocator();
}

}  // namespace tensorwire::plugin
