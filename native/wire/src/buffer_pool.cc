#include "tensorwire/wire/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "fork.h"
#include "pages.h"
#include "shared_memory.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::wire {
namespace {

constexpr size_t kAddressable = size_t{1} << 47;  // rounding up a larger size would overflow

}  // namespace

BufferPool::BufferPool(const Options& options)
    : options_(options),
      page_bytes_(options.page_bytes > 0 ? options.page_bytes : PageBytes()),
      large_unit_(LargeUnitBytes(page_bytes_)),
      shared_memory_(options.shared ? SharedMemory::Create(page_bytes_) : nullptr),
      fork_guard_(std::make_unique<ForkGuard>(&mutex_)) {}

BufferPool::~BufferPool() {
  for (const auto& [bytes, blocks] : kept_) {
    for (const Kept& kept : blocks) Unmap(kept.block, bytes);
  }
}

// Similar sizes share a class, so that a tensor whose first dimension varies from step to step
// finds the last step's block. Eight classes per doubling waste at most 12 %, except for blocks of
// few huge pages, where one byte may need a further page.
size_t BufferPool::BlockBytes(size_t bytes) const {
  size_t unit = page_bytes_;
  while (bytes > 16 * unit) unit *= 2;
  bytes = RoundUp(bytes, unit);
  return bytes >= large_unit_ ? RoundUp(bytes, large_unit_) : bytes;
}

void* BufferPool::Map(size_t block_bytes) {
  if (shared_memory_ != nullptr) return shared_memory_->Map(block_bytes);
  const size_t alignment = block_bytes >= large_unit_ ? large_unit_ : page_bytes_;
  const bool aligned_by_system = alignment == PageBytes();
  // Map more and give back both ends.
  const size_t mapped = aligned_by_system ? block_bytes : block_bytes + alignment;
  void* const start =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  if (aligned_by_system) return start;
  const auto first = reinterpret_cast<uintptr_t>(start);
  const uintptr_t aligned = RoundUp(first, alignment);
  if (aligned > first) munmap(start, aligned - first);
  const size_t behind = first + mapped - (aligned + block_bytes);
  if (behind > 0) munmap(reinterpret_cast<void*>(aligned + block_bytes), behind);
  void* const block = reinterpret_cast<void*>(aligned);
  madvise(block, block_bytes, MADV_HUGEPAGE);  // a request only; small pages work, too
  return block;
}

void BufferPool::Unmap(void* block, size_t block_bytes) {
  if (shared_memory_ != nullptr) {
    shared_memory_->Unmap(block, block_bytes);
  } else {
    munmap(block, block_bytes);
  }
}

void BufferPool::UnmapAll(const std::vector<std::pair<void*, size_t>>& blocks) {
  for (const auto& [block, bytes] : blocks) Unmap(block, bytes);
}

bool BufferPool::Inherited() const {
  return shared_memory_ != nullptr && shared_memory_->inherited();
}

void* BufferPool::Acquire(size_t bytes) {
  if (bytes > kAddressable || Inherited()) return nullptr;
  const size_t block_bytes = BlockBytes(std::max<size_t>(bytes, 1));
  {
    std::lock_guard lock(mutex_);
    const auto at = kept_.find(block_bytes);
    if (at != kept_.end() && !at->second.empty()) {
      void* const block = at->second.back().block;  // the last used: its pages are the warmest
      at->second.pop_back();
      stats_.kept_bytes -= block_bytes;
      stats_.used_bytes += block_bytes;
      ++stats_.hits;
      used_.emplace(block, block_bytes);
      return block;
    }
  }
  void* const block = Map(block_bytes);
  if (block == nullptr) return nullptr;
  std::lock_guard lock(mutex_);
  stats_.used_bytes += block_bytes;
  ++stats_.misses;
  used_.emplace(block, block_bytes);
  return block;
}

void BufferPool::Release(void* block) {
  if (Inherited()) return;
  const int64_t now_ms = NowMs();
  std::vector<std::pair<void*, size_t>> excess;
  {
    std::lock_guard lock(mutex_);
    const auto at = used_.find(block);
    if (at == used_.end()) return;
    const size_t block_bytes = at->second;
    used_.erase(at);
    stats_.used_bytes -= block_bytes;
    stats_.kept_bytes += block_bytes;
    kept_[block_bytes].push_back({block, now_ms});
    excess = CollectExcess(now_ms);
  }
  UnmapAll(excess);
}

void BufferPool::Trim() {
  std::vector<std::pair<void*, size_t>> excess;
  {
    std::lock_guard lock(mutex_);
    excess = CollectExcess(NowMs());
  }
  UnmapAll(excess);
}

bool BufferPool::Owns(const void* block) const {
  if (shared_memory_ != nullptr) {
    uint64_t offset = 0;
    return shared_memory_->Find(block, 1, &offset);
  }
  std::lock_guard lock(mutex_);
  return used_.count(const_cast<void*>(block)) > 0;
}

std::vector<std::pair<void*, size_t>> BufferPool::CollectExcess(int64_t now_ms) {
  std::vector<std::pair<void*, size_t>> excess;
  auto drop_oldest = [&](size_t bytes, std::vector<Kept>* blocks) {
    excess.emplace_back(blocks->front().block, bytes);
    blocks->erase(blocks->begin());
    stats_.kept_bytes -= bytes;
  };
  for (auto& [bytes, blocks] : kept_) {
    while (!blocks.empty() && now_ms - blocks.front().since_ms > options_.kept_ms) {
      drop_oldest(bytes, &blocks);
    }
  }
  while (stats_.kept_bytes > options_.kept_bytes_cap) {
    // The block that has been unused for longest, of any size.
    std::pair<const size_t, std::vector<Kept>>* oldest = nullptr;
    for (auto& entry : kept_) {
      if (entry.second.empty()) continue;
      if (oldest == nullptr || entry.second.front().since_ms < oldest->second.front().since_ms) {
        oldest = &entry;
      }
    }
    assert(oldest != nullptr);  // kept_bytes > 0, so a block is kept
    drop_oldest(oldest->first, &oldest->second);
  }
  return excess;
}

SharedMemory* BufferPool::shared_memory() const {
  return Inherited() ? nullptr : shared_memory_.get();
}

BufferPool::Stats BufferPool::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace tensorwire::wire
