#include "server/stats.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "metrics/counters.h"
#include "metrics/single.h"
#include "metrics/tensor_figures.h"
#include "rewrites/graph_rewrite.h"
#include "rewrites/session_graphs.h"
#include "tensors/pool_allocator.h"
#include "tensorwire/wire/clock.h"
#include "training/work_queue.h"
#include "transport/remote_worker.h"

// The figures of this process, as JSON: what tensorwire.tf.stats() returns, without its sums.
// docs/metrics.md says what each of them is.

namespace tensorwire::plugin {
namespace {

class Planes {
 public:
  void Show(const DataPlane* plane, bool shown) {
    std::lock_guard lock(mutex_);
    if (shown) {
      planes_.insert(plane);
    } else {
      planes_.erase(plane);
    }
    changed_.notify_all();
  }
  bool AwaitOne(int timeout_ms) {
    std::unique_lock lock(mutex_);
    // Not wait_for, which needs glibc 2.30. If the clock is set, this returns early or late; the
    // caller calls again.
    const auto until = std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms);
    return changed_.wait_until(lock, until, [this] { return !planes_.empty(); });
  }
  std::string ToJson() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<const DataPlane*> planes_;
};

Planes& AllPlanes() { return Single<Planes>(); }

constexpr const char* kDirections[] = {"out", "in", "fused"};

std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
  }
  return quoted + '"';
}

// A member of a JSON object.
struct Member {
  Member(const char* name, uint64_t value) : name(name), json(std::to_string(value)) {}
  Member(const char* name, const std::atomic<uint64_t>& value)
      : Member(name, value.load(std::memory_order_relaxed)) {}
  Member(const char* name, const std::string& value) : name(name), json(Quote(value)) {}
  Member(const char* name, const std::vector<std::string>& elements)
      : name(name), json("[" + absl::StrJoin(elements, ", ") + "]") {}
  // `members`: of an object in this one.
  Member(const char* name, const std::vector<Member>& members);

  const char* name;
  std::string json;
};

std::string Object(const std::vector<Member>& members) {
  const auto format = [](std::string* to, const Member& member) {
    to->append("\"").append(member.name).append("\": ").append(member.json);
  };
  return "{" + absl::StrJoin(members, ", ", format) + "}";
}

Member::Member(const char* name, const std::vector<Member>& members)
    : name(name), json(Object(members)) {}

// One element for each tensor that carries a variable; one with tensor "" if it stays on its task.
std::vector<std::string> Variables() {
  std::vector<std::string> variables;
  SessionGraphs::Get().ForEach(
      [&](const std::string& name, const SessionGraphs::Variable& variable) {
        const std::set<std::string> stays{""};
        for (const std::string& tensor : variable.tensors.empty() ? stays : variable.tensors) {
          variables.push_back(Object({{"name", name},
                                      {"task", variable.task},
                                      {"bytes", variable.bytes},
                                      {"tensor", tensor}}));
        }
      });
  return variables;
}

// How often rewrites of graphs were applied, and how often not and why.
std::vector<std::string> Rewrites() {
  std::vector<std::string> rewrites;
  for (const auto& [what, count] : RewriteCounts::Get().counts()) {
    rewrites.push_back(
        Object({{"rewrite", what.first}, {"outcome", what.second}, {"places", count}}));
  }
  return rewrites;
}

// The tensors that are sent in 16 bits, and those that are excluded from it.
std::vector<std::string> WireDtypes() {
  std::vector<std::string> tensors;
  for (const auto& [tensor, variables, way, dtype] : RewriteCounts::Get().narrowed()) {
    tensors.push_back(
        Object({{"tensor", tensor}, {"variable", variables}, {"way", way}, {"dtype", dtype}}));
  }
  return tensors;
}

// The work queues whose variables are on this task.
std::vector<std::string> WorkQueues() {
  std::vector<std::string> queues;
  for (const WorkQueueFigures& queue : WorkQueueList::Get().All()) {
    std::vector<std::string> workers;
    workers.reserve(queue.workers.size());
    for (const auto& [name, worker] : queue.workers) {
      workers.push_back(Object({{"worker", name},
                                {"taken", worker.taken},
                                {"in_work", worker.in_work},
                                {"done", worker.done}}));
    }
    queues.push_back(Object({{"name", queue.name},
                             {"items", queue.items},
                             {"done", queue.done},
                             {"in_work", queue.in_work},
                             {"returned", queue.returned},
                             {"workers", workers}}));
  }
  return queues;
}

