#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace tensorwire::wire {

// The deadlines of a channel's calls, and the time of the next look for overdue ones. A call with a
// deadline is in here from its start until it has ended. Not synchronised.
class Deadlines {
 public:
  // Returns true if the next look would be too late for this deadline, so that the caller has to
  // plan an earlier one.
  bool Add(int64_t deadline_ms, uint64_t call_id) {
    deadlines_.emplace(deadline_ms, call_id);
    if (deadline_ms >= next_look_ms_) return false;
    next_look_ms_ = deadline_ms;
    return true;
  }
  // `deadline_ms` is 0 if the call has none.
  void Remove(int64_t deadline_ms, uint64_t call_id) {
    if (deadline_ms != 0) deadlines_.erase({deadline_ms, call_id});
  }
  void Clear() { deadlines_.clear(); }

  std::vector<uint64_t> TakeOverdue(int64_t now_ms) {
    std::vector<uint64_t> overdue;
    const auto end = deadlines_.upper_bound({now_ms, std::numeric_limits<uint64_t>::max()});
    for (auto at = deadlines_.begin(); at != end; ++at) overdue.push_back(at->second);
    deadlines_.erase(deadlines_.begin(), end);
    return overdue;
  }
  // When the caller has to look next; empty if there is no deadline.
  std::optional<int64_t> PlanLook() {
    next_look_ms_ = deadlines_.empty() ? kNever : deadlines_.begin()->first;
    return deadlines_.empty() ? std::nullopt : std::optional(next_look_ms_);
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  std::set<std::pair<int64_t, uint64_t>> deadlines_;  // with the call's id
  int64_t next_look_ms_ = kNever;
};

}  // namespace tensorwire::wire
