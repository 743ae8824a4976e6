#include "push_inbox.h"

#include <algorithm>
#include <functional>

#include "counters.h"
#include "pool_allocator.h"
#include "status.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {
// A push that arrives.
class PushInbox::PushCall : public wire::Call {
 public:
  PushCall(std::shared_ptr<PushInbox> inbox, uint32_t order)
      : inbox_(std::move(inbox)), order_(order) {}

  wire::Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                                  std::vector<wire::MutableBuffer>* into) override {
    wire::MetadataReader reader(metadata);
    has_step_ = reader.Get(&step_id_);
    if (!has_step_) return wire::Status(wire::Code::kInternal, "a malformed push");
    return ToWire(
        tensor_.Prepare(reader.rest(), payload_bytes, HostMemoryFor(payload_bytes), into));
  }

  void Done(const wire::Status& status) override {
    if (has_step_) inbox_->Deliver(step_id_, order_, {std::move(tensor_), 0, FromWire(status)});
  }

 private:
  const std::shared_ptr<PushInbox> inbox_;
  const uint32_t order_;
  bool has_step_ = false;
  int64_t step_id_ = 0;
  IncomingTensor tensor_;
};

PushInbox::Expected PushInbox::Expect(int64_t step_id, std::string_view key,
                                      const std::shared_ptr<Waiter>& waiter, uint32_t* order,
                                      Pushed* here, TensorCounters** counters) {
  std::lock_guard lock(mutex_);
  std::string name(key);
  auto known = orders_.find(name);
  if (known == orders_.end()) {
    if (seen_.size() >= kMostSeen) seen_.clear();
    const bool first = seen_.insert(std::hash<std::string>()(name)).second;
    if (first || orders_.size() >= kMostOrders) {
      *order = 0;
      *counters = TensorFigures::Get().Of(key, TensorFigures::Direction::kIn);
      unordered_[{step_id, std::move(name)}] = waiter;
      return Expected::kAsk;
    }
    const Order fresh{++last_order_, TensorFigures::Get().Of(key, TensorFigures::Direction::kIn)};
    known = orders_.emplace(std::move(name), fresh).first;
    keys_[fresh.number] = known->first;
  }
  *order = known->second.number;
  *counters = known->second.counters;
  const Slot slot{step_id, *order};
  if (const auto parked = parked_.find(slot); parked != parked_.end()) {
    *here = std::move(parked->second);
    parked_.erase(parked);
    any_parked_.store(!parked_.empty(), std::memory_order_release);
    if (!here->declined()) return Expected::kHere;
  }
  const bool asks = here->declined() || accepted_.count(*order) == 0;
  waiting_[slot] = {waiter, wire::NowMs(), asks};
  if (asks) return Expected::kAsk;
  ArmLocked();
  return Expected::kWait;
}

void PushInbox::Accept(uint32_t order, int64_t round_trip_us) {
  std::lock_guard lock(mutex_);
  accepted_.insert(order);
  times_.NoteRoundTrip(round_trip_us);
}

void PushInbox::Forget(int64_t step_id, uint32_t order, std::string_view key) {
  std::lock_guard lock(mutex_);
  if (order == 0) {
    unordered_.erase({step_id, std::string(key)});
  } else {
    waiting_.erase({step_id, order});
  }
}

void PushInbox::EndStep(int64_t step_id) {
  std::vector<Pushed> dropped;  // freed without the lock
  std::lock_guard lock(mutex_);
  ended_.push_back(step_id);
  if (ended_.size() > kEndedSteps) ended_.pop_front();
  if (!any_parked_.load(std::memory_order_acquire)) return;
  auto at = parked_.lower_bound({step_id, 0});
  while (at != parked_.end() && at->first.first == step_id) {
    dropped.push_back(std::move(at->second));
    at = parked_.erase(at);
  }
  any_parked_.store(!parked_.empty(), std::memory_order_release);
}

std::unique_ptr<wire::Call> PushInbox::BeginFromReactor(uint64_t what) {
  Counters().pushed_tensors.fetch_add(1, std::memory_order_relaxed);
  return std::make_unique<PushCall>(shared_from_this(), static_cast<uint32_t>(what));
}

void PushInbox::Deliver(int64_t step_id, uint32_t order, Pushed pushed) {
  std::shared_ptr<Waiter> waiter;
  const bool declined = pushed.declined();
  {
    std::lock_guard lock(mutex_);
    accepted_.insert(order);  // or it would not have come
    if (pushed.status.ok() && !declined) {
      pushed.way_us = times_.WayOf(pushed.tensor.made_us(), pushed.tensor.head_us());
    }
    const Slot slot{step_id, order};
    if (const auto at = waiting_.find(slot); at != waiting_.end()) {
      waiter = at->second.waiter;
      if (!declined) {
        waiting_.erase(at);
      } else if (std::exchange(at->second.asked, true)) {
        waiter.reset();
      }
    } else if (const auto asked = FindUnorderedLocked(step_id, order); asked != unordered_.end()) {
      if (declined) return;
      waiter = std::move(asked->second);
      unordered_.erase(asked);
    } else if (std::find(ended_.begin(), ended_.end(), step_id) == ended_.end()) {
      parked_[slot] = std::move(pushed);
      any_parked_.store(true, std::memory_order_release);
      return;
    }
  }
  if (waiter == nullptr) return;
  if (declined) {
    waiter->Ask();
  } else {
    waiter->OnPush(std::move(pushed));
  }
}

PushInbox::Unordered::iterator PushInbox::FindUnorderedLocked(int64_t step_id, uint32_t order) {
  if (unordered_.empty()) return unordered_.end();
  const auto key = keys_.find(order);
  return key == keys_.end() ? unordered_.end()
                            : unordered_.find({step_id, std::string(key->second)});
}

void PushInbox::OnLost(const wire::Status& why) {
  std::map<Slot, Waiting> waiting;
  std::map<Slot, Pushed> parked;
  {
    std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
    parked.swap(parked_);
    any_parked_.store(false, std::memory_order_release);
    keys_.clear();
    orders_.clear();
    accepted_.clear();
  }
  for (auto& [slot, entry] : waiting) {
    // Who has asked hears it from the request.
    if (!entry.asked) entry.waiter->OnLost(FromWire(why));
  }
}

void PushInbox::ArmLocked() {
  if (armed_) return;
  const auto channel = channel_.lock();
  if (channel == nullptr) return;
  armed_ = true;
  channel->RunAfter(kAskAfterMs, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->AskForOverdue();
  });
}

void PushInbox::AskForOverdue() {
  std::vector<std::shared_ptr<Waiter>> overdue;
  {
    std::lock_guard lock(mutex_);
    armed_ = false;
    const int64_t now_ms = wire::NowMs();
    bool more = false;
    for (auto& [slot, entry] : waiting_) {
      if (entry.asked) continue;
      if (now_ms - entry.since_ms < kAskAfterMs) {
        more = true;
        continue;
      }
      entry.asked = true;
      overdue.push_back(entry.waiter);
    }
    if (more) ArmLocked();
  }
  for (const auto& waiter : overdue) waiter->Ask();
}

}  // namespace tensorwire::plugin
