#include "standing_orders.h"

#include <utility>

#include "tensor_codec.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {

StandingOrders::Added StandingOrders::Add(std::string_view key, uint32_t order, wire::Pusher pusher,
                                          TensorCounters* counters, int64_t step_id) {
  std::lock_guard lock(mutex_);
  const auto at = orders_.find(std::string(key));
  if (at == orders_.end() && orders_.size() >= kMostOrders) return Added::kTooMany;
  Order& known = at == orders_.end() ? orders_[std::string(key)] : at->second;
  if (known.order == order && known.pushed_in == step_id &&
      known.pusher.connection_id() == pusher.connection_id()) {
    return Added::kPushed;
  }
  known = {order, std::move(pusher), counters, step_id};
  any_.store(true, std::memory_order_release);
  return Added::kYes;
}

void StandingOrders::Forget(uint64_t connection_id) {
  std::lock_guard lock(mutex_);
  for (auto at = orders_.begin(); at != orders_.end();) {
    at = at->second.pusher.connection_id() == connection_id ? orders_.erase(at) : std::next(at);
  }
  any_.store(!orders_.empty(), std::memory_order_release);
}

bool StandingOrders::Serve(int64_t step_id, std::string_view key, const tensorflow::Tensor& tensor,
                           bool is_dead) {
  if (!any_.load(std::memory_order_acquire)) return false;
  Order order;
  bool is_taken = false;
  {
    std::lock_guard lock(mutex_);
    const auto at = orders_.find(std::string(key));
    if (at == orders_.end() || at->second.asked_in == step_id) return false;
    is_taken = at->second.pusher.IsTaken();
    if (is_taken) at->second.pushed_in = step_id;
    order = at->second;
  }
  wire::Message message;
  message.Put<int64_t>(step_id);
  if (!is_taken) {
    EncodeTensor(tensorflow::Tensor(), kDead | kDeclined, /*made_us=*/0, &message);
    order.pusher.Push(order.order, std::move(message));
    return false;
  }
  EncodeTensor(tensor, is_dead ? kDead : 0, static_cast<uint32_t>(wire::NowUs()), &message);
  // Before it goes: who has the tensor may look at this task's figures.
  order.counters->Count(message.payload_bytes());
  return order.pusher.Push(order.order, std::move(message));
}

}  // namespace tensorwire::plugin
