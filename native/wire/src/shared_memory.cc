#include "shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "socket.h"

namespace tensorwire::wire {
namespace {

// The file has the loans' slots, and the blocks. Their offsets are the same for all page sizes. The
// blocks begin on a page, and with pages of 4 KiB on a huge page.
constexpr size_t kSlotsAt = 4096;
constexpr uint32_t kSlots = 1u << 16;
constexpr size_t kBlocksAt = size_t{2} << 20;
static_assert(kSlotsAt + kSlots * sizeof(uint64_t) <= kBlocksAt);
static_assert(std::atomic<uint64_t>::is_always_lock_free, "slots are shared between processes");

constexpr size_t kLargestFile = size_t{1} << 40;
// Blocks of different sizes share no ranges, so the range must be larger than the memory that it
// holds.
constexpr size_t kRangeToMemory = 4;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::atomic<uint64_t>* SlotAt(const char* base, uint32_t slot) {
  return reinterpret_cast<std::atomic<uint64_t>*>(const_cast<char*>(base) + kSlotsAt) + slot;
}

void Fence() {
#ifndef __SANITIZE_THREAD__  // the thread sanitizer does not know fences
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// For a core file the system would allocate all pages of the file, also those that were never
// touched: as much memory as the file is large.
void LeaveOutOfCoreFiles(void* base, size_t size) { madvise(base, size, MADV_DONTDUMP); }

}  // namespace

std::unique_ptr<SharedMemory> SharedMemory::Create(size_t page_bytes) {
  struct sysinfo about;
  if (sysinfo(&about) != 0) return nullptr;
  const size_t memory_bytes = size_t{about.totalram} * about.mem_unit;
  std::unique_ptr<SharedMemory> shared(new SharedMemory(page_bytes));
  shared->size_ = std::min(kLargestFile, memory_bytes * kRangeToMemory) / kBlocksAt * kBlocksAt;
  if (shared->size_ <= kBlocksAt) return nullptr;
  shared->fd_ = Fd(memfd_create("tensorwire", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!shared->fd_.valid()) return nullptr;
  // Sealed, because a peer would crash if it read beyond the end of a file that was shrunk. Its
  // mode keeps a peer from opening it again for writing.
  if (fchmod(shared->fd_.get(), S_IRUSR) != 0 ||
      ftruncate(shared->fd_.get(), static_cast<off_t>(shared->size_)) != 0 ||
      fcntl(shared->fd_.get(), F_ADD_SEALS, kSeals) != 0) {
    return nullptr;
  }
  const std::string path = "/proc/self/fd/" + std::to_string(shared->fd_.get());
  shared->read_only_ = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!shared->read_only_.valid()) return nullptr;
  void* const base = mmap(nullptr, shared->size_, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_NORESERVE, shared->fd_.get(), 0);
  if (base == MAP_FAILED) return nullptr;
  shared->base_ = static_cast<char*>(base);
  // Where memory cannot be given back while the file lives (gVisor), nothing is shared.
  if (madvise(shared->base_ + kBlocksAt, page_bytes, MADV_REMOVE) != 0) return nullptr;
  LeaveOutOfCoreFiles(base, shared->size_);
  madvise(shared->base_ + kBlocksAt, shared->size_ - kBlocksAt, MADV_HUGEPAGE);  // a request only
  shared->used_ = kBlocksAt;
  for (uint32_t slot = kSlots; slot-- > 0;) shared->free_slots_.push_back(slot);
  shared->fork_guard_ = std::make_unique<ForkGuard>(
      &shared->mutex_, [memory = shared.get()] { memory->TurnPrivate(); });
  return shared;
}

SharedMemory::~SharedMemory() {
  fork_guard_.reset();
  if (base_ != nullptr) munmap(base_, size_);
}

void SharedMemory::TurnPrivate() {
  if (inherited_) return;  // else its own children would lose what it has written
  inherited_ = true;
  if (mmap(base_, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd_.get(),
           0) == MAP_FAILED) {
    // Because of a limit, or because the system does not overcommit memory.
    mprotect(base_, size_, PROT_READ);
  }
  LeaveOutOfCoreFiles(base_, size_);
}

void* SharedMemory::Map(size_t bytes) {
  if (inherited_) return nullptr;
  std::lock_guard lock(mutex_);
  if (auto& ranges = unmapped_[bytes]; !ranges.empty()) {
    char* const block = ranges.back();
    ranges.pop_back();
    return block;
  }
  const size_t large_unit = LargeUnitBytes(page_bytes_);
  const size_t begin = RoundUp(used_, bytes >= large_unit ? large_unit : page_bytes_);
  if (begin > size_ || bytes > size_ - begin) return nullptr;
  used_ = begin + bytes;
  return base_ + begin;
}

void SharedMemory::Unmap(void* block, size_t bytes) {
  if (inherited_) return;
  madvise(block, bytes, MADV_REMOVE);
  std::lock_guard lock(mutex_);
  unmapped_[bytes].push_back(static_cast<char*>(block));
}

bool SharedMemory::Find(const void* data, size_t bytes, uint64_t* offset) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  const auto base = reinterpret_cast<uintptr_t>(base_);
  if (at < base + kBlocksAt || at >= base + size_ || bytes > base + size_ - at) return false;
  *offset = at - base;
  return true;
}

bool SharedMemory::OpenLoan(uint64_t* number, uint32_t* slot) {
  if (inherited_) return false;
  {
    std::lock_guard lock(mutex_);
    if (free_slots_.empty()) return false;
    *slot = free_slots_.back();
    free_slots_.pop_back();
  }
  *number = last_number_.fetch_add(1, std::memory_order_relaxed) + 1;
  SlotAt(base_, *slot)->store(*number, std::memory_order_release);
  return true;
}

void SharedMemory::CloseLoan(uint32_t slot) {
  if (inherited_) return;
  SlotAt(base_, slot)->store(0, std::memory_order_seq_cst);
  // The caller's writes to the lent memory must come after the erasure.
  Fence();
  std::lock_guard lock(mutex_);
  free_slots_.push_back(slot);
}

Status ForeignMemory::Open(int file, std::shared_ptr<const ForeignMemory>* out) {
  using Key = std::pair<dev_t, ino_t>;
  static std::mutex* const mutex = new std::mutex;
  static auto* const open = new std::map<Key, std::weak_ptr<const ForeignMemory>>;
  static const ForkGuard fork_guard(mutex);
  // A file that is not sealed could be shrunk, which would crash its readers.
  struct stat about;
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(file, &about) != 0 ||
      about.st_size <= static_cast<off_t>(kBlocksAt) ||
      about.st_size > static_cast<off_t>(kLargestFile)) {
    return Status(Code::kInvalidArgument, "it passed no shared memory");
  }
  const auto size = static_cast<size_t>(about.st_size);
  std::lock_guard lock(*mutex);
  std::erase_if(*open, [](const auto& entry) { return entry.second.expired(); });
  auto& known = (*open)[{about.st_dev, about.st_ino}];
  if ((*out = known.lock()) != nullptr) return Status();
  void* const base = mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) {
    return Status(Code::kResourceExhausted, "its memory cannot be mapped: " + ErrorText(errno));
  }
  LeaveOutOfCoreFiles(base, size);
  out->reset(new ForeignMemory(static_cast<const char*>(base), size));
  known = *out;
  return Status();
}

ForeignMemory::~ForeignMemory() { munmap(const_cast<char*>(base_), size_); }

const char* ForeignMemory::At(uint64_t offset, uint64_t bytes) const {
  if (offset < kBlocksAt || offset > size_ || bytes > size_ - offset) return nullptr;
  return base_ + offset;
}

bool ForeignMemory::StillLent(uint64_t number, uint32_t slot) const {
  if (slot >= kSlots) return false;
  Fence();  // reads before this call must not move after it
  return SlotAt(base_, slot)->load(std::memory_order_seq_cst) == number;
}

}  // namespace tensorwire::wire
