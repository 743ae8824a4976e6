#pragma once

#include <string>

#include "ledger.h"

// The calls of simulated tasks to each other. RunTask runs in a simulated process.
namespace tensorwire::simulation {

// The main thread of a task, from its start to its end.
void RunTask(Task* task);

// The message of the error with which a kFail call ends.
std::string ErrorText(const Ask& ask);

// Random bytes; payloads are parts of them. Made at the first call.
const char* Pattern();

}  // namespace tensorwire::simulation
