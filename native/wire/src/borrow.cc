#include "borrow.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "cores.h"

namespace tensorwire::wire {
namespace {

// Waking a thread costs as much as copying this.
constexpr uint64_t kAtOnceBytes = 512u << 10;
// One core does not fill the memory's bandwidth; four do.
constexpr uint64_t kBytesPerThread = 4u << 20;
constexpr uint64_t kMostThreads = 4;

struct Part {
  char* to;
  const char* from;
  size_t size;
};

// The loan, cut where either side begins another buffer, and at part_bytes.
std::vector<Part> Cut(const Loan& loan, const std::vector<MutableBuffer>& into,
                      uint64_t part_bytes) {
  std::vector<Part> parts;
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

void CopyPart(const Part& part) { std::memcpy(part.to, part.from, part.size); }

bool IsStillLent(const ForeignMemory& memory, const Loan& loan) {
  return memory.StillLent(loan.number, loan.slot);
}

// One copy, in parts that whoever comes first takes: a thread that comes late finds none left.
struct SharedCopy {
  const std::shared_ptr<const ForeignMemory> memory;
  const Loan loan;
  const std::function<void(bool)> done;
  const std::vector<Part> parts;
  std::atomic<size_t> next{0};
  std::atomic<size_t> copied{0};

  void Run() {
    for (;;) {
      const size_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= parts.size()) return;
      CopyPart(parts[index]);
      if (copied.fetch_add(1, std::memory_order_acq_rel) + 1 == parts.size()) {
        done(IsStillLent(*memory, loan));
      }
    }
  }
};

}  // namespace

bool IsCopiedAtOnce(const Loan& loan) { return loan.bytes <= kAtOnceBytes; }

bool CopyLoan(const ForeignMemory& memory, const Loan& loan,
              const std::vector<MutableBuffer>& into) {
  for (const Part& part : Cut(loan, into, loan.bytes)) CopyPart(part);
  return IsStillLent(memory, loan);
}

void CopyLoanInParallel(std::shared_ptr<const ForeignMemory> memory, Loan loan,
                        const std::vector<MutableBuffer>& into,
                        const std::function<void(std::function<void()>)>& executor,
                        std::function<void(bool)> done) {
  static const auto cores = static_cast<uint64_t>(UsableCores());
  const uint64_t threads =
      std::clamp<uint64_t>(loan.bytes / kBytesPerThread, 1, std::min(cores, kMostThreads));
  auto parts = Cut(loan, into, (loan.bytes + threads - 1) / threads);
  const std::shared_ptr<SharedCopy> copy(
      new SharedCopy{std::move(memory), std::move(loan), std::move(done), std::move(parts)});
  for (uint64_t i = 0; i < threads; ++i) executor([copy] { copy->Run(); });
}

}  // namespace tensorwire::wire
