#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "metrics/single.h"
#include "rewrites/graph_rewrite.h"

namespace tensorwire::plugin {

// The graphs that sessions of this task execute: where their variables are, under which names
// those and their updates travel, and whether a session has the devices of other workers.
// Thread-safe.
class SessionGraphs {
 public:
  struct Variable {
    std::string task;
    uint64_t bytes = 0;             // 0: its shape is not known, or it is a table
    std::set<std::string> tensors;  // that cross between tasks for it alone
  };

  static SessionGraphs& Get() { return Single<SessionGraphs>(); }

  void Add(const Graph& graph, bool is_unfiltered);
  void ForEach(const std::function<void(const std::string&, const Variable&)>& visit) const;
  uint64_t graphs() const { return graphs_.load(std::memory_order_relaxed); }
  uint64_t unfiltered_graphs() const { return unfiltered_graphs_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kMostVariables = 4096;
  static constexpr size_t kMostTensors = 16;  // of a variable

  mutable std::mutex mutex_;
  std::atomic<uint64_t> graphs_{0};
  std::atomic<uint64_t> unfiltered_graphs_{0};
  std::map<std::string, Variable> variables_;
};

}  // namespace tensorwire::plugin
