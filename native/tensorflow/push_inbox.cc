#include "push_inbox.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>

#include "counters.h"
#include "pool_allocator.h"
#include "status.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {
namespace {

// Of elements with a `step_id`.
template <typename Elements>
auto FindStep(Elements& elements, int64_t step_id) {
  return std::find_if(elements.begin(), elements.end(),
                      [step_id](const auto& each) { return each.step_id == step_id; });
}

// Without locks.
void Give(Pushed pushed, PushInbox::Waiter* waiter) {
  if (pushed.declined()) {
    waiter->Ask();
  } else {
    waiter->OnPush(std::move(pushed));
  }
}

}  // namespace

// A push that arrives.
class PushInbox::PushCall : public wire::Call {
 public:
  PushCall(std::shared_ptr<PushInbox> inbox, std::shared_ptr<Order> order)
      : inbox_(std::move(inbox)), order_(std::move(order)) {}

  wire::Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                                  std::vector<wire::MutableBuffer>* into) override {
    wire::MetadataReader reader(metadata);
    has_step_ = reader.Get(&step_id_);
    if (!has_step_) return wire::Status(wire::Code::kInternal, "a malformed push");
    if (inbox_->steps_->ended.Has(step_id_))
      return wire::Status(wire::Code::kCancelled, "the step is over");
    tensorflow::Allocator* const host_memory =
        order_->host_memory_ != nullptr ? order_->host_memory_ : HostMemoryFor(payload_bytes);
    return ToWire(tensor_.Prepare(reader.rest(), payload_bytes, host_memory, into));
  }

  void Done(const wire::Status& status) override {
    if (!has_step_) return;
    inbox_->Deliver(step_id_, order_.get(), {std::move(tensor_), 0, FromWire(status)});
  }

 private:
  const std::shared_ptr<PushInbox> inbox_;
  const std::shared_ptr<Order> order_;
  bool has_step_ = false;
  int64_t step_id_ = 0;
  IncomingTensor tensor_;
};

PushInbox::~PushInbox() {
  if (any_parked_.load()) steps_->inboxes_with_parked.fetch_sub(1);
}

std::string PushInbox::NameOf(uint64_t scope, std::string_view key) {
  std::string name(sizeof(scope) + key.size(), '\0');
  std::memcpy(name.data(), &scope, sizeof(scope));
  std::memcpy(name.data() + sizeof(scope), key.data(), key.size());
  return name;
}

std::shared_ptr<PushInbox::Order> PushInbox::OrderFor(uint64_t scope, std::string_view key,
                                                      tensorflow::Allocator* host_memory) {
  std::string name = NameOf(scope, key);
  std::lock_guard lock(mutex_);
  if (const auto at = known_.find(name); at != known_.end()) return at->second;
  if (seen_.size() >= kMostSeen) seen_.clear();
  const bool first = seen_.insert(std::hash<std::string>()(name)).second;
  if (first || known_.size() >= kMostOrders) return nullptr;
  auto order = std::make_shared<Order>(++last_order_, name, host_memory);
  orders_[order->number()] = order;
  known_.emplace(std::move(name), order);
  return order;
}

PushInbox::Expected PushInbox::Expect(int64_t step_id, const std::shared_ptr<Order>& order,
                                      std::string_view key, const std::shared_ptr<Waiter>& waiter,
                                      Pushed* here) {
  std::lock_guard lock(mutex_);
  Waiting waiting{step_id, waiter, State::kAsked, wire::NowMs()};
  if (order == nullptr) {
    unordered_[{step_id, std::string(key)}] = std::move(waiting);
    return Expected::kAsk;
  }
  bool asks = false;
  if (TakeParkedLocked(step_id, order.get(), here)) {
    if (!here->declined()) return Expected::kHere;
    asks = true;
  }
  // Since the order was looked up, the session may have ended and removed it, or the connection may
  // have been lost and the order has to be given again.
  if (order->has_ended_) orders_.try_emplace(order->number(), order);
  asks = asks || order->has_ended_ || !order->is_accepted_;
  if (!asks) waiting.state = State::kExpected;
  if (const auto at = FindStep(order->waiting_, step_id); at != order->waiting_.end()) {
    *at = std::move(waiting);
  } else {
    order->waiting_.push_back(std::move(waiting));
  }
  if (asks) return Expected::kAsk;
  ArmLocked();
  return Expected::kWait;
}

void PushInbox::Accept(const std::shared_ptr<Order>& order, int64_t round_trip_us) {
  std::lock_guard lock(mutex_);
  if (order != nullptr) order->is_accepted_ = true;
  times_.NoteRoundTrip(round_trip_us);
}

