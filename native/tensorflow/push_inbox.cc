#include "push_inbox.h"

#include <algorithm>
#include <cstring>
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
    inbox_->arrived_us_.store(wire::ArrivedUs(), std::memory_order_relaxed);
    wire::MetadataReader reader(metadata);
    has_step_ = reader.Get(&step_id_);
    if (!has_step_) return wire::Status(wire::Code::kInternal, "a malformed push");
    if (inbox_->ended_->Has(step_id_))
      return wire::Status(wire::Code::kCancelled, "the step is over");
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

std::string PushInbox::NameOf(uint64_t scope, std::string_view key) {
  std::string name(sizeof(scope) + key.size(), '\0');
  std::memcpy(name.data(), &scope, sizeof(scope));
  std::memcpy(name.data() + sizeof(scope), key.data(), key.size());
  return name;
}

PushInbox::Order PushInbox::OrderFor(uint64_t scope, std::string_view key, bool may_be_new) {
  std::string name = NameOf(scope, key);
  std::lock_guard lock(mutex_);
  if (const auto at = known_.find(name); at != known_.end()) return at->second.order;
  Order order;
  order.counters = TensorFigures::Get().Of(key, TensorFigures::Direction::kIn);
  if (!may_be_new) return order;
  if (seen_.size() >= kMostSeen) seen_.clear();
  const bool first = seen_.insert(std::hash<std::string>()(name)).second;
  if (first || known_.size() >= kMostOrders) return order;
  order.number = ++last_order_;
  const auto added = known_.emplace(std::move(name), Known{order}).first;
  orders_[order.number] = &*added;
  return order;
}

PushInbox::Expected PushInbox::Expect(int64_t step_id, uint32_t order, std::string_view key,
                                      const std::shared_ptr<Waiter>& waiter, Pushed* here) {
  std::lock_guard lock(mutex_);
  const int64_t now_ms = wire::NowMs();
  if (order == 0) {
    unordered_[{step_id, std::string(key)}] = {waiter, State::kAsked, now_ms};
    return Expected::kAsk;
  }
  const Slot slot{step_id, order};
  bool asks = false;
  if (const auto at = parked_.find(slot); at != parked_.end()) {
    *here = TakeParkedLocked(at);
    if (!here->declined()) return Expected::kHere;
    asks = true;
  }
  // Since the order was looked up, the session may have ended and removed it, or the connection may
  // have been lost and the order has to be given again.
  const auto known = orders_.find(order);
  asks = asks || known == orders_.end() || !known->second->second.accepted;
  waiting_[slot] = {waiter, asks ? State::kAsked : State::kExpected, now_ms};
  if (asks) return Expected::kAsk;
  ArmLocked();
  return Expected::kWait;
}

void PushInbox::Accept(uint32_t order, int64_t round_trip_us) {
  std::lock_guard lock(mutex_);
  if (const auto at = orders_.find(order); at != orders_.end()) at->second->second.accepted = true;
  times_.NoteRoundTrip(round_trip_us);
}

void PushInbox::Promise(int64_t step_id, uint32_t order, std::string_view key) {
  std::shared_ptr<Waiter> waiter;
  Pushed here;
  {
    std::lock_guard lock(mutex_);
    Waiting* waiting = nullptr;
    if (order == 0) {
      const auto at = unordered_.find({step_id, std::string(key)});
      if (at != unordered_.end()) waiting = &at->second;
    } else if (const auto at = waiting_.find({step_id, order}); at != waiting_.end()) {
      waiting = &at->second;
    }
    if (waiting == nullptr) return;  // the tensor has arrived meanwhile
    const auto parked = order == 0 ? FindParkedLocked(step_id, key) : parked_.end();
    if (parked == parked_.end()) {
      waiting->Move(State::kPromised, wire::NowMs());
      ArmLocked();
      return;
    }
    waiter = waiting->waiter;
    here = TakeParkedLocked(parked);
  }
  if (here.declined()) {
    waiter->Ask();
  } else {
    waiter->OnPush(std::move(here));
  }
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
  if (!any_parked_.load(std::memory_order_seq_cst)) return;
  std::vector<Parked> dropped;  // freed after the lock is released
  std::lock_guard lock(mutex_);
  auto at = parked_.lower_bound({step_id, 0});
  while (at != parked_.end() && at->first.first == step_id) {
    dropped.push_back(std::move(at->second));
    at = parked_.erase(at);
  }
  any_parked_.store(!parked_.empty(), std::memory_order_seq_cst);
}

void PushInbox::EndScope(uint64_t scope) {
  const std::string begin = NameOf(scope, "");
  std::lock_guard lock(mutex_);
  for (auto at = known_.begin(); at != known_.end();) {
    if (at->first.compare(0, begin.size(), begin) != 0) {
      ++at;
      continue;
    }
    orders_.erase(at->second.order.number);
    at = known_.erase(at);
  }
}

std::unique_ptr<wire::Call> PushInbox::BeginFromReactor(uint64_t what) {
  Counters().pushed_tensors.fetch_add(1, std::memory_order_relaxed);
  return std::make_unique<PushCall>(shared_from_this(), static_cast<uint32_t>(what));
}

PushInbox::Waiting* PushInbox::FindWaitingLocked(int64_t step_id, uint32_t order) {
  if (const auto at = waiting_.find({step_id, order}); at != waiting_.end()) return &at->second;
  if (unordered_.empty()) return nullptr;
  const auto known = orders_.find(order);
  if (known == orders_.end()) return nullptr;
  const auto at = unordered_.find({step_id, known->second->first.substr(sizeof(uint64_t))});
  return at == unordered_.end() ? nullptr : &at->second;
}

