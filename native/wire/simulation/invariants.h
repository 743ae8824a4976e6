#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ledger.h"
#include "tensorwire/wire/engine.h"

// The invariants. Each function ends the program if its invariant does not hold (Violated). All run
// in KernelMode.
namespace tensorwire::simulation {

std::string Describe(const Record& record);

// --- of a call ---
// The head of a reply has arrived; `first`: it is the call's first one.
void CheckReply(const Record& record, uint32_t number, uint64_t bytes, bool first);
// `replied`: the head of its reply has arrived; `intact`: the payload has the bytes that were sent.
void CheckEnd(const Record& record, const wire::Status& status, bool replied, bool intact);
void CheckDestroyed(const Record& record);
// Checks all calls that have not ended. `bytes_per_s`: a lower bound for the slowest link.
void CheckOpenCalls(int64_t bytes_per_s);

// --- of what a task serves ---
// The task handles a request. From now on its bytes count as unanswered.
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
// At rest: no call is under way.
void CheckRest(const Task& task);
// Checks that a task has ended by itself.
void CheckExit(const Task& task);

}  // namespace tensorwire::simulation
