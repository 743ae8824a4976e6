#include "invariants.h"

#include <algorithm>
#include <string>

#include "calls.h"
#include "kernel.h"

namespace tensorwire::simulation {

namespace {

using wire::Code;
using wire::Status;

// How late an engine may be, because its threads may lose their cores.
constexpr int64_t kSlackNs = 60 * kMs;
constexpr int64_t kPromptNs = 250 * kMs;

// The allowed delay of a call: includes the time in which its process was frozen since the call
// began.
int64_t SlackNs(const Record& record) {
  return kSlackNs + record.task->FrozenNs() - record.frozen_before_ns;
}

// True if the call's end does not wait for an executor. An engine that stops ends the remaining
// calls on its executor.
bool EndsOnReactor(const Record& record) { return record.on_reactor && !record.task->stop; }

bool AllowedFailure(const Record& record, const Status& status) {
  const Plan& plan = ledger->plan;
  switch (status.code()) {
    case Code::kDeadlineExceeded:
      return record.has_deadline && world->now_ns >= record.end_by_ns;
    case Code::kCancelled:
      return record.cancelled || record.task->stop;
    case Code::kUnavailable:
      return plan.loses() || record.task->stop || ledger->ending;
    case Code::kFailedPrecondition:
      return plan.flips;
    case Code::kDataLoss:
      return plan.flips;
    case Code::kOutOfRange:
      return record.ask.method == kFail && status.message() == ErrorText(record.ask);
    case Code::kResourceExhausted:
      return plan.bounds_unanswered();
    default:
      return false;
  }
}

}  // namespace

std::string Describe(const Record& record) {
  return "call " + std::to_string(record.ask.record) + " of " + record.task->name + " (method " +
         std::to_string(record.ask.method) + ", " + std::to_string(record.ask.request_bytes) +
         " bytes there, " + std::to_string(record.ask.reply_bytes) + " back, begun at " +
         std::to_string(static_cast<double>(record.begun_ns) / kMs) + " ms)";
}

void CheckReply(const Record& record, uint32_t number, uint64_t bytes, bool first) {
  const uint64_t expected = record.ask.method == kFail ? 0 : record.ask.reply_bytes;
  if (number != record.ask.record || bytes != expected || !first) {
    Violated(Describe(record) + " got the head of another reply");
  }
}

void CheckEnd(const Record& record, const Status& status, bool replied, bool intact) {
  if (record.ended) Violated(Describe(record) + " ended twice");
  if (status.ok()) {
    if (record.ask.method == kFail) Violated(Describe(record) + " did not fail");
    if (!intact) Violated(Describe(record) + " got other bytes than were sent");
    if (!replied) Violated(Describe(record) + " succeeded without a reply");
  } else if (record.must_succeed || !AllowedFailure(record, status)) {
    Violated(Describe(record) + " failed with code " +
             std::to_string(static_cast<int>(status.code())) + ": " +
             status.message().substr(0, 200));
  }
  const int64_t decided_ns = current->handed_over_ns > 0 && !EndsOnReactor(record)
                                 ? current->handed_over_ns
                                 : world->now_ns;
  if (record.end_by_ns != kNever && decided_ns > record.end_by_ns + SlackNs(record)) {
    Violated(Describe(record) + " ended " + std::to_string((decided_ns - record.end_by_ns) / kMs) +
             " ms after its deadline or cancellation");
  }
}

void CheckDestroyed(const Record& record) {
  if (!record.ended) Violated(Describe(record) + " was dropped without an end");
}

void CheckOpenCalls(int64_t bytes_per_s) {
  const Plan& plan = ledger->plan;
  const int64_t now = world->now_ns;
  // The time that all transfers together may take on the slowest link.
  const int64_t prompt_ns = kPromptNs + static_cast<int64_t>(ledger->bytes) * kSecond / bytes_per_s;
  for (const Record& record : ledger->records) {
    if (record.ended) continue;
    const Task& task = *record.task;
    if (task.frozen_since_ns > 0) continue;
    const int64_t late_ns =
        record.end_by_ns == kNever ? kNever : record.end_by_ns + SlackNs(record);
    if (late_ns < now - kSlackNs && (EndsOnReactor(record) || task.handed_over.empty() ||
                                     *task.handed_over.begin() > late_ns)) {
      Violated(Describe(record) + " has not ended, " +
               std::to_string((now - record.end_by_ns) / kMs) +
               " ms after its deadline or cancellation");
    }
    const bool at_once =
        record.ask.method == kBytes || record.ask.method == kFail || record.ask.method == kPushes;
    if (plan.prompt() && at_once && now - record.begun_ns > prompt_ns) {
      Violated(Describe(record) + " takes too long, and no fault explains it");
    }
  }
}

void CheckRequest(Task* task, const Ask& ask, const wire::Request& request, uint64_t payload_bytes,
                  bool intact) {
  const uint64_t connection_id = request.connection_id();
  const uint64_t bytes = request.metadata.size() + payload_bytes;
  Record& record = ledger->records[ask.record];
  if (!(record.ask == ask)) Violated(Describe(record) + ": another request arrived");
  if (++record.handled > 1) Violated(Describe(record) + " was handled twice");
  if (!intact) Violated(Describe(record) + ": other bytes arrived than were sent");
  if (!request.one_way) task->handled.emplace(connection_id, request.id);
  if (task->gone.count(connection_id) > 0) {
    Violated(Describe(record) + " is handled after its connection's OnDisconnect");
  }
  Task::Held& held = task->held[connection_id];
  held.bytes += bytes;
  held.largest = std::max(held.largest, bytes);
  // The request that exceeds the limit is still admitted. `largest` is used because requests are
  // not handled in the order of their arrival.
  if (held.bytes > ledger->plan.unanswered_bytes + held.largest) {
    Violated("unanswered requests of one connection hold " + std::to_string(held.bytes) +
             " bytes; the limit is " + std::to_string(ledger->plan.unanswered_bytes));
  }
}

void CheckCancel(const Task& task, uint64_t connection_id, uint64_t request_id) {
  const Plan& plan = ledger->plan;
  // A request that is refused, damaged, or for a range of a large payload does not reach Handle.
  if (plan.bounds_unanswered() || plan.flips || plan.large_bytes > (8 << 20)) return;
  if (task.handled.count({connection_id, request_id}) > 0) return;
  Violated("a cancellation came to " + task.name + " before its request");
}

void CheckDisconnect(Task* task, uint64_t connection_id) {
  if (!task->gone.insert(connection_id).second) Violated("OnDisconnect twice for one connection");
  // A client that has come to the lane closes its TCP connection, over which it has sent nothing.
  const auto first = task->handled.lower_bound({connection_id, 0});
  const bool is_used = first != task->handled.end() && first->first == connection_id;
  if (is_used || !ledger->plan.shared_memory) CheckLost(*task, "OnDisconnect");
}

void CheckLost(const Task& task, const std::string& why) {
  if (ledger->plan.loses() || task.stop || ledger->ending) return;
  Violated(task.name + " loses a connection, and nothing broke it: " + why);
}

void CheckPush(const Task& task, const Status& status, bool intact) {
  if (!intact) Violated("a push to " + task.name + " got other bytes than were sent");
  if (!status.ok()) CheckLost(task, "a push failed: " + status.message());
}

void CheckRest(const Task& task) {
  if (task.payloads > 0) Violated(task.name + ": payloads are still held at rest");
  if (task.pushes_under_way > 0) Violated(task.name + ": a push has not ended");
  size_t connections = 1;
  for (const auto& other : ledger->tasks) {
    const auto streams = static_cast<size_t>(other->streams > 0 ? other->streams : other->reactors);
    connections += streams * static_cast<size_t>(std::count(other->targets.begin(),
                                                            other->targets.end(), task.index));
  }
  const auto streams = static_cast<size_t>(task.streams > 0 ? task.streams : task.reactors);
  connections += streams * task.targets.size();
  const auto reactors = static_cast<size_t>(task.reactors);
  const size_t descriptors = OpenDescriptors(task.process);
  const size_t of_memory = ledger->plan.shared_memory ? 3 : 0;  // the file twice, and the lane
  if (descriptors > 3 * reactors + 1 + of_memory + connections) {
    Violated(task.name + " has " + std::to_string(descriptors) + " descriptors open at rest");
  }
  for (const auto& file : task.process->files) {
    const auto* const socket = dynamic_cast<const Socket*>(file.get());
    if (socket != nullptr && socket->over()) {
      Violated(task.name + " keeps a socket of a connection that has ended");
    }
  }
  const size_t blocks = task.process->block_count;
  const size_t most = 90 + 10 * reactors + 12 * connections;
  Trace("at rest", static_cast<int64_t>(blocks), static_cast<int64_t>(most));
  if (blocks > most) {
    Violated(task.name + " has " + std::to_string(blocks) + " blocks of memory at rest; with " +
             std::to_string(connections) + " connections it ought to have " + std::to_string(most) +
             " at most");
  }
}

void CheckExit(const Task& task) {
  Process* const process = task.process;
  if (!task.stop && !task.expected_to_end) Violated(task.name + " ended by itself");
  for (const Record& record : ledger->records) {
    if (record.task == &task && record.incarnation == task.incarnation && !record.ended) {
      Violated(Describe(record) + " has not ended, and its engine has");
    }
  }
  if (OpenDescriptors(process) > 0) {
    Violated(task.name + " leaves " + std::to_string(OpenDescriptors(process)) +
             " descriptors open");
  }
  if (task.payloads > 0) Violated(task.name + " leaves payloads that were not released");
  if (!process->mappings.empty()) Violated(task.name + " leaves memory mapped");
  if (const std::string leaks = world->Leaks(process); !leaks.empty()) {
    Violated(task.name + " leaks blocks of these sizes:" + leaks);
  }
}

}  // namespace tensorwire::simulation
