#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ledger.h"
#include "tensorwire/wire/engine.h"

// The invariants. Each of these ends the program where it does not hold (Violated);
// all in KernelMode.
namespace tensorwire::simulation {

std::string Describe(const Record& record);

// --- of a call ---
// The head of a reply has come; `first`: no other one has.
void CheckReply(const Record& record, uint32_t number, uint64_t bytes, bool first);
// `replied`: the head of its reply has come; `intact`: with the bytes that were sent.
void CheckEnd(const Record& record, const wire::Status& status, bool replied, bool intact);
void CheckDestroyed(const Record& record);
// All calls that have not ended. `bytes_per_s`: what the slowest link carries at least.
void CheckOpenCalls(int64_t bytes_per_s);

// --- of what a task serves ---
// It is given a request with a payload of so many bytes, which are unanswered from now on.
void CheckRequest(Task* task, const Ask& ask, const wire::Request& request, uint64_t payload_bytes,
                  bool intact);
// OnCancel.
void CheckCancel(const Task& task, uint64_t connection_id, uint64_t request_id);
// OnDisconnect.
void CheckDisconnect(Task* task, uint64_t connection_id);
void CheckPush(const Task& task, const wire::Status& status, bool intact);

// --- of a task ---
// A connection has been lost, at either end.
void CheckLost(const Task& task, const std::string& why);
// At rest: nothing is under way.
void CheckRest(const Task& task);
// Checks that a task has ended by itself.
void CheckExit(const Task& task);

}  // namespace tensorwire::simulation