std::vector<std::string> Tensors() {
  std::vector<std::string> tensors;
  TensorFigures::Get().ForEach([&](const TensorFigures::Entry& entry) {
    tensors.push_back(
        Object({{"task", entry.task},
                {"peer", entry.peer},
                {"direction", std::string(kDirections[static_cast<size_t>(entry.direction)])},
                {"name", entry.name},
                {"tensors", entry.counters.tensors},
                {"bytes", entry.counters.bytes},
                {"not_ready_us", entry.counters.not_ready_us},
                {"wire_us", entry.counters.wire_us},
                {"waiting", entry.counters.waiting}}));
  });
  return tensors;
}

std::string Planes::ToJson() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> tensors = Tensors();
  std::vector<std::string> tasks, peers, reactors, tables, awaited;
  for (const DataPlane* plane : planes_) {
    const wire::EngineStats stats = plane->engine().stats();
    tasks.push_back(Object({{"task", plane->name()},
                            {"cluster", plane->cluster()},
                            {"polling", uint64_t{stats.polling}}}));
    for (const wire::PeerStats& peer : stats.peers) {
      peers.push_back(Object({{"task", plane->name()},
                              {"peer", peer.peer},
                              {"tx_bytes", peer.tx_bytes},
                              {"rx_bytes", peer.rx_bytes},
                              {"tx_frames", peer.tx_frames},
                              {"rx_frames", peer.rx_frames},
                              {"tx_syscalls", peer.tx_syscalls},
                              {"rx_syscalls", peer.rx_syscalls},
                              {"lent_bytes", peer.lent_bytes},
                              {"read_bytes", peer.read_bytes},
                              {"connects", peer.connects},
                              {"damaged_frames", peer.damaged_frames}}));
    }
    for (size_t index = 0; index < stats.reactors.size(); ++index) {
      reactors.push_back(Object(
          {{"task", plane->name()}, {"index", index}, {"busy_us", stats.reactors[index].busy_us}}));
    }
    for (const TableSize& table : plane->tables().Sizes()) {
      tables.push_back(Object({{"task", plane->name()},
                               {"name", table.name},
                               {"rows", table.rows},
                               {"row_bytes", table.row_bytes}}));
    }
  }
  for (const std::string& task : AwaitedTasks()) awaited.push_back(Object({{"task", task}}));

  const PluginCounters& counters = Counters();
  const int64_t now_us = wire::NowUs();
  std::vector<Member> pool;
  if (PoolAllocator* const allocator = PoolAllocator::Get(); allocator != nullptr) {
    const wire::BufferPool::Stats stats = allocator->pool()->stats();
    pool = {{"used_bytes", stats.used_bytes},
            {"kept_bytes", stats.kept_bytes},
            {"hits", stats.hits},
            {"misses", stats.misses}};
  }
  return Object({{"recv_tensors", counters.recv_tensors},
                 {"pushed_tensors", counters.pushed_tensors},
                 {"served_tensors", counters.served_tensors},
                 {"run_graphs", counters.run_graphs},
                 {"fused_messages", counters.fused_messages},
                 {"fused_tensors", counters.fused_tensors},
                 {"looked_up_ids", counters.looked_up_ids},
                 {"unique_ids", counters.unique_ids},
                 {"eager_calls", counters.eager_calls},
                 {"open_sessions", counters.open_sessions},
                 {"running_graphs", counters.running_graphs},
                 {"session_graphs", SessionGraphs::Get().graphs()},
                 {"unfiltered_graphs", SessionGraphs::Get().unfiltered_graphs()},
                 {"recv_waiting_us", RecvClock().total_us(now_us)},
                 {"clock_us", static_cast<uint64_t>(now_us)},
                 {"pool", pool},
                 {"tasks", tasks},
                 {"peers", peers},
                 {"reactors", reactors},
                 {"tensors", tensors},
                 {"variables", Variables()},
                 {"tables", tables},
                 {"awaited_tasks", awaited},
                 {"rewrites", Rewrites()},
                 {"wire_dtypes", WireDtypes()},
                 {"work_queues", WorkQueues()}});
}

}  // namespace

void ShowPlane(const DataPlane* plane, bool shown) { AllPlanes().Show(plane, shown); }

}  // namespace tensorwire::plugin

extern "C" {

const char* tensorwire_stats_json() {
  thread_local std::string json;
  json = tensorwire::plugin::AllPlanes().ToJson();
  return json.c_str();
}

// Waits until this process is a task. Returns 1 if it is, 0 after the timeout.
int tensorwire_await_task(int timeout_ms) {
  return tensorwire::plugin::AllPlanes().AwaitOne(timeout_ms) ? 1 : 0;
}
}
