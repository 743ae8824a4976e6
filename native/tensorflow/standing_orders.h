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
  enum class Added {
    kYes,
    kTooMany,  // there is no room for it
    kPushed,   // it is an old one, and what is asked for in this step is under way
  };

  // A request of `step_id` brings an order: from now on `key` is pushed to `pusher` as `order`, and
  // counted in `counters`; but not in this step, in which the request is answered.
  Added Add(std::string_view key, uint32_t order, wire::Pusher pusher, TensorCounters* counters,
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
    // The last steps in which the tensor was asked for, and pushed. A request for what is pushed
    // would wait until the step is forgotten.
    int64_t asked_in = 0;
    int64_t pushed_in = 0;
  };

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::unordered_map<std::string, Order> orders_;
};

}  // namespace tensorwire::plugin
