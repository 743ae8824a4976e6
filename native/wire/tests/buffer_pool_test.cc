#include "tensorwire/wire/buffer_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "shared_memory.h"

namespace tensorwire::wire {
namespace {

constexpr size_t kMb = 1u << 20;

TEST(a_block_given_back_is_given_out_again) {
  BufferPool pool({});
  void* const first = pool.Acquire(10 * kMb);
  CHECK(first != nullptr);
  std::memset(first, 1, 10 * kMb);
  pool.Release(first);
  CHECK(pool.Acquire(10 * kMb) == first);
  CHECK_EQ(pool.stats().hits, 1u);
  CHECK_EQ(pool.stats().misses, 1u);
  pool.Release(first);
}

TEST(a_size_that_differs_by_little_finds_the_same_block) {
  BufferPool pool({});
  void* const first = pool.Acquire(100 * kMb);
  pool.Release(first);
  void* const second = pool.Acquire(99 * kMb);
  CHECK(second == first);
  pool.Release(second);
  void* const other = pool.Acquire(50 * kMb);  // a size that differs much gets another block
  CHECK(other != first);
  pool.Release(other);
}

TEST(blocks_are_whole_aligned_and_apart) {
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  BufferPool pool({});
  std::mt19937 random(7);
  std::vector<std::pair<unsigned char*, size_t>> blocks;
  for (int i = 0; i < 60; ++i) {
    const size_t bytes = 1 + random() % (i % 3 == 0 ? 5 * kMb : 20'000);
    auto* block = static_cast<unsigned char*>(pool.Acquire(bytes));
    CHECK(block != nullptr);
    CHECK_EQ(reinterpret_cast<uintptr_t>(block) % page_bytes, 0u);
    if (bytes >= 2 * kMb && page_bytes == 4096)
      CHECK_EQ(reinterpret_cast<uintptr_t>(block) % (2 * kMb), 0u);
    std::memset(block, i, bytes);
    blocks.emplace_back(block, bytes);
  }
  for (int i = 0; i < 60; ++i) {
    const auto& [block, bytes] = blocks[static_cast<size_t>(i)];
    CHECK_EQ(block[0], i);
    CHECK_EQ(block[bytes / 2], i);
    CHECK_EQ(block[bytes - 1], i);
    pool.Release(block);
  }
  CHECK_EQ(pool.stats().used_bytes, 0u);
}

TEST(blocks_are_made_of_whole_pages_whatever_a_page_has) {
  for (const size_t page_bytes : {size_t{4096}, size_t{16} << 10, size_t{64} << 10}) {
    for (const bool shared : {false, true}) {
      BufferPool::Options options;
      options.page_bytes = page_bytes;
      options.shared = shared;
      options.kept_bytes_cap = 0;  // what is released goes back to the system at once
      BufferPool pool(options);
      // For a shared block its offset counts: the file begins on a page of any size.
      auto place = [&](const void* block) {
        uint64_t offset = reinterpret_cast<uintptr_t>(block);
        if (shared) CHECK(pool.shared_memory()->Find(block, 1, &offset));
        return offset;
      };
      struct Block {
        unsigned char* data;
        size_t bytes;
        size_t block_bytes;
      };
      std::vector<Block> blocks;
      std::mt19937 random(7);
      for (size_t i = 0; i < 60; ++i) {
        const size_t bytes = 1 + random() % (i % 3 == 0 ? 5 * kMb : 200'000);
        const size_t before = pool.stats().used_bytes;
        auto* const data = static_cast<unsigned char*>(pool.Acquire(bytes));
        CHECK(data != nullptr);
        std::memset(data, static_cast<int>(i), bytes);
        blocks.push_back({data, bytes, pool.stats().used_bytes - before});
        CHECK(blocks[i].block_bytes >= bytes);
        // No more than a page, a huge page or an eighth is wasted.
        CHECK(blocks[i].block_bytes - bytes <= std::max({page_bytes, 2 * kMb, bytes / 8}));
        CHECK_EQ(place(data) % page_bytes, 0u);
        CHECK_EQ(blocks[i].block_bytes % page_bytes, 0u);  // the kernel takes back whole pages
        for (size_t j = 0; j < i; ++j) {
          CHECK(blocks[j].data + blocks[j].block_bytes <= data ||
                data + blocks[i].block_bytes <= blocks[j].data);
        }
      }
      for (size_t i = 0; i < blocks.size(); i += 2) pool.Release(blocks[i].data);
      for (size_t i = 1; i < blocks.size(); i += 2) {
        const auto& [data, bytes, block_bytes] = blocks[i];
        CHECK_EQ(data[0], i);
        CHECK_EQ(data[bytes - 1], i);
        CHECK(std::memcmp(data, data + 1, bytes - 1) == 0);
        pool.Release(data);
      }
    }
  }
}

bool Mapped(void* block) {
  unsigned char resident;
  return mincore(block, 4096, &resident) == 0;
}

TEST(no_more_than_the_cap_is_kept_and_the_oldest_goes_first) {
  BufferPool::Options options;
  options.kept_bytes_cap = 16 * kMb;
  BufferPool pool(options);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.Acquire(8 * kMb));
  CHECK_EQ(pool.stats().used_bytes, 32 * kMb);
  for (void* block : blocks) {
    pool.Release(block);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  CHECK_EQ(pool.stats().kept_bytes, 16 * kMb);
  CHECK(!Mapped(blocks[0]));
  CHECK(!Mapped(blocks[1]));
  CHECK(Mapped(blocks[2]));
  CHECK(Mapped(blocks[3]));
}

TEST(what_is_not_used_for_long_goes_back_to_the_system) {
  BufferPool::Options options;
  options.kept_ms = 20;
  BufferPool pool(options);
  void* const idle = pool.Acquire(4 * kMb);
  pool.Release(idle);
  CHECK(Mapped(idle));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  void* const other = pool.Acquire(kMb);
  pool.Release(other);
  CHECK(!Mapped(idle));
  CHECK_EQ(pool.stats().kept_bytes, kMb);
}

TEST(a_pool_that_goes_takes_what_it_kept_along) {
  void* block = nullptr;
  {
    BufferPool pool({});
    block = pool.Acquire(4 * kMb);
    pool.Release(block);
    CHECK(Mapped(block));
  }
  CHECK(!Mapped(block));
}

TEST(a_block_that_is_not_the_pool_s_is_left_alone) {
  BufferPool pool({});
  int mine = 0;
  pool.Release(&mine);
  CHECK_EQ(pool.stats().kept_bytes, 0u);
}

TEST(a_pool_knows_which_blocks_are_its_own) {
  for (const bool shared : {false, true}) {
    BufferPool::Options options;
    options.shared = shared;
    BufferPool pool(options);
    BufferPool other(options);
    void* const block = pool.Acquire(kMb);
    CHECK(pool.Owns(block));
    CHECK(!other.Owns(block));
    pool.Release(block);
  }
}

TEST(more_than_there_is_gives_none) {
  BufferPool pool({});
  CHECK(pool.Acquire(size_t{1} << 60) == nullptr);
  CHECK(pool.Acquire(~size_t{0}) == nullptr);
}

TEST(threads_share_a_pool_and_never_a_block) {
  BufferPool::Options options;
  options.kept_bytes_cap = 2 * kMb;
  options.kept_ms = 1;
  BufferPool pool(options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 1000; ++i) {
        const size_t bytes = 1 + random() % 300'000;
        auto* block = static_cast<unsigned char*>(pool.Acquire(bytes));
        CHECK(block != nullptr);
        block[0] = block[bytes - 1] = static_cast<unsigned char>(t);
        if (i % 10 == 0) std::this_thread::yield();
        CHECK_EQ(block[0], t);
        CHECK_EQ(block[bytes - 1], t);
        pool.Release(block);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(pool.stats().used_bytes, 0u);
  CHECK(pool.stats().kept_bytes <= options.kept_bytes_cap);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
