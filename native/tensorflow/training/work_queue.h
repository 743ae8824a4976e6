#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "metrics/single.h"

namespace tensorwire::plugin {

// An attribute of the variable that has a work queue's state.
constexpr char kWorkQueueAttr[] = "_tensorwire_work_queue";

constexpr int64_t kNoNumber = -1;

// A receipt has the number of an item, the index of an element in it, and whether that is the last
// one.
struct Receipt {
  static constexpr int64_t kItems = int64_t{1} << 31;
  static constexpr int64_t kWholeItem = kItems - 1;  // in place of an index
  int64_t number = kNoNumber;                        // so where the item is another holder's
  int64_t index = 0;
  bool is_last = false;

  static Receipt Of(int64_t coded) {
    return {coded >> 32, (coded & 0xffffffff) >> 1, (coded & 1) != 0};
  }
  int64_t Coded() const { return number * (int64_t{1} << 32) + 2 * index + (is_last ? 1 : 0); }
};

// What metrics show of a work queue on this task.
struct WorkQueueFigures {
  struct Worker {
    uint64_t in_work = 0;
    uint64_t taken = 0;
    uint64_t done = 0;
  };
  std::string name;
  uint64_t items = 0;     // of all epochs; 0 if they have no end
  uint64_t done = 0;      // as the variable has it
  uint64_t in_work = 0;   // by a worker
  uint64_t returned = 0;  // given back by a worker, and not taken again
  std::map<std::string, Worker> workers;
};

// The work queues of this process.
class WorkQueueList {
 public:
  class Entry {
   public:
    virtual ~Entry() = default;
    virtual WorkQueueFigures Figures() const = 0;
  };

  static WorkQueueList& Get() { return Single<WorkQueueList>(); }
  void Add(const Entry* entry) {
    std::lock_guard lock(mutex_);
    entries_.insert(entry);
  }
  void Remove(const Entry* entry) {
    std::lock_guard lock(mutex_);
    entries_.erase(entry);
  }
  std::vector<WorkQueueFigures> All() const {
    std::lock_guard lock(mutex_);
    std::vector<WorkQueueFigures> all;
    all.reserve(entries_.size());
    for (const Entry* entry : entries_) all.push_back(entry->Figures());
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::set<const Entry*> entries_;
};

}  // namespace tensorwire::plugin
