#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace tensorwire::plugin {

// What is known of the most recent ids; a limited number of them. Thread-safe.
template <typename Value>
class Recent {
 public:
  explicit Recent(size_t most = 4096) : most_(most) {}

  // Keeps the value that an id has already.
  void Add(int64_t id, Value value = {}) {
    std::lock_guard lock(mutex_);
    if (!values_.emplace(id, std::move(value)).second) return;
    oldest_first_.push_back(id);
    if (oldest_first_.size() > most_) {
      values_.erase(oldest_first_.front());
      oldest_first_.pop_front();
    }
    any_.store(true, std::memory_order_seq_cst);
  }
  void Remove(int64_t id) {
    if (!any_.load(std::memory_order_seq_cst)) return;
    std::lock_guard lock(mutex_);
    if (values_.erase(id) == 0) return;
    oldest_first_.erase(std::find(oldest_first_.begin(), oldest_first_.end(), id));
  }
  std::optional<Value> Find(int64_t id) const {
    if (!any_.load(std::memory_order_seq_cst)) return std::nullopt;
    std::lock_guard lock(mutex_);
    const auto at = values_.find(id);
    return at == values_.end() ? std::nullopt : std::optional<Value>(at->second);
  }
  bool Has(int64_t id) const { return Find(id).has_value(); }

 private:
  const size_t most_;
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::unordered_map<int64_t, Value> values_;
  std::deque<int64_t> oldest_first_;
};

// Steps that failed, or that ended.
struct Nothing {};
using RecentSteps = Recent<Nothing>;

}  // namespace tensorwire::plugin
