#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "loans.h"
#include "tensorwire/wire/message.h"

namespace tensorwire::wire {

// Whether the loan is so small that other threads would not help to copy it.
bool IsCopiedAtOnce(const Loan& loan);

// Copies what a loan describes into `into`, buffers of as many bytes; false when the loan had ended
// before all of it was copied.
bool CopyLoan(const ForeignMemory& memory, const Loan& loan,
              const std::vector<MutableBuffer>& into);

// The same on as many threads of the executor as cores help; `done` is called with the outcome by
// the one that copied last. `memory` is kept until then.
void CopyLoanInParallel(std::shared_ptr<const ForeignMemory> memory, Loan loan,
                        const std::vector<MutableBuffer>& into,
                        const std::function<void(std::function<void()>)>& executor,
                        std::function<void(bool)> done);

}  // namespace tensorwire::wire