void PushInbox::Promise(int64_t step_id, const std::shared_ptr<Order>& order,
                        std::string_view key) {
  std::shared_ptr<Waiter> waiter;
  Pushed here;
  {
    std::lock_guard lock(mutex_);
    Waiting* waiting = nullptr;
    Order* parked_as = nullptr;
    if (order == nullptr) {
      const auto at = unordered_.find({step_id, std::string(key)});
      if (at != unordered_.end()) waiting = &at->second;
      parked_as = FindParkedLocked(step_id, key);
    } else if (const auto at = FindStep(order->waiting_, step_id); at != order->waiting_.end()) {
      waiting = &*at;
    }
    if (waiting == nullptr) return;  // the tensor has arrived meanwhile
    if (parked_as == nullptr) {
      waiting->Move(State::kPromised, wire::NowMs());
      ArmLocked();
      return;
    }
    waiter = waiting->waiter;
    TakeParkedLocked(step_id, parked_as, &here);
  }
  Give(std::move(here), waiter.get());
}

void PushInbox::Forget(int64_t step_id, const std::shared_ptr<Order>& order, std::string_view key) {
  Waiting gone;  // freed after the lock is released
  std::lock_guard lock(mutex_);
  if (order == nullptr) {
    unordered_.erase({step_id, std::string(key)});
    return;
  }
  const auto at = FindStep(order->waiting_, step_id);
  if (at == order->waiting_.end()) return;
  std::swap(gone, *at);
  std::swap(*at, order->waiting_.back());
  order->waiting_.pop_back();
  DropIfDoneLocked(order.get());
}

void PushInbox::EndStep(int64_t step_id) {
  if (!any_parked_.load(std::memory_order_seq_cst)) return;
  std::vector<Parked> dropped;  // freed after the lock is released
  std::lock_guard lock(mutex_);
  if (FindCountLocked(step_id) == parked_steps_.end()) return;
  dropped = DropParkedLocked([step_id](const Parked& parked) { return parked.step_id == step_id; });
}

void PushInbox::EndScope(uint64_t scope) {
  const std::string begin = NameOf(scope, "");
  std::lock_guard lock(mutex_);
  for (auto at = known_.begin(); at != known_.end();) {
    if (at->first.compare(0, begin.size(), begin) != 0) {
      ++at;
      continue;
    }
    at->second->has_ended_ = true;
    DropIfDoneLocked(at->second.get());
    at = known_.erase(at);
  }
}

void PushInbox::DropIfDoneLocked(Order* order) {
  if (order->IsDone()) orders_.erase(order->number());
}

std::unique_ptr<wire::Call> PushInbox::BeginFromReactor(uint64_t what) {
  Counters().pushed_tensors.fetch_add(1, std::memory_order_relaxed);
  arrived_us_.store(wire::ArrivedUs(), std::memory_order_relaxed);
  std::shared_ptr<Order> order;
  {
    std::lock_guard lock(mutex_);
    const auto at = orders_.find(static_cast<uint32_t>(what));
    if (at == orders_.end()) return nullptr;  // of a session that was closed
    order = at->second;
  }
  return std::make_unique<PushCall>(shared_from_this(), std::move(order));
}

PushInbox::Waiting* PushInbox::FindWaitingLocked(int64_t step_id, Order* order) {
  const auto ordered = FindStep(order->waiting_, step_id);
  if (ordered != order->waiting_.end()) return &*ordered;
  if (unordered_.empty()) return nullptr;
  const auto at = unordered_.find({step_id, std::string(order->key())});
  return at == unordered_.end() ? nullptr : &at->second;
}

PushInbox::Order* PushInbox::FindParkedLocked(int64_t step_id, std::string_view key) {
  if (parked_steps_.empty()) return nullptr;
  for (const auto& [number, order] : orders_) {
    if (order->key() != key) continue;
    if (FindStep(order->parked_, step_id) != order->parked_.end()) return order.get();
  }
  return nullptr;
}

std::vector<std::pair<int64_t, size_t>>::iterator PushInbox::FindCountLocked(int64_t step_id) {
  return std::find_if(parked_steps_.begin(), parked_steps_.end(),
                      [step_id](const auto& counted) { return counted.first == step_id; });
}

void PushInbox::ParkLocked(int64_t step_id, Order* order, Pushed pushed) {
  const auto at = FindStep(order->parked_, step_id);
  if (at != order->parked_.end()) {  // which no producer does: pushed twice
    at->pushed = std::move(pushed);
    return;
  }
  order->parked_.push_back({step_id, std::move(pushed), wire::NowMs()});
  if (const auto counted = FindCountLocked(step_id); counted != parked_steps_.end()) {
    ++counted->second;
  } else {
    parked_steps_.emplace_back(step_id, 1);
  }
}

