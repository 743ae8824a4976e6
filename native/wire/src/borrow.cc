#include "borrow.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cores.h"

namespace tensorwire::wire {
namespace {

// Waking a thread costs as much as copying this.
constexpr uint64_t kAtOnceBytes = 512u << 10;
// Bytes per copying thread. One core does not fill the memory's bandwidth; four do.
constexpr uint64_t kBytesPerThread = 4u << 20;
constexpr uint64_t kMostThreads = 4;

// The loan, cut where either side begins another buffer, and at part_bytes.
std::vector<CopyPart> Cut(const Loan& loan, const std::vector<MutableBuffer>& into,
                          uint64_t part_bytes) {
  std::vector<CopyPart> parts;
  size_t target = 0;
  uint64_t target_offset = 0;
  for (const Loan::Piece& piece : loan.pieces) {
    for (uint64_t offset = 0; offset < piece.bytes;) {
      if (target_offset == into[target].size) {
        ++target;
        target_offset = 0;
        continue;
      }
      const uint64_t size = std::min({part_bytes, piece.bytes - offset,
                                      static_cast<uint64_t>(into[target].size) - target_offset});
      parts.push_back({static_cast<char*>(into[target].data) + target_offset, piece.data + offset,
                       static_cast<size_t>(size)});
      offset += size;
      target_offset += size;
    }
  }
  return parts;
}

void Copy(const CopyPart& part) { std::memcpy(part.to, part.from, part.size); }

bool IsStillLent(const ForeignMemory& memory, const Loan& loan) {
  return memory.StillLent(loan.number, loan.slot);
}

uint64_t ThreadsFor(const Loan& loan) {
  static const auto cores = static_cast<uint64_t>(UsableCores());
  return std::clamp<uint64_t>(loan.bytes / kBytesPerThread, 1, std::min(cores, kMostThreads));
}

}  // namespace

bool IsCopiedAtOnce(const Loan& loan) { return loan.bytes <= kAtOnceBytes; }

bool CopyLoan(const ForeignMemory& memory, const Loan& loan,
              const std::vector<MutableBuffer>& into) {
  for (const CopyPart& part : Cut(loan, into, loan.bytes)) Copy(part);
  return IsStillLent(memory, loan);
}

ParallelCopy::ParallelCopy(std::shared_ptr<const ForeignMemory> memory, Loan loan,
                           const std::vector<MutableBuffer>& into, std::function<void(bool)> done)
    : memory_(std::move(memory)),
      loan_(std::move(loan)),
      done_(std::move(done)),
      threads_(ThreadsFor(loan_)),
      parts_(Cut(loan_, into, (loan_.bytes + threads_ - 1) / threads_)) {}

void ParallelCopy::Start(const std::function<void(std::function<void()>)>& executor) {
  for (uint64_t i = 0; i < threads_; ++i) executor([self = shared_from_this()] { self->Run(); });
}

void ParallelCopy::Run() {
  for (;;) {
    const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= parts_.size()) return;
    Copy(parts_[index]);
    EndParts(1);
  }
}

void ParallelCopy::Cancel() {
  const size_t begun = next_.exchange(parts_.size(), std::memory_order_relaxed);
  if (begun >= parts_.size()) return;
  cut_short_.store(true, std::memory_order_relaxed);
  EndParts(parts_.size() - begun);
}

void ParallelCopy::EndParts(size_t count) {
  if (ended_.fetch_add(count, std::memory_order_acq_rel) + count < parts_.size()) return;
  done_(!cut_short_.load(std::memory_order_relaxed) && IsStillLent(*memory_, loan_));
}

}  // namespace tensorwire::wire
