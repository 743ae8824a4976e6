#include "standing_orders.h"

#include <utility>

#include "tensor_codec.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {

bool StandingOrders::Add(std::string_view key, uint32_t order, wire::Pusher pusher,
                         TensorCounters* counters, int64_t step_id) {
  std::lock_guard lock(mutex_);
  if (orders_.size() >= kMostOrders) return false;
  orders_[std::string(key)] = {order, std::move(pusher), counters, step_id};
  any_.store(true, std::memory_order_release);
  return true;
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
  {
    std::lock_guard lock(mutex_);
    const auto at = orders_.find(std::string(key));
    if (at == orders_.end() || at->second.asked_in == step_id) return false;
    order = at->second;
  }
  wire::Message message;
  message.Put<int64_t>(step_id);
  if (!order.pusher.IsTaken()) {
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
