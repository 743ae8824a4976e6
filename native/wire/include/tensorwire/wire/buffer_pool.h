#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tensorwire/wire/export.h"

namespace tensorwire::wire {

class ForkGuard;
class SharedMemory;

// Memory for large payloads. Released blocks are kept, so that the next step's tensors of the same
// size use pages that are mapped already: faulting in and zeroing a new page costs more than
// copying into it. Blocks are on huge pages where the kernel grants them.
//
// At most `kept_bytes_cap` is kept unused. A block that was unused for `kept_ms` goes back to the
// system at the next Release or Trim; an engine trims its pool from time to time. Thread-safe.
//
// In a forked child process, a pool with shared blocks gives out no blocks and takes none back. The
// child may read and write the parent's blocks; only the child sees its writes.
class TENSORWIRE_API BufferPool {
 public:
  struct Options {
    size_t kept_bytes_cap = size_t{1} << 30;
    int64_t kept_ms = 30'000;
    // Puts blocks where other tasks on this host may read them (EngineOptions::pool), if the system
    // grants that.
    bool shared = false;
    // Blocks begin on a page and are made of pages. 0: the machine's page size. For tests: a
    // multiple of it.
    size_t page_bytes = 0;
  };
  struct Stats {
    size_t used_bytes = 0;  // in blocks that are in use
    size_t kept_bytes = 0;  // in unused blocks
    uint64_t hits = 0;      // blocks that were reused
    uint64_t misses = 0;    // blocks that were newly made
  };

  explicit BufferPool(const Options& options);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // At least `bytes`, aligned at least to a page, not zeroed. Null if the system has no memory, if
  // the range for shared blocks is used up, or if the shared blocks are the parent process's.
  void* Acquire(size_t bytes);
  void Release(void* block);
  // True if Acquire gave this block out. Takes no lock if blocks are shared.
  bool Owns(const void* block) const;

  // Gives blocks back to the system that have been kept too long.
  void Trim();
  int64_t kept_ms() const { return options_.kept_ms; }

  Stats stats() const;
  // Null if blocks are not shared, or are the parent process's.
  SharedMemory* shared_memory() const;

 private:
  struct Kept {
    void* block;
    int64_t since_ms;
  };
  bool Inherited() const;  // the shared blocks are the parent process's
  size_t BlockBytes(size_t bytes) const;
  void* Map(size_t block_bytes);
  void Unmap(void* block, size_t block_bytes);
  void UnmapAll(const std::vector<std::pair<void*, size_t>>& blocks);
  // Takes blocks out of `kept_` that are over the cap or too old.
  std::vector<std::pair<void*, size_t>> CollectExcess(int64_t now_ms);

  const Options options_;
  const size_t page_bytes_;
  const size_t large_unit_;  // pages.h
  const std::unique_ptr<SharedMemory> shared_memory_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, size_t> used_;    // block to its size
  std::map<size_t, std::vector<Kept>> kept_;  // by size; each oldest first
  Stats stats_;
  const std::unique_ptr<ForkGuard> fork_guard_;  // last member: destroyed first
};

}  // namespace tensorwire::wire