std::map<PushInbox::Slot, PushInbox::Parked>::iterator PushInbox::FindParkedLocked(
    int64_t step_id, std::string_view key) {
  for (auto at = parked_.lower_bound({step_id, 0});
       at != parked_.end() && at->first.first == step_id; ++at) {
    const auto known = orders_.find(at->first.second);
    if (known == orders_.end()) continue;
    const std::string_view name = known->second->first;
    if (name.substr(sizeof(uint64_t)) == key) return at;
  }
  return parked_.end();
}

Pushed PushInbox::TakeParkedLocked(std::map<Slot, Parked>::iterator at) {
  Pushed pushed = std::move(at->second.pushed);
  parked_.erase(at);
  any_parked_.store(!parked_.empty(), std::memory_order_seq_cst);
  return pushed;
}

void PushInbox::Deliver(int64_t step_id, uint32_t order, Pushed pushed) {
  std::shared_ptr<Waiter> waiter;
  const bool declined = pushed.declined();
  {
    std::lock_guard lock(mutex_);
    const auto known = orders_.find(order);
    if (known != orders_.end()) known->second->second.accepted = true;  // a push proves it
    if (pushed.status.ok() && !declined) {
      pushed.way_us = times_.WayOf(pushed.tensor.made_us(), pushed.tensor.head_us());
    }
    if (Waiting* const waiting = FindWaitingLocked(step_id, order); waiting != nullptr) {
      if (declined) {
        if (waiting->state == State::kAsked) return;  // the request's answer brings the tensor
        waiting->Move(State::kAsked, wire::NowMs());
      }
      // The entry stays until the call ends (Forget).
      waiter = waiting->waiter;
    } else if (known != orders_.end()) {
      // Set before `ended_` is read. If the step ends meanwhile, this thread finds it ended, or
      // EndStep sees any_parked_ and waits for the lock.
      any_parked_.store(true, std::memory_order_seq_cst);
      if (!ended_->Has(step_id)) {
        parked_[{step_id, order}] = {std::move(pushed), wire::NowMs()};
        ArmLocked();
        return;
      }
      any_parked_.store(!parked_.empty(), std::memory_order_seq_cst);
    }
  }
  if (waiter == nullptr) return;
  if (declined) {
    waiter->Ask();
  } else {
    waiter->OnPush(std::move(pushed));
  }
}

void PushInbox::OnLost(const wire::Status& why) {
  std::vector<std::shared_ptr<Waiter>> lost;
  {
    std::lock_guard lock(mutex_);
    // A waiter that has sent a request is told by the request.
    auto tell = [&lost](auto* waiting) {
      for (auto at = waiting->begin(); at != waiting->end();) {
        const bool asked = at->second.state == State::kAsked;
        if (!asked) lost.push_back(std::move(at->second.waiter));
        at = asked ? std::next(at) : waiting->erase(at);
      }
    };
    tell(&waiting_);
    tell(&unordered_);
    // Orders keep their numbers and are given again: tensors that were pushed for them stay, and a
    // request on the next connection may carry an order that was looked up before.
    for (auto& [name, known] : known_) known.accepted = false;
  }
  for (const auto& waiter : lost) waiter->OnLost(FromWire(why));
}

void PushInbox::ArmLocked() {
  if (armed_) return;
  const auto channel = channel_.lock();
  if (channel == nullptr) return;
  armed_ = true;
  channel->RunAfter(kAskAfterMs, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Tick();
  });
}

void PushInbox::Tick() {
  std::vector<std::shared_ptr<Waiter>> overdue;
  std::vector<std::shared_ptr<Waiter>> lost;
  std::vector<Parked> dropped;
  {
    std::lock_guard lock(mutex_);
    armed_ = false;
    const int64_t now_ms = wire::NowMs();
    const int64_t arrived_ms = arrived_us_.load(std::memory_order_relaxed) / 1000;
    bool more = false;
    auto look_at = [&](Waiting* waiting) {
      switch (waiting->state) {
        case State::kAsked:
          return;
        case State::kExpected:
          if (now_ms - waiting->since_ms >= kAskAfterMs) {
            waiting->Move(State::kAsked, now_ms);
            overdue.push_back(waiting->waiter);
            return;
          }
          break;
        case State::kPromised:
          if (now_ms - std::max(waiting->since_ms, arrived_ms) >= kLostAfterMs) {
            lost.push_back(waiting->waiter);
          }
          break;
      }
      more = true;
    };
    for (auto& [slot, waiting] : waiting_) look_at(&waiting);
    for (auto& [name, waiting] : unordered_) look_at(&waiting);
    for (auto at = parked_.begin(); at != parked_.end();) {
      const bool stale = now_ms - at->second.since_ms >= kParkedForMs;
      if (stale) dropped.push_back(std::move(at->second));
      at = stale ? parked_.erase(at) : std::next(at);
    }
    any_parked_.store(!parked_.empty(), std::memory_order_seq_cst);
    if (more || !parked_.empty()) ArmLocked();
  }
  for (const auto& waiter : overdue) waiter->Ask();
  for (const auto& waiter : lost) {
    waiter->OnLost(absl::UnavailableError("grpc++: a tensor that was pushed has not arrived"));
  }
}

}  // namespace tensorwire::plugin
