#pragma once

#include <string>

#include "ledger.h"

// The calls of simulated tasks to each other. RunTask runs in a simulated process.
namespace tensorwire::simulation {

// The main thread of a task, from its start to its end.
void RunTask(Task* task);

// The message with which a kFail ends.
std::string ErrorText(const Ask& ask);

// Random bytes, of which payloads are parts; made when it is first asked for.
const char* Pattern();

}  // namespace tensorwire::simulation
