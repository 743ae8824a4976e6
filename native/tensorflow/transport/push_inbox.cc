#include "transport/push_inbox.h"

#include <algorithm>

#include "calls/status.h"
#include "metrics/counters.h"
#include "tensors/pool_allocator.h"

namespace tensorwire::plugin {
namespace {

uint32_t SessionOf(uint64_t number) { return static_cast<uint32_t>(number >> 32); }
uint32_t KeyOf(uint64_t number) { return static_cast<uint32_t>(number); }

}  // namespace

// A push that arrives.
class PushInbox::PushCall : public wire::Call {
 public:
  PushCall(std::shared_ptr<PushInbox> inbox, uint64_t number)
      : inbox_(std::move(inbox)), number_(number) {}

  wire::Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                                  std::vector<wire::MutableBuffer>* into) override {
    wire::MetadataReader reader(metadata);
    if (!reader.Get(&step_id_)) return wire::Status(wire::Code::kInternal, "a malformed push");
    tensorflow::Allocator* host_memory = nullptr;
    {
      std::lock_guard lock(inbox_->mutex_);
      const auto at = inbox_->sessions_.find(SessionOf(number_));
      if (at == inbox_->sessions_.end() ||
          (!is_of_all() && KeyOf(number_) >= at->second->keys_.size())) {
        return wire::Status(wire::Code::kCancelled, "the session is over");
      }
      Step* step = nullptr;
      if (step_id_ != kNoStep) {
        // Also if the step has failed at the producer before its part begins here.
        step = inbox_->StepLocked(at->second, step_id_);
        if (step == nullptr) return wire::Status(wire::Code::kCancelled, "the step is over");
      }
      if (step != nullptr && !is_of_all()) {
        Counters().pushed_tensors.fetch_add(1, std::memory_order_relaxed);
        Slot& slot = SlotOf(step, number_);
        if (slot.state != State::kNone) return wire::Status(wire::Code::kCancelled, "it has come");
        slot.state = State::kArriving;
        host_memory = at->second->keys_[KeyOf(number_)].host_memory;
      }
      keys_ = at->second;
    }
    if (host_memory == nullptr) host_memory = HostMemoryFor(payload_bytes);
    return ToWire(tensor_.Prepare(reader.rest(), payload_bytes, host_memory, into));
  }

  void Done(const wire::Status& status) override {
    if (keys_ == nullptr) return;
    if (is_of_all() || step_id_ == kNoStep) {
      const std::vector<int64_t>& numbers = tensor_.numbers();
      return inbox_->Decline(step_id_, keys_.get(), number_, numbers.empty() ? 0 : numbers[0]);
    }
    inbox_->Deliver(step_id_, keys_.get(), number_, {std::move(tensor_), 0, FromWire(status)});
  }

 private:
  bool is_of_all() const { return number_ == AllOrdersOf(number_); }

  const std::shared_ptr<PushInbox> inbox_;
  const uint64_t number_;
  std::shared_ptr<Keys> keys_;  // null: nobody wants the push
  int64_t step_id_ = 0;
  IncomingTensor tensor_;
};

PushInbox::Order PushInbox::NewOrder(const std::shared_ptr<PushSession>& session,
                                     tensorflow::Allocator* host_memory) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Keys>& keys = scopes_[session->scope];
  if (keys == nullptr || keys->session_.lock() != session) {
    keys = std::make_shared<Keys>(++last_number_, session, shared_from_this());
    sessions_[keys->number_] = keys;
    steps_->Join(session, keys);
  }
  keys->keys_.emplace_back().host_memory = host_memory;
  return {keys, (static_cast<uint64_t>(keys->number_) << 32) | (keys->keys_.size() - 1)};
}

PushInbox::Step* PushInbox::StepLocked(const std::shared_ptr<Keys>& keys, int64_t step_id) {
  auto at = keys->steps_.find(step_id);
  if (at == keys->steps_.end()) {
    const auto session = keys->session_.lock();
    if (session == nullptr) return nullptr;
    // Before the slots are made. If the step ends meanwhile, PushSteps::EndStep waits for the lock.
    const auto step = steps_->Touch(step_id, session, keys);
    if (step == nullptr) return nullptr;
    at = keys->steps_.emplace(step_id, Step()).first;
    at->second.is_again = step->is_again;
    at->second.slots.reserve(keys->usual_slots_);
  }
  return &at->second;
}

