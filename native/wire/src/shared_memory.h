#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "fd.h"
#include "fork.h"
#include "pages.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// Payloads through memory, between two tasks of one host. A task keeps its large buffers in
// SharedMemory, an unnamed file in memory. A peer that was given a descriptor of the file (lane.h)
// reads them through ForeignMemory, with one copy and without the kernel.
//
// *Loans* define what may be read, and for how long. The owner lends a buffer by writing the loan's
// number into a slot of the file. It erases the number before the buffer's memory may be used for
// something else. The reader checks the slot after it has copied: if the number is still there, it
// has copied the lent buffer. So a reader that is stopped in mid-copy, or whose connection is lost,
// never takes other bytes for the tensor's.
//
// A child process that the owner forks is not an owner. Its mapping is replaced by a private one:
// it reads the owner's bytes until it writes there itself, and no other process sees its writes. In
// the child no block is given out or taken back, and no loan is opened or closed.
class SharedMemory {
 public:
  // Null if the system grants no such file, or not the address range for it. `page_bytes`: for
  // tests, a multiple of the machine's.
  static std::unique_ptr<SharedMemory> Create(size_t page_bytes = PageBytes());
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // A zeroed block of `bytes`, a multiple of the page size. Null if the range is used up.
  void* Map(size_t bytes);
  // Gives the block's pages back to the system.
  void Unmap(void* block, size_t bytes);

  // True if these bytes are in a block; `*offset` is their place in the file.
  bool Find(const void* data, size_t bytes, uint64_t* offset) const;

  // The file for peers: it can only be read.
  int descriptor() const { return read_only_.get(); }

  // False if too much is lent. `number` is never used again.
  bool OpenLoan(uint64_t* number, uint32_t* slot);
  void CloseLoan(uint32_t slot);

  // True if this process was forked by the owner.
  bool inherited() const { return inherited_; }

 private:
  explicit SharedMemory(size_t page_bytes) : page_bytes_(page_bytes) {}

  void TurnPrivate();

  const size_t page_bytes_;
  char* base_ = nullptr;
  size_t size_ = 0;
  Fd fd_;
  Fd read_only_;

  std::mutex mutex_;
  size_t used_ = 0;                                // of the range; the rest was never given out
  std::map<size_t, std::vector<char*>> unmapped_;  // ranges to be used again, by size
  std::vector<uint32_t> free_slots_;
  std::atomic<uint64_t> last_number_{0};
  bool inherited_ = false;  // changes in a fork's only thread
  std::unique_ptr<ForkGuard> fork_guard_;
};

class ForeignMemory {
 public:
  // Maps the file that a peer has passed; fails if it is no SharedMemory. Channels to one process
  // share one mapping.
  static Status Open(int file, std::shared_ptr<const ForeignMemory>* out);
  ~ForeignMemory();
  ForeignMemory(const ForeignMemory&) = delete;
  ForeignMemory& operator=(const ForeignMemory&) = delete;

  // Null if the range is not within the file's blocks.
  const char* At(uint64_t offset, uint64_t bytes) const;
  // True if everything that was read of the loan before this call was the lent buffer.
  bool StillLent(uint64_t number, uint32_t slot) const;

 private:
  ForeignMemory(const char* base, size_t size) : base_(base), size_(size) {}

  const char* const base_;
  const size_t size_;
};

}  // namespace tensorwire::wire
