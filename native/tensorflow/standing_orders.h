#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tensor_figures.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

// The producer's side of standing orders (the consumer's is PushInbox): which rendezvous keys
// another task wants in every step. When a tensor with such a key is made it is sent at once,
// instead of waiting in the rendezvous for a request that takes a round trip to come.
class StandingOrders {
 public:
  // From now on `key` is pushed to `pusher` as `order`, and counted in `counters`; but for the step
  // of the request that brings the order, which is answered. False when there are too many already.
  bool Add(std::string_view key, uint32_t order, wire::Pusher pusher, TensorCounters* counters,
           int64_t step_id);

  // The connection is gone, and its orders with it.
  void Forget(uint64_t connection_id);

  // Sends the tensor, which is in host memory, if there is an order for its key. To a consumer that
  // does not take what it is sent only the word goes that it has to ask.
  bool Serve(int64_t step_id, std::string_view key, const tensorflow::Tensor& tensor, bool is_dead);

 private:
  static constexpr size_t kMostOrders = size_t{1} << 18;
  struct Order {
    uint32_t order = 0;
    wire::Pusher pusher;
    TensorCounters* counters = nullptr;
    // Pushed as well, the tensor would leave its request waiting until the step is forgotten.
    int64_t asked_in = 0;
  };

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::unordered_map<std::string, Order> orders_;
};

}  // namespace tensorwire::plugin
