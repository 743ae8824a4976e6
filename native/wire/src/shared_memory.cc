#include "shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "hex.h"
#include "random.h"
#include "socket.h"

namespace tensorwire::wire {
namespace {

// The file has random bytes by which it is recognised, the loans' slots, and the blocks. Their
// offsets are the same for all page sizes. The blocks begin on a page, and with pages of 4 KiB on a
// huge page.
constexpr size_t kSecretBytes = 16;
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

// A network namespace counts as a host: a task in another one must not be reached around its
// network.
std::string NetworkNamespace() {
  struct stat about;
  if (stat("/proc/self/ns/net", &about) != 0) return "?";
  return std::to_string(about.st_dev) + "-" + std::to_string(about.st_ino);
}

std::atomic<uint64_t>* SlotAt(const char* base, uint32_t slot) {
  return reinterpret_cast<std::atomic<uint64_t>*>(const_cast<char*>(base) + kSlotsAt) + slot;
}

void Fence() {
#ifndef __SANITIZE_THREAD__  // the thread sanitizer does not know fences
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

template <typename T>
bool TakeNumber(std::string_view* text, T* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc() || end == text->data() + text->size() || *end != ':') return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()) + 1);
  return true;
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
  std::array<char, kSecretBytes> secret;
  if (!RandomBytes(secret.data(), secret.size())) return nullptr;
  shared->fd_ = Fd(memfd_create("tensorwire", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!shared->fd_.valid()) return nullptr;
  // Sealed, because a peer would crash if it read beyond the end of a file that was shrunk.
  if (ftruncate(shared->fd_.get(), static_cast<off_t>(shared->size_)) != 0 ||
      fcntl(shared->fd_.get(), F_ADD_SEALS, kSeals) != 0) {
    return nullptr;
  }
  void* const base = mmap(nullptr, shared->size_, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_NORESERVE, shared->fd_.get(), 0);
  if (base == MAP_FAILED) return nullptr;
  shared->base_ = static_cast<char*>(base);
  LeaveOutOfCoreFiles(base, shared->size_);
  madvise(shared->base_ + kBlocksAt, shared->size_ - kBlocksAt, MADV_HUGEPAGE);  // a request only
  std::memcpy(shared->base_, secret.data(), secret.size());
  shared->used_ = kBlocksAt;
  shared->ticket_ = std::to_string(getpid()) + ":" + std::to_string(shared->fd_.get()) + ":" +
                    std::to_string(shared->size_) + ":" + NetworkNamespace() + ":" +
                    Hex({secret.data(), secret.size()});
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

Status ForeignMemory::Open(const std::string& ticket, std::shared_ptr<const ForeignMemory>* out) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const open = new std::map<std::string, std::weak_ptr<const ForeignMemory>>;
  static const ForkGuard fork_guard(mutex);
  std::lock_guard lock(*mutex);
  std::erase_if(*open, [](const auto& entry) { return entry.second.expired(); });
  if (const auto at = open->find(ticket); at != open->end()) {
    if ((*out = at->second.lock()) != nullptr) return Status();
  }

  std::string_view rest(ticket);
  int pid = 0;
  int number = 0;
  size_t size = 0;
  Status malformed(Code::kInvalidArgument, "a malformed ticket to a peer's memory");
  if (!TakeNumber(&rest, &pid) || !TakeNumber(&rest, &number) || !TakeNumber(&rest, &size) ||
      pid <= 0 || number < 0 || size <= kBlocksAt || size > kLargestFile) {
    return malformed;
  }
  const auto colon = rest.find(':');
  if (colon == std::string_view::npos) return malformed;
  const std::string_view network = rest.substr(0, colon);
  const std::string_view secret = rest.substr(colon + 1);
  auto refused = [](const std::string& why) { return Status(Code::kPermissionDenied, why); };
  if (network != NetworkNamespace()) {
    return Status(Code::kUnavailable, "it is on another host or network");
  }

  // The path comes from the network, so only a regular file is opened.
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  struct stat about;
  if (stat(path.c_str(), &about) != 0) return refused("its memory: " + ErrorText(errno));
  if (!S_ISREG(about.st_mode)) return refused("it is in another process namespace");
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return refused("its memory: " + ErrorText(errno));
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd.get(), &about) != 0 ||
      static_cast<size_t>(about.st_size) != size) {
    return refused("it is in another process namespace");
  }
  void* const base = mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) return refused("its memory cannot be mapped: " + ErrorText(errno));
  LeaveOutOfCoreFiles(base, size);
  std::shared_ptr<const ForeignMemory> memory(
      new ForeignMemory(static_cast<const char*>(base), size));
  if (Hex({memory->base_, kSecretBytes}) != secret) {
    return refused("it is in another process namespace");
  }
  (*open)[ticket] = memory;
  *out = std::move(memory);
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
