#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan.h"
#include "simulator.h"
#include "tensorwire/wire/engine.h"

// The tasks of a simulated world, their calls to each other, and the outcomes. It lives outside of
// their processes; all of them write into it, and the invariants check it.
namespace tensorwire::simulation {

enum Method : uint16_t { kBytes = 1, kLate, kUnanswered, kFail, kPushes, kOneWay };

struct Ask {
  uint32_t record = 0;
  uint16_t method = kBytes;
  uint8_t handle_on = 0;
  uint64_t request_offset = 0;
  uint64_t request_bytes = 0;
  uint64_t reply_offset = 0;
  uint64_t reply_bytes = 0;  // for kFail: bytes of the error's message
  bool operator==(const Ask&) const = default;
};

struct Task;

struct Record {
  Ask ask;
  Task* task = nullptr;
  int incarnation = 0;  // of the calling task
  int64_t begun_ns = 0;
  int64_t frozen_before_ns = 0;
  int64_t end_by_ns = kNever;  // its deadline, or the time of its cancellation
  bool has_deadline = false;
  bool cancelled = false;
  bool ended = false;
  bool must_succeed = false;
  bool on_reactor = false;  // its end does not wait for an executor while the engine runs
  int handled = 0;
};

struct Task {
  int index = 0;
  int machine = 0;
  int port = 0;
  std::string name;
  std::string host;
  std::string address;  // where the other tasks connect to
  std::vector<int> targets;
  int reactors = 1;
  int streams = 1;
  int silent_ms = 1000;
  wire::Transport transport = wire::Transport::kAuto;

  Process* process = nullptr;  // null: not running
  int incarnation = 0;
  int callers_left = 0;
  bool listens = false;
  bool stop = false;
  bool probe = false;
  bool probed = false;
  bool expected_to_end = false;
  bool starts = false;  // it is about to start
  int64_t frozen_ns = 0;
  int64_t frozen_since_ns = 0;         // 0: not frozen
  std::multiset<int64_t> handed_over;  // times, of closures that wait or run
  int payloads = 0;                    // payloads that are held
  struct Held {
    uint64_t bytes = 0;
    uint64_t largest = 0;
  };
  std::map<uint64_t, Held> held;                    // by connection: unanswered requests
  std::set<std::pair<uint64_t, uint64_t>> handled;  // by connection and request
  std::set<uint64_t> gone;                          // connections that had their OnDisconnect
  int pushes_under_way = 0;

  // The total time for which it has been frozen.
  int64_t FrozenNs() const {
    return frozen_ns + (frozen_since_ns > 0 ? world->now_ns - frozen_since_ns : 0);
  }
};

struct Ledger {
  Plan plan;
  std::vector<std::unique_ptr<Task>> tasks;
  std::deque<Record> records;  // a deque, so that references stay valid
  uint64_t bytes = 0;
  int larges = 0;
  bool faults_over = false;
  bool ending = false;  // the tasks are being stopped, one after the other
  bool answer_all = false;
  uint64_t ok = 0;
};
extern Ledger* ledger;  // of the running seed (workload.cc)

}  // namespace tensorwire::simulation