PushInbox::Slot& PushInbox::SlotOf(Step* step, uint64_t number) {
  if (step->slots.size() <= KeyOf(number)) step->slots.resize(KeyOf(number) + 1);
  return step->slots[KeyOf(number)];
}

PushInbox::Slot* PushInbox::SlotLocked(Keys* keys, int64_t step_id, uint64_t number) {
  const auto at = keys->steps_.find(step_id);
  if (at == keys->steps_.end() || KeyOf(number) >= at->second.slots.size()) return nullptr;
  return &at->second.slots[KeyOf(number)];
}

PushInbox::Expected PushInbox::Expect(int64_t step_id, const Order& order,
                                      const std::shared_ptr<Waiter>& waiter, Pushed* here) {
  std::unique_ptr<Pushed> pushed;  // freed after the lock is released
  std::lock_guard lock(mutex_);
  Step* const step = StepLocked(order.keys, step_id);
  if (step == nullptr) return Expected::kAsk;
  Slot& slot = SlotOf(step, order.number);
  if (slot.state == State::kHere) {
    slot.state = State::kTaken;
    pushed = std::move(slot.pushed);
    *here = std::move(*pushed);
    return Expected::kHere;
  }
  const Keys::Key& key = order.keys->keys_[KeyOf(order.number)];
  const bool holds = key.is_accepted && !step->is_again && !step->asks &&
                     (key.not_in == nullptr || std::find(key.not_in->begin() + 1, key.not_in->end(),
                                                         step_id) == key.not_in->end());
  slot.waiter = waiter;
  slot.asks =
      slot.state != State::kArriving && (slot.asks || !holds || slot.state == State::kTaken);
  return slot.asks ? Expected::kAsk : Expected::kWait;
}

void PushInbox::AcceptFromReactor(const Order& order, const std::vector<int64_t>& numbers,
                                  int64_t round_trip_us) {
  std::lock_guard lock(mutex_);
  times_.NoteRoundTrip(round_trip_us);
  Keys::Key& key = order.keys->keys_[KeyOf(order.number)];
  key.is_accepted = !numbers.empty() && numbers[0] > key.revoked;
  key.not_in = numbers.size() < 2 ? nullptr : std::make_unique<std::vector<int64_t>>(numbers);
}

bool PushInbox::PromiseFromReactor(int64_t step_id, const Order& order) {
  std::lock_guard lock(mutex_);
  Slot* const slot = SlotLocked(order.keys.get(), step_id, order.number);
  if (slot != nullptr) slot->asks = false;
  return slot != nullptr;
}

void PushInbox::Forget(int64_t step_id, const Order& order) {
  Slot gone;  // freed after the lock is released
  std::lock_guard lock(mutex_);
  Slot* const slot = SlotLocked(order.keys.get(), step_id, order.number);
  if (slot == nullptr) return;
  std::swap(gone, *slot);
  slot->state = State::kTaken;
}

void PushInbox::Keys::EndStep(int64_t step_id) {
  const auto inbox = inbox_.lock();
  if (inbox == nullptr) return;
  Step ended;
  {
    std::lock_guard lock(inbox->mutex_);
    const auto at = steps_.find(step_id);
    if (at == steps_.end()) return;
    ended = std::move(at->second);
    steps_.erase(at);
    usual_slots_ = ended.slots.size();
  }
  TellEnded(ended);
}

void PushInbox::Keys::EndSession() {
  const auto inbox = inbox_.lock();
  if (inbox == nullptr) return;
  const auto self = shared_from_this();
  decltype(steps_) ended;
  {
    std::lock_guard lock(inbox->mutex_);
    ended.swap(steps_);
    inbox->sessions_.erase(number_);
    const auto at = inbox->scopes_.find(scope_);
    if (at != inbox->scopes_.end() && at->second == self) inbox->scopes_.erase(at);
  }
  for (const auto& [id, step] : ended) TellEnded(step);
}

