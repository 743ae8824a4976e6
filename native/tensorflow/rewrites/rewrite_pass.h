#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "metrics/single.h"
#include "rewrites/graph_rewrite.h"

namespace tensorwire::plugin {

// Rewrites that send less between tasks. None of them moves or copies an operation that reads or
// writes a variable, or changes what it waits for, and all leave results as they are, bit by bit.
// docs/decisions/rewrites.md.

// Repeated ids are sent once, and their rows come back once.
constexpr RewriteSwitch kUniquePull{"tensorwire_unique_pull", "unique_pull"};
// Gradients of equal ids are summed before they are sent.
constexpr RewriteSwitch kSummedPush{"tensorwire_summed_push", "summed_push"};

// Why a whole graph is not rewritten.
constexpr char kNoOrder[] = "a cycle that is no loop: nothing is known of the graph's order";

// How often a rewrite was applied in this process, and why it was not. Counts places in graphs.
class RewriteCounts {
 public:
  static constexpr const char* kApplied = "applied";

  static RewriteCounts& Get() { return Single<RewriteCounts>(); }

  // `outcome`: kApplied, or the reason why not.
  void Count(const char* rewrite, const char* outcome) {
    std::lock_guard lock(mutex_);
    ++counts_[{rewrite, outcome}];
  }

  using Counts = std::map<std::pair<std::string, std::string>, uint64_t>;
  Counts counts() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  Counts counts_;  // under mutex_
};

}  // namespace tensorwire::plugin
