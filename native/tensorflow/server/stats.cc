#include "server/stats.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "metrics/counters.h"
#include "metrics/tensor_figures.h"
#include "rewrites/narrow_pass.h"
#include "rewrites/rewrite_pass.h"
#include "rewrites/session_graphs.h"
#include "tensors/pool_allocator.h"
#include "tensorwire/wire/clock.h"
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

Planes& AllPlanes() {
  static Planes* planes = new Planes;  // threads may outlive static destruction
  return *planes;
}

constexpr const char* kDirections[] = {"out", "in", "fused"};

std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
  }
  return quoted + '"';
}

// Members of a JSON object, or elements of a list, as they are added.
class Items {
 public:
  void Add(const char* name, uint64_t value) { AddRaw(name, std::to_string(value)); }
  void Add(const char* name, const std::atomic<uint64_t>& value) {
    Add(name, value.load(std::memory_order_relaxed));
  }
  void Add(const char* name, const std::string& value) { AddRaw(name, Quote(value)); }
  void AddList(const char* name, const Items& elements) {
    AddRaw(name, "[" + elements.text_ + "]");
  }
  void AddObject(const char* name, const Items& members) { AddRaw(name, members.Object()); }
  void Append(const Items& members) { Separated() += members.Object(); }
  std::string Object() const { return "{" + text_ + "}"; }

 private:
  void AddRaw(const char* name, const std::string& value) {
    Separated().append("\"").append(name).append("\": ").append(value);
  }
  std::string& Separated() {
    if (!text_.empty()) text_ += ", ";
    return text_;
  }
  std::string text_;
};

void AddFigures(const wire::PeerStats& stats, Items* to) {
  to->Add("tx_bytes", stats.tx_bytes);
  to->Add("rx_bytes", stats.rx_bytes);
  to->Add("tx_frames", stats.tx_frames);
  to->Add("rx_frames", stats.rx_frames);
  to->Add("tx_syscalls", stats.tx_syscalls);
  to->Add("rx_syscalls", stats.rx_syscalls);
  to->Add("lent_bytes", stats.lent_bytes);
  to->Add("read_bytes", stats.read_bytes);
  to->Add("connects", stats.connects);
  to->Add("damaged_frames", stats.damaged_frames);
}

// One element for each tensor that carries a variable; one with tensor "" if it stays on its task.
Items Variables() {
  Items variables;
  SessionGraphs::Get().ForEach(
      [&](const std::string& name, const SessionGraphs::Variable& variable) {
        const std::set<std::string> stays{""};
        for (const std::string& tensor : variable.tensors.empty() ? stays : variable.tensors) {
          Items one;
          one.Add("name", name);
          one.Add("task", variable.task);
          one.Add("bytes", variable.bytes);
          one.Add("tensor", tensor);
          variables.Append(one);
        }
      });
  return variables;
}

Items Awaited() {
  Items tasks;
  for (const std::string& task : AwaitedTasks()) {
    Items one;
    one.Add("task", task);
    tasks.Append(one);
  }
  return tasks;
}

// How often rewrites of graphs were applied, and how often not and why.
Items Rewrites() {
  Items rewrites;
  for (const auto& [what, count] : RewriteCounts::Get().counts()) {
    Items one;
    one.Add("rewrite", what.first);
    one.Add("outcome", what.second);
    one.Add("places", count);
    rewrites.Append(one);
  }
  return rewrites;
}

// The tensors that are sent in 16 bits, and those that are excluded from it.
Items WireDtypes() {
  Items tensors;
  for (const NarrowedTensors::Entry& entry : NarrowedTensors::Get().entries()) {
    Items one;
    one.Add("tensor", entry.tensor);
    one.Add("variable", entry.variables);
    one.Add("way", entry.way);
    one.Add("dtype", entry.dtype);
    tensors.Append(one);
  }
  return tensors;
}

std::string Planes::ToJson() const {
  std::lock_guard lock(mutex_);
  Items tensors;
  TensorFigures::Get().ForEach([&](const TensorFigures::Entry& entry) {
    Items one;
    one.Add("task", entry.task);
    one.Add("peer", entry.peer);
    one.Add("direction", std::string(kDirections[static_cast<size_t>(entry.direction)]));
    one.Add("name", entry.name);
    one.Add("tensors", entry.counters.tensors);
    one.Add("bytes", entry.counters.bytes);
    one.Add("not_ready_us", entry.counters.not_ready_us);
    one.Add("wire_us", entry.counters.wire_us);
    one.Add("waiting", entry.counters.waiting);
    tensors.Append(one);
  });

  Items tasks, peers, reactors;
  for (const DataPlane* plane : planes_) {
    const wire::EngineStats stats = plane->stats();
    Items task;
    task.Add("task", plane->name());
    task.Add("cluster", plane->cluster());
    task.Add("polling", stats.polling ? 1 : 0);
    tasks.Append(task);
    for (const wire::PeerStats& peer : stats.peers) {
      Items one;
      one.Add("task", plane->name());
      one.Add("peer", peer.peer);
      AddFigures(peer, &one);
      peers.Append(one);
    }
    for (size_t index = 0; index < stats.reactors.size(); ++index) {
      Items one;
      one.Add("task", plane->name());
      one.Add("index", index);
      one.Add("busy_us", stats.reactors[index].busy_us);
      reactors.Append(one);
    }
  }

  Items all;
  const PluginCounters& counters = Counters();
  all.Add("recv_tensors", counters.recv_tensors);
  all.Add("pushed_tensors", counters.pushed_tensors);
  all.Add("served_tensors", counters.served_tensors);
  all.Add("run_graphs", counters.run_graphs);
  all.Add("fused_messages", counters.fused_messages);
  all.Add("fused_tensors", counters.fused_tensors);
  all.Add("looked_up_ids", counters.looked_up_ids);
  all.Add("unique_ids", counters.unique_ids);
  all.Add("eager_calls", counters.eager_calls);
  all.Add("open_sessions", counters.open_sessions);
  all.Add("running_graphs", counters.running_graphs);
  all.Add("session_graphs", SessionGraphs::Get().graphs());
  all.Add("unfiltered_graphs", SessionGraphs::Get().unfiltered_graphs());
  const int64_t now_us = wire::NowUs();
  all.Add("recv_waiting_us", RecvClock().total_us(now_us));
  all.Add("clock_us", static_cast<uint64_t>(now_us));
  Items pool;
  if (PoolAllocator* const allocator = PoolAllocator::Get(); allocator != nullptr) {
    const wire::BufferPool::Stats stats = allocator->pool()->stats();
    pool.Add("used_bytes", stats.used_bytes);
    pool.Add("kept_bytes", stats.kept_bytes);
    pool.Add("hits", stats.hits);
    pool.Add("misses", stats.misses);
  }
  all.AddObject("pool", pool);
  all.AddList("tasks", tasks);
  all.AddList("peers", peers);
  all.AddList("reactors", reactors);
  all.AddList("tensors", tensors);
  all.AddList("variables", Variables());
  all.AddList("awaited_tasks", Awaited());
  all.AddList("rewrites", Rewrites());
  all.AddList("wire_dtypes", WireDtypes());
  return all.Object();
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