void PushInbox::TellEnded(const Step& step) {
  for (const Slot& slot : step.slots) {
    if (slot.waiter == nullptr) continue;
    slot.waiter->OnLost(FromWire(wire::Status(wire::Code::kCancelled, "the step has ended")));
  }
}

std::unique_ptr<wire::Call> PushInbox::BeginFromReactor(uint64_t what) {
  return std::make_unique<PushCall>(shared_from_this(), what);
}

void PushInbox::Deliver(int64_t step_id, Keys* keys, uint64_t number, Pushed pushed) {
  std::shared_ptr<Waiter> waiter;
  const bool declined = pushed.declined();
  {
    std::lock_guard lock(mutex_);
    Slot* const slot = SlotLocked(keys, step_id, number);
    if (slot == nullptr || slot->state != State::kArriving) return;  // nobody wants it any more
    if (declined) {
      slot->state = State::kNone;
      // If the call has sent a request, its answer brings the tensor.
      if (!std::exchange(slot->asks, true)) waiter = slot->waiter;
    } else {
      if (pushed.status.ok()) {
        pushed.way_us = times_.WayOf(pushed.tensor.made_us(), pushed.tensor.head_us());
      }
      if (keys->steps_[step_id].is_again) {
        pushed.status = absl::UnavailableError(
            "grpc++: this step is tried again, and a tensor was pushed that may be of its first "
            "attempt");
      }
      waiter = std::move(slot->waiter);
      slot->state = waiter != nullptr ? State::kTaken : State::kHere;
      if (waiter == nullptr) {
        slot->pushed = std::make_unique<Pushed>(std::move(pushed));
        return;
      }
    }
  }
  if (declined) {
    if (waiter != nullptr) waiter->Ask();
  } else {
    waiter->OnPush(std::move(pushed));
  }
}

void PushInbox::Decline(int64_t step_id, Keys* keys, uint64_t number, int64_t event) {
  std::vector<std::shared_ptr<Waiter>> waiters;
  const bool all = number == AllOrdersOf(number);
  auto decline = [&](Slot& slot) {
    if (slot.waiter == nullptr || slot.asks || slot.state != State::kNone) return;
    slot.asks = true;
    waiters.push_back(slot.waiter);
  };
  {
    std::lock_guard lock(mutex_);
    for (size_t i = all ? 0 : KeyOf(number);
         step_id == kNoStep && i < (all ? keys->keys_.size() : KeyOf(number) + 1); ++i) {
      keys->keys_[i].is_accepted = false;
      keys->keys_[i].revoked = std::max(keys->keys_[i].revoked, event);
    }
    for (auto& [id, step] : keys->steps_) {
      if (step_id != kNoStep && id != step_id) continue;
      if (step_id != kNoStep) step.asks = true;
      if (!all && KeyOf(number) < step.slots.size()) decline(step.slots[KeyOf(number)]);
      if (all) std::for_each(step.slots.begin(), step.slots.end(), decline);
    }
  }
  for (const auto& waiter : waiters) waiter->Ask();
}

void PushInbox::OnLost(const wire::Status& why) {
  std::vector<std::shared_ptr<Waiter>> lost;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [number, keys] : sessions_) {
      // The orders are given again over the next connection.
      for (Keys::Key& key : keys->keys_) {
        key.is_accepted = false;
        key.revoked = 0;
      }
      for (auto& [id, step] : keys->steps_) {
        for (Slot& slot : step.slots) {
          // A request tells its waiter, and a payload that was arriving ends by itself.
          if (slot.waiter == nullptr || slot.asks || slot.state == State::kArriving) continue;
          lost.push_back(std::move(slot.waiter));
          slot.state = State::kTaken;
        }
      }
    }
  }
  for (const auto& waiter : lost) waiter->OnLost(FromWire(why));
}

}  // namespace tensorwire::plugin
