#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_set>

namespace tensorwire::plugin {

// Steps of which a partition has failed. The master starts a step's partitions one after another
// and, when one fails, cancels those that have started; one that starts a moment later would run,
// and be waited for, as if nothing had happened. It looks here instead. Thread-safe.
class FailedSteps {
 public:
  // Before the master learns of the failure.
  void Mark(int64_t step_id) {
    std::lock_guard lock(mutex_);
    if (!steps_.insert(step_id).second) return;
    order_.push_back(step_id);
    if (order_.size() > kRemembered) {
      steps_.erase(order_.front());
      order_.pop_front();
    }
    any_.store(true, std::memory_order_seq_cst);
  }
  // After the cancellation of this partition has been made possible.
  bool Has(int64_t step_id) {
    if (!any_.load(std::memory_order_seq_cst)) return false;
    std::lock_guard lock(mutex_);
    return steps_.count(step_id) != 0;
  }

 private:
  static constexpr size_t kRemembered = 1024;
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::unordered_set<int64_t> steps_;
  std::deque<int64_t> order_;
};

}  // namespace tensorwire::plugin
