#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "metrics/tensor_figures.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorwire/wire/engine.h"
#include "transport/push_steps.h"

namespace tensorwire::plugin {

// The producer's side of standing orders (the consumer's is PushInbox): the rendezvous keys that
// another task wants in every step of a session. A tensor with such a key is sent as soon as it is
// made, so that it need not wait for a request.
//
// A push must never lose a tensor. So each step has notes (PushStep::Slot) of which tensors were
// requested, which were pushed, and over which connection. A requested tensor is not pushed. If two
// connections request the same tensor, the later one gets it. A request for a tensor that has left
// over another connection fails at once. All of this is thread-safe.

enum class Asked {
  kInRendezvous,  // the tensor is in the rendezvous, or will be
  kOnItsWay,      // it was pushed over the connection of the request
  kGone,          // it has left over another connection
  kEnded,         // the step has ended
};
// Records a request that has arrived; without an order its number is 0. `is_again`: as the consumer
// knows it. `*taken`: what has become of the order.
Asked NoteRequest(PushSteps* steps, int64_t step_id, uint64_t scope, bool is_again,
                  const Order& order, PushSteps::Taken* taken);

// Called when a requested tensor has been made. True if it goes to this connection; false if
// another connection has requested it since.
bool ClaimTensor(const PushSteps::Taken& taken, uint64_t connection_id);

// A tensor that is to be pushed: it is noted as sent.
class ReservedPush {
 public:
  // False if there is no order that holds for the step, or a request: then the tensor has to go
  // into the rendezvous. So it has to if the consumer's connection has a backlog, or if the step
  // has no pushes; then a push without a tensor tells the consumer to send a request.
  ReservedPush(PushStep* step, std::string_view key);
  explicit operator bool() const { return order_ != nullptr; }
  tensorflow::Device* device() const { return order_->device; }  // that makes it

  // Pushes the tensor, which is in host memory. False: the connection has ended, the note is gone,
  // and the tensor has to go into the rendezvous.
  bool Push(const tensorflow::Tensor& tensor, bool is_dead) const;
  // The tensor is not pushed; it has to go into the rendezvous. The consumer is told to request it.
  void Release() const;

 private:
  PushStep* const step_;  // lives as long as its rendezvous
  std::shared_ptr<const Order> order_;
};

}  // namespace tensorwire::plugin
