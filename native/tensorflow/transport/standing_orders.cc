#include "transport/standing_orders.h"

#include <utility>

#include "tensors/tensor_codec.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {
namespace {

// Under the step's lock.
PushStep::Slot& SlotOf(PushStep* step, uint32_t slot) {
  if (step->slots.size() <= slot) step->slots.resize(slot + 1);
  return step->slots[slot];
}

}  // namespace

Asked NoteRequest(PushSteps* steps, int64_t step_id, uint64_t scope, bool is_again,
                  const Order& order, PushSteps::Taken* taken) {
  if (step_id == kNoStep || order.number == 0) return Asked::kInRendezvous;
  // Before the note: a tensor that is pushed in between is noted as sent.
  *taken = steps->Take(step_id, scope, is_again, order);
  if (taken->step == nullptr) return Asked::kEnded;
  if (taken->since == 0) return Asked::kInRendezvous;
  const uint64_t connection_id = order.pusher.connection_id();
  std::lock_guard lock(taken->step->mutex);
  PushStep::Slot& slot = SlotOf(taken->step.get(), taken->slot);
  if (slot.is_sent) return slot.connection_id == connection_id ? Asked::kOnItsWay : Asked::kGone;
  slot.connection_id = connection_id;
  return Asked::kInRendezvous;
}

bool ClaimTensor(const PushSteps::Taken& taken, uint64_t connection_id) {
  if (taken.since == 0) return true;
  std::lock_guard lock(taken.step->mutex);
  PushStep::Slot& slot = SlotOf(taken.step.get(), taken.slot);
  if (slot.connection_id != connection_id) return false;
  slot.is_sent = true;
  return true;
}

ReservedPush::ReservedPush(PushStep* step, std::string_view key) : step_(step) {
  const KeyTable<Order>& orders = step->session->orders;
  if (orders.empty()) return;
  std::shared_ptr<const Order> order = orders.Find(key);
  if (order == nullptr || order->since > step->begun.load(std::memory_order_relaxed)) return;
  const bool is_pushed = !step->is_again && order->pusher.IsTaken();
  {
    std::lock_guard lock(step->mutex);
    PushStep::Slot& slot = SlotOf(step, order->slot);
    if (slot.connection_id != 0) return;
    if (is_pushed) slot = {order->pusher.connection_id(), /*is_sent=*/true};
  }
  if (is_pushed) {
    order_ = std::move(order);
  } else {
    order->pusher.Push(order->number, Declined(step->id));
  }
}

bool ReservedPush::Push(const tensorflow::Tensor& tensor, bool is_dead) const {
  wire::Message message;
  message.Put<int64_t>(step_->id);
  EncodeTensor(tensor, is_dead ? kDead : 0, static_cast<uint32_t>(wire::NowUs()), &message);
  // Before it goes: who has the tensor may look at this task's figures.
  order_->counters->Count(message.payload_bytes());
  if (order_->pusher.Push(order_->number, std::move(message))) return true;
  Release();  // the connection has ended just now
  return false;
}

void ReservedPush::Release() const {
  {
    std::lock_guard lock(step_->mutex);
    SlotOf(step_, order_->slot) = PushStep::Slot();
  }
  order_->pusher.Push(order_->number, Declined(step_->id));
}

}  // namespace tensorwire::plugin
