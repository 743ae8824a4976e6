#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tensorwire/wire/engine.h"

namespace tensorwire::wire {

inline Status Cancelled() { return Status(Code::kCancelled, "the call was cancelled"); }

// The calls of a channel that wait for their reply. The code that takes a call out ends it, so that
// each call ends once: by its reply, its error, its deadline, its cancellation, or the loss of the
// connection. An id is not reused while a stale frame could carry it. Not synchronised.
class CallTable {
 public:
  struct Entry {
    std::unique_ptr<Call> call;
    RunOn done_on = RunOn::kExecutor;
    int64_t deadline_ms = 0;    // 0: none
    bool is_cancelled = false;  // then deadline_ms limits the wait for the peer's answer
    Status EndedBy(const Status& why) const { return is_cancelled ? Cancelled() : why; }
  };

  uint64_t Insert(std::unique_ptr<Call> call, RunOn done_on, int64_t deadline_ms = 0) {
    uint32_t index = 0;
    if (free_.empty()) {
      index = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Slot& slot = slots_[index];
    slot.entry = {std::move(call), done_on, deadline_ms, false};
    ++size_;
    return static_cast<uint64_t>(slot.generation) << 32 | index;
  }

  // Null if the call is not in the table any more. Valid until the next insertion.
  Entry* Find(uint64_t id) {
    const auto index = static_cast<uint32_t>(id);
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.generation == id >> 32 && slot.entry.call != nullptr ? &slot.entry : nullptr;
  }

  // The entry's call is null if the call is not in the table any more.
  Entry Take(uint64_t id) {
    Entry* const found = Find(id);
    if (found == nullptr) return {};
    Entry entry = std::move(*found);
    found->call = nullptr;
    const auto index = static_cast<uint32_t>(id);
    ++slots_[index].generation;
    free_.push_back(index);
    --size_;
    return entry;
  }

  std::vector<Entry> TakeAll() {
    std::vector<Entry> all;
    for (uint32_t index = 0; index < slots_.size(); ++index) {
      const uint64_t id = static_cast<uint64_t>(slots_[index].generation) << 32 | index;
      if (Entry entry = Take(id); entry.call != nullptr) all.push_back(std::move(entry));
    }
    return all;
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    uint32_t generation = 1;
    Entry entry;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  size_t size_ = 0;
};

}  // namespace tensorwire::wire
