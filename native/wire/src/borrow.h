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

// Copies the loan's bytes into the buffers `into`, which have the same total size. False if the
// loan ended before all of it was copied.
bool CopyLoan(const ForeignMemory& memory, const Loan& loan,
              const std::vector<MutableBuffer>& into);

// A part of a copy, within one buffer on either side.
struct CopyPart {
  char* to;
  const char* from;
  size_t size;
};

// The copy of a loan in parts, which several threads may copy at the same time (CopyThreads).
class LoanCopy {
 public:
  // `done` is called once, with the outcome, by the thread that ended the last part.
  LoanCopy(std::shared_ptr<const ForeignMemory> memory, Loan loan,
           const std::vector<MutableBuffer>& into, std::function<void(bool)> done);

  // The number of threads that are worth using.
  size_t threads() const;
  // Copies the next part that no thread has begun; false if none was left.
  bool CopyPartOnce();
  // Skips the parts that no thread has begun. The copy then counts as failed, and is done when the
  // parts under way have ended. Any thread.
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
