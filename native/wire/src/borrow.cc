#include "borrow.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tensorwire::wire {
namespace {

// Waking a thread costs as much as copying this many bytes.
constexpr uint64_t kAtOnceBytes = 512u << 10;
// One more thread is worth waking for this many bytes.
constexpr uint64_t kBytesPerThread = 4u << 20;
// The size of a part. Copying it takes 50 us; then another copy has its turn.
constexpr uint64_t kPartBytes = 512u << 10;

// The loan in parts: cut at every buffer boundary of either side, and at part_bytes.
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

}  // namespace

bool IsCopiedAtOnce(const Loan& loan) { return loan.bytes <= kAtOnceBytes; }

bool CopyLoan(const ForeignMemory& memory, const Loan& loan,
              const std::vector<MutableBuffer>& into) {
  for (const CopyPart& part : Cut(loan, into, loan.bytes)) Copy(part);
  return memory.StillLent(loan.number, loan.slot);
}

LoanCopy::LoanCopy(std::shared_ptr<const ForeignMemory> memory, Loan loan,
                   const std::vector<MutableBuffer>& into, std::function<void(bool)> done)
    : memory_(std::move(memory)),
      loan_(std::move(loan)),
      done_(std::move(done)),
      parts_(Cut(loan_, into, kPartBytes)) {}

size_t LoanCopy::threads() const {
  return static_cast<size_t>(std::max<uint64_t>(1, loan_.bytes / kBytesPerThread));
}

bool LoanCopy::CopyPartOnce() {
  const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index >= parts_.size()) return false;
  Copy(parts_[index]);
  EndParts(1);
  return true;
}

void LoanCopy::Cancel() {
  const size_t begun = next_.exchange(parts_.size(), std::memory_order_relaxed);
  if (begun >= parts_.size()) return;
  cut_short_.store(true, std::memory_order_relaxed);
  EndParts(parts_.size() - begun);
}

void LoanCopy::EndParts(size_t count) {
  if (ended_.fetch_add(count, std::memory_order_acq_rel) + count < parts_.size()) return;
  done_(!cut_short_.load(std::memory_order_relaxed) &&
        memory_->StillLent(loan_.number, loan_.slot));
}

}  // namespace tensorwire::wire
