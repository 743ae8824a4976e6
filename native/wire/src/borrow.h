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

// The same on as many threads of the executor as cores help, in parts that whoever comes first
// takes: a thread that comes late finds none left.
class ParallelCopy : public std::enable_shared_from_this<ParallelCopy> {
 public:
  // `done` is called once, with the outcome, by the thread that ended the last part.
  ParallelCopy(std::shared_ptr<const ForeignMemory> memory, Loan loan,
               const std::vector<MutableBuffer>& into, std::function<void(bool)> done);

  void Start(const std::function<void(std::function<void()>)>& executor);
  // Leaves out the parts that nobody has begun. The copy has failed then, and is done when those
  // under way have ended. Any thread.
  void Cancel();

 private:
  void Run();
  void EndParts(size_t count);

  const std::shared_ptr<const ForeignMemory> memory_;
  const Loan loan_;
  const std::function<void(bool)> done_;
  const uint64_t threads_;
  const std::vector<CopyPart> parts_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> ended_{0};
  std::atomic<bool> cut_short_{false};
};

}  // namespace tensorwire::wire
