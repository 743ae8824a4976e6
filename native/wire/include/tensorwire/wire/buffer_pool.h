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

// Memory for large payloads that is kept when it is given back, so that the next step's tensors of
// the same size find pages that are there already: faulting a fresh page in and zeroing it costs
// more than copying into it. Blocks are on huge pages where the kernel grants them.
//
// At most `kept_bytes_cap` is kept unused; what has not been used for `kept_ms` goes back to the
// system when the pool is next touched or trimmed, which an engine does from time to time to the
// pool it is given. Thread-safe.
//
// In a process that was forked by the one that made it, a pool with shared blocks gives out none
// and takes none back; blocks that the parent has there are the child's to read and to write, and
// what it writes it sees alone.
class TENSORWIRE_API BufferPool {
 public:
  struct Options {
    size_t kept_bytes_cap = size_t{1} << 30;
    int64_t kept_ms = 30'000;
    // Blocks are where other tasks on this host may read them (EngineOptions::pool), where the
    // system grants that.
    bool shared = false;
    // Blocks begin on a page and are made of pages. 0: the machine's; another for tests, a multiple
    // of the machine's.
    size_t page_bytes = 0;
  };
  struct Stats {
    size_t used_bytes = 0;  // in blocks that are out
    size_t kept_bytes = 0;  // in blocks that wait
    uint64_t hits = 0;      // blocks that were given out again
    uint64_t misses = 0;    // blocks that were made
  };

  explicit BufferPool(const Options& options);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // At least `bytes`, aligned to a page at least; not zeroed. Null when the system has none, when
  // the range for shared blocks is used up, and where shared blocks are the parent process's.
  void* Acquire(size_t bytes);
  void Release(void* block);
  // True if Acquire gave this block out. Takes no lock where blocks are shared.
  bool Owns(const void* block) const;

  // Gives back what has been kept too long.
  void Trim();
  int64_t kept_ms() const { return options_.kept_ms; }

  Stats stats() const;
  // Null where blocks are not shared, or are the parent process's.
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
  // Takes out of `kept_` what is over the cap or too old.
  std::vector<std::pair<void*, size_t>> CollectExcess(int64_t now_ms);

  const Options options_;
  const size_t page_bytes_;
  const size_t large_unit_;  // pages.h
  const std::unique_ptr<SharedMemory> shared_memory_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, size_t> used_;    // block to its size
  std::map<size_t, std::vector<Kept>> kept_;  // by size; each oldest first
  Stats stats_;
  const std::unique_ptr<ForkGuard> fork_guard_;  // last: the first to go
};

}  // namespace tensorwire::wire
