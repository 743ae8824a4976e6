#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "simulator.h"

// The memory of simulated processes, counted per process. Addresses are the same in each run of a
// seed, because the order of some containers depends on addresses. Freed memory is overwritten, so
// that code which reads it finds garbage.

namespace tensorwire::simulation {

struct Block {
  Process* process;  // null: the simulator's
  Block* next;
  Block** here;  // the pointer to this block
  uint32_t class_index;
  uint32_t magic;
  size_t bytes;
  size_t unused;
};
static_assert(sizeof(Block) % alignof(std::max_align_t) == 0);

namespace {

constexpr uint32_t kLive = 0x11feb10c;
constexpr uint32_t kDead = 0xdeadb10c;
constexpr size_t kMostScribbled = 512;
constexpr size_t kArenaBytes = size_t{16} << 30;
constexpr uint32_t kFine = 64;  // classes of 16 bytes
char* const kArena = reinterpret_cast<char*>(0x200000000000);

char* arena_next = nullptr;
Block* free_blocks[kFine + 48];

size_t ClassBytes(uint32_t index) {
  return index <= kFine ? index * size_t{16} : size_t{1024} << (index - kFine);
}
uint32_t ClassOf(size_t bytes) {
  if (bytes <= kFine * 16) return static_cast<uint32_t>((bytes + 15) / 16);
  uint32_t index = kFine + 1;
  while (ClassBytes(index) < bytes) ++index;
  return index;
}

Block* Take(size_t bytes) {
  if (arena_next == nullptr) {
    KernelMode kernel;
    if (mmap(kArena, kArenaBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != kArena) {
      std::abort();
    }
    arena_next = kArena;
  }
  const uint32_t index = ClassOf(bytes);
  Block* block = free_blocks[index];
  if (block != nullptr) {
    free_blocks[index] = block->next;
  } else {
    block = reinterpret_cast<Block*>(arena_next);
    arena_next += sizeof(Block) + ClassBytes(index);
    if (arena_next > kArena + kArenaBytes) std::abort();
  }
  block->class_index = index;
  return block;
}
void GiveBack(Block* block) {
  std::memset(static_cast<void*>(block + 1), 0xdd,
              block->bytes < kMostScribbled ? block->bytes : kMostScribbled);
  block->next = free_blocks[block->class_index];
  free_blocks[block->class_index] = block;
}

void* Allocate(size_t bytes) {
  if (!InProcess()) {
    auto* const block = static_cast<Block*>(std::malloc(sizeof(Block) + bytes));
    if (block == nullptr) std::abort();
    block->process = nullptr;
    block->magic = kLive;
    return block + 1;
  }
  Process* const process = current->process;
  Block* const block = Take(bytes);
  block->magic = kLive;
  block->bytes = bytes;
  block->process = process;
  block->next = process->blocks;
  block->here = &process->blocks;
  if (block->next != nullptr) block->next->here = &block->next;
  process->blocks = block;
  ++process->block_count;
  process->block_bytes += bytes;
  return block + 1;
}

void Free(void* at) {
  if (at == nullptr) return;
  Block* const block = static_cast<Block*>(at) - 1;
  if (block->magic != kLive) Violated("memory is freed twice, or was overrun");
  block->magic = kDead;
  Process* const process = block->process;
  if (process == nullptr) {
    std::free(block);
    return;
  }
  *block->here = block->next;
  if (block->next != nullptr) block->next->here = block->here;
  --process->block_count;
  process->block_bytes -= block->bytes;
  GiveBack(block);
}

}  // namespace

void FreeAll(Process* process) {
  while (process->blocks != nullptr) Free(process->blocks + 1);
  for (const auto& [at, bytes] : process->mappings) munmap(at, bytes);
  process->mappings.clear();
}

void ForgetMemory() {
  if (arena_next == nullptr) return;
  arena_next = kArena;
  std::memset(free_blocks, 0, sizeof(free_blocks));
}

void ForEachBlock(const Process* process, const std::function<void(char*, size_t)>& visit) {
  for (Block* block = process->blocks; block != nullptr; block = block->next) {
    visit(reinterpret_cast<char*>(block + 1), block->bytes);
  }
}

}  // namespace tensorwire::simulation

void* operator new(size_t bytes) { return tensorwire::simulation::Allocate(bytes); }
void* operator new[](size_t bytes) { return tensorwire::simulation::Allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return tensorwire::simulation::Allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return tensorwire::simulation::Allocate(bytes);
}
void operator delete(void* at) noexcept { tensorwire::simulation::Free(at); }
void operator delete[](void* at) noexcept { tensorwire::simulation::Free(at); }
void operator delete(void* at, size_t) noexcept { tensorwire::simulation::Free(at); }
void operator delete[](void* at, size_t) noexcept { tensorwire::simulation::Free(at); }
