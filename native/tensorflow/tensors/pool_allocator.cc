#include "tensors/pool_allocator.h"

#include <cstdlib>

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
    HintToMalloc(bytes);
    if (void* const block = pool_.Acquire(bytes); block != nullptr) return block;
  }
  return tensorflow::cpu_allocator()->AllocateRaw(alignment, bytes);
}

// malloc maps each block from 128 KiB on anew, until it sees that the program frees and allocates
// blocks of a size again and again. The pool takes those blocks away; without this hint, all other
// large blocks of the process, such as NumPy's, would stay mapped and cost a page fault a page.
void PoolAllocator::HintToMalloc(size_t bytes) {
  constexpr size_t kMostBytes = 32u << 20;  // malloc learns from no larger block
  if (bytes > kMostBytes) return;
  size_t before = hinted_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes <= before) return;
  } while (!hinted_bytes_.compare_exchange_weak(before, bytes, std::memory_order_relaxed));
  void* volatile block = std::malloc(bytes);  // volatile: a compiler may leave out the pair
  std::free(block);
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