bool PushInbox::TakeParkedLocked(int64_t step_id, Order* order, Pushed* pushed) {
  const auto at = FindStep(order->parked_, step_id);
  if (at == order->parked_.end()) return false;
  *pushed = std::move(at->pushed);
  order->parked_.erase(at);
  CountTakenLocked(step_id);
  DropIfDoneLocked(order);
  return true;
}

void PushInbox::CountTakenLocked(int64_t step_id) {
  const auto counted = FindCountLocked(step_id);
  if (--counted->second > 0) return;
  parked_steps_.erase(counted);
  SetAnyParkedLocked(!parked_steps_.empty());
}

template <typename Unwanted>
std::vector<PushInbox::Parked> PushInbox::DropParkedLocked(Unwanted unwanted) {
  std::vector<Parked> dropped;
  for (auto at = orders_.begin(); at != orders_.end() && !parked_steps_.empty();) {
    Order& order = *at->second;
    const auto kept = std::stable_partition(order.parked_.begin(), order.parked_.end(),
                                            [&](const Parked& each) { return !unwanted(each); });
    for (auto parked = kept; parked != order.parked_.end(); ++parked) {
      CountTakenLocked(parked->step_id);
      dropped.push_back(std::move(*parked));
    }
    order.parked_.erase(kept, order.parked_.end());
    at = order.IsDone() ? orders_.erase(at) : std::next(at);
  }
  return dropped;
}

void PushInbox::SetAnyParkedLocked(bool any) {
  if (any_parked_.load(std::memory_order_relaxed) == any) return;
  any_parked_.store(any, std::memory_order_seq_cst);
  steps_->inboxes_with_parked.fetch_add(any ? 1 : -1, std::memory_order_seq_cst);
}

void PushInbox::Deliver(int64_t step_id, Order* order, Pushed pushed) {
  std::shared_ptr<Waiter> waiter;
  const bool declined = pushed.declined();
  {
    std::lock_guard lock(mutex_);
    order->is_accepted_ = true;  // a push proves it
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
    } else if (!order->has_ended_) {
      // Set before the ended steps are read. If the step ends meanwhile, this thread finds it
      // ended, or EndStep sees any_parked_ and waits for the lock.
      SetAnyParkedLocked(true);
      if (!steps_->ended.Has(step_id)) {
        ParkLocked(step_id, order, std::move(pushed));
        ArmLocked();
        return;
      }
      SetAnyParkedLocked(!parked_steps_.empty());
    }
  }
  if (waiter != nullptr) Give(std::move(pushed), waiter.get());
}

void PushInbox::OnLost(const wire::Status& why) {
  std::vector<std::shared_ptr<Waiter>> lost;
  {
    std::lock_guard lock(mutex_);
    // A waiter that has sent a request is told by the request.
    for (auto at = orders_.begin(); at != orders_.end();) {
      Order& order = *at->second;
      auto& waiting = order.waiting_;
      const auto told = std::stable_partition(waiting.begin(), waiting.end(), [](const auto& each) {
        return each.state == State::kAsked;
      });
      for (auto each = told; each != waiting.end(); ++each) {
        lost.push_back(std::move(each->waiter));
      }
      waiting.erase(told, waiting.end());
      // Orders keep their numbers and are given again: tensors that were pushed for them stay, and
      // a request on the next connection may carry an order that was looked up before.
      order.is_accepted_ = false;
      at = order.IsDone() ? orders_.erase(at) : std::next(at);
    }
    for (auto at = unordered_.begin(); at != unordered_.end();) {
      const bool asked = at->second.state == State::kAsked;
      if (!asked) lost.push_back(std::move(at->second.waiter));
      at = asked ? std::next(at) : unordered_.erase(at);
    }
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
    for (const auto& [number, order] : orders_) {
      for (Waiting& waiting : order->waiting_) look_at(&waiting);
    }
    for (auto& [name, waiting] : unordered_) look_at(&waiting);
    dropped = DropParkedLocked(
        [now_ms](const Parked& parked) { return now_ms - parked.since_ms >= kParkedForMs; });
    if (more || !parked_steps_.empty()) ArmLocked();
  }
  for (const auto& waiter : overdue) waiter->Ask();
  for (const auto& waiter : lost) {
    waiter->OnLost(absl::UnavailableError("grpc++: a tensor that was pushed has not arrived"));
  }
}

}  // namespace tensorwire::plugin
