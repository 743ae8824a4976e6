#pragma once

#include <string>

#include "tensorflow/core/framework/allocator.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::plugin {

// TensorFlow's view of the process's BufferPool: where large tensors that arrive are put.
class PoolAllocator : public tensorflow::Allocator {
 public:
  // Below this size malloc keeps memory well enough by itself.
  static constexpr size_t kMinBytes = 128u << 10;

  // One for the process, and for its life: tensors outlive servers. The cap on unused memory is
  // TENSORWIRE_POOL_MB, 1024 by default; 0 switches the pool off: then null.
  static PoolAllocator* Get();

  std::string Name() override { return "tensorwire_pool"; }
  void* AllocateRaw(size_t /*alignment*/, size_t bytes) override { return pool_.Acquire(bytes); }
  void DeallocateRaw(void* memory) override { pool_.Release(memory); }
  wire::BufferPool::Stats stats() const { return pool_.stats(); }

 private:
  explicit PoolAllocator(const wire::BufferPool::Options& options) : pool_(options) {}
  wire::BufferPool pool_;
};

// Where a tensor of this size that arrives for a CPU is put.
tensorflow::Allocator* HostMemoryFor(uint64_t bytes);

}  // namespace tensorwire::plugin
