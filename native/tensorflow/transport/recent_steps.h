#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_set>

namespace tensorwire::plugin {

// The most recent steps that failed, or that ended; a limited number of them. Thread-safe.
class RecentSteps {
 public:
  explicit RecentSteps(size_t most = 4096) : most_(most) {}

  void Add(int64_t step_id) {
    std::lock_guard lock(mutex_);
    if (!steps_.insert(step_id).second) return;
    oldest_first_.push_back(step_id);
    if (oldest_first_.size() > most_) {
      steps_.erase(oldest_first_.front());
      oldest_first_.pop_front();
    }
    any_.store(true, std::memory_order_seq_cst);
  }
  void Remove(int64_t step_id) {
    if (!any_.load(std::memory_order_seq_cst)) return;
    std::lock_guard lock(mutex_);
    if (steps_.erase(step_id) == 0) return;
    oldest_first_.erase(std::find(oldest_first_.begin(), oldest_first_.end(), step_id));
  }
  bool Has(int64_t step_id) const {
    if (!any_.load(std::memory_order_seq_cst)) return false;
    std::lock_guard lock(mutex_);
    return steps_.count(step_id) != 0;
  }

 private:
  const size_t most_;
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::unordered_set<int64_t> steps_;
  std::deque<int64_t> oldest_first_;
};

}  // namespace tensorwire::plugin
