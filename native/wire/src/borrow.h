#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "loans.h"
#include "tensorwire/wire/message.h"

namespace tensorwire::wire {

// True if the loan is so small that other threads would not help to copy it.
bool IsCopiedAtOnce(const Loan& loan);

// Copies what a loan describes into `into`, buffers of as many bytes; false when the loan had ended
// before all of it was copied.
bool CopyLoan(const ForeignMemory& memory, const Loan& loan,
              const std::vector<MutableBuffer>& into);

// A copy of so many bytes within one buffer.
struct CopyPart {
  char* to;
  const char* from;
  size_t size;
};

// The same in parts, which any number of threads may copy at the same time (CopyThreads).
class LoanCopy {
 public:
  // `done` is called once, with the outcome, by the thread that ended the last part.
  LoanCopy(std::shared_ptr<const ForeignMemory> memory, Loan loan,
           const std::vector<MutableBuffer>& into, std::function<void(bool)> done);

  // The number of threads that make it faster.
  size_t threads() const;
  // Copies the next part that nobody has begun; false when none was left.
  bool CopyPartOnce();
  // Leaves out the parts that nobody has begun. The copy has failed then, and is done when those
  // under way have ended. Any thread.
  void Cancel();

 private:
  void EndParts(size_t count);

  const std::shared_ptr<const ForeignMemory> memory_;
  const Loan loan_;
  const std::function<void(bool)> done_;
  const std::vector<CopyPart> parts_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> ended_{0};
  std::atomic<bool> cut_short_{false};
};

}  // namespace tensorwire::wire
