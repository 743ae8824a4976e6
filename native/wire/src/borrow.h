#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "loans.h"
#include "tensorwire/wire/message.h"

namespace tensorwire::wire {

// Copies what a loan describes into `into`, buffers of as many bytes: small ones in this thread,
// large ones on as many threads of the executor as cores help. Then `done(true)`, or `done(false)`
// when the loan had ended before all of it was copied, in the thread that copied last. `memory` is
// kept until then.
void CopyLoan(std::shared_ptr<const ForeignMemory> memory, Loan loan,
              const std::vector<MutableBuffer>& into,
              const std::function<void(std::function<void()>)>& executor,
              std::function<void(bool)> done);

// Whether CopyLoan would do it in the calling thread.
bool IsCopiedAtOnce(uint64_t bytes);

}  // namespace tensorwire::wire
