#pragma once

#include <string>

#include "ledger.h"

// What tasks ask of each other. RunTask runs in a simulated process.
namespace tensorwire::simulation {

// What the main thread of a task does, from its start to its end.
void RunTask(Task* task);

// The message with which a kFail ends.
std::string ErrorText(const Ask& ask);

// Random bytes, of which payloads are parts; made when it is first asked for.
const char* Pattern();

}  // namespace tensorwire::simulation
