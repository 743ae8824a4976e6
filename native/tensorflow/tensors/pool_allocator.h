#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "tensorflow/core/framework/allocator.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::plugin {

// TensorFlow's view of the process's BufferPool. Large tensors are allocated there, both those that
// arrive and those that the devices of a grpc++ server make. Small ones are left to TensorFlow's
// allocator.
class PoolAllocator : public tensorflow::Allocator {
 public:
  // Below this size malloc reuses memory well enough by itself.
  static constexpr size_t kMinBytes = 128u << 10;

  // The process has one, which is never destroyed, because tensors outlive servers. The cap on
  // unused memory is TENSORWIRE_POOL_MB, 1024 by default. 0 switches the pool off; then this is
  // null.
  static PoolAllocator* Get();

  std::string Name() override { return "tensorwire_pool"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override;
  void DeallocateRaw(void* memory) override;
  wire::BufferPool* pool() { return &pool_; }

 private:
  explicit PoolAllocator(const wire::BufferPool::Options& options) : pool_(options) {}
  void HintToMalloc(size_t bytes);

  wire::BufferPool pool_;
  std::atomic<size_t> hinted_bytes_{0};  // the largest block of which malloc was told
};

// The allocator for an arriving tensor of this size in CPU memory.
tensorflow::Allocator* HostMemoryFor(uint64_t bytes);

}  // namespace tensorwire::plugin
