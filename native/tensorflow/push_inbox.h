#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "push_times.h"
#include "recent_steps.h"
#include "tensor_codec.h"
#include "tensor_figures.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

// A tensor that arrived without a request.
struct Pushed {
  IncomingTensor tensor;
  int64_t way_us = 0;  // from when it was made until its head arrived
  // Why there is no tensor, for example because it was damaged or there was no memory for it. The
  // producer no longer has it, so a request would not bring it.
  absl::Status status;

  // True if the consumer has to send a request for the tensor.
  bool declined() const { return status.ok() && tensor.declined(); }
};

// The consumer's side of standing orders. A graph asks for the same tensors in every step. The
// second time that a session asks for a key, the request carries the number of a *standing order*;
// a producer that accepts it sends the tensors of later steps as soon as they are made
// (StandingOrders).
//
// Orders are an optimisation; correctness does not depend on them. A call that waits for a push
// sends an ordinary request after kAskAfterMs and takes whichever arrives first. So a tensor that
// was made just before the producer learned of the order is not lost. When the connection is lost,
// an order keeps its number and is given again over the next connection. Tensors that were pushed
// over the old connection stay.
//
// One inbox for each channel. Thread-safe.
class PushInbox : public wire::PushReceiver, public std::enable_shared_from_this<PushInbox> {
 public:
  // A call that waits for a tensor. Its methods are called without locks and may race; the first
  // one that ends the call counts.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    virtual void OnPush(Pushed pushed) = 0;
    virtual void OnLost(const absl::Status& why) = 0;
    // Must send an ordinary request as well.
    virtual void Ask() = 0;
  };
  // The order that a request for a key carries.
  struct Order {
    uint32_t number = 0;  // 0: no order
    TensorCounters* counters = nullptr;
  };
  enum class Expected {
    kHere,  // the tensor has arrived already, in `*here`
    kWait,  // the tensor will be pushed; the waiter is told
    kAsk,   // send a request with the order; the waiter is told if a push is faster
  };

  // `ended`: the steps that have ended on this task.
  PushInbox(std::weak_ptr<wire::Channel> channel, std::shared_ptr<const RecentSteps> ended)
      : channel_(std::move(channel)), ended_(std::move(ended)) {}

  // The order for a key that a session asks for. `may_be_new`: if false, only an order that the
  // session has given already.
  Order OrderFor(uint64_t scope, std::string_view key, bool may_be_new = true);
  Expected Expect(int64_t step_id, uint32_t order, std::string_view key,
                  const std::shared_ptr<Waiter>& waiter, Pushed* here);
  // The producer accepted this order. `round_trip_us`: how long request and reply were under way.
  void Accept(uint32_t order, int64_t round_trip_us);
  // The producer answered that it has pushed the tensor already.
  void Promise(int64_t step_id, uint32_t order, std::string_view key);
  // The waiter got its tensor, or its error, in another way.
  void Forget(int64_t step_id, uint32_t order, std::string_view key);

  // Drops the pushes for an ended step that no call has taken. The step must already be in `ended`.
  void EndStep(int64_t step_id);
  // The session was closed.
  void EndScope(uint64_t scope);

  std::unique_ptr<wire::Call> BeginFromReactor(uint64_t what) override;
  void OnLost(const wire::Status& why) override;

 private:
  class PushCall;
  using Slot = std::pair<int64_t, uint32_t>;  // step, order
  // How an awaited tensor arrives:
  //
  //   kExpected --- late, or declined ---> kAsked --- answer ---> its tensor, or its error
  //                                        ^    \
  //                                declined \    `-- "pushed already" --> kPromised
  //                                          `-------------------------------'
  //
  // A push ends the wait in every state. When the connection is lost, a waiter in kAsked is told by
  // its request, the others by OnLost.
  enum class State { kExpected, kAsked, kPromised };
  struct Waiting {
    std::shared_ptr<Waiter> waiter;
    State state;
    int64_t since_ms;  // when it entered this state

    void Move(State next, int64_t now_ms) {
      state = next;
      since_ms = now_ms;
    }
  };
  struct Parked {
    Pushed pushed;
    int64_t since_ms = 0;
  };
  using Unordered = std::map<std::pair<int64_t, std::string>, Waiting>;
  struct Known {
    Order order;
    bool accepted = false;
  };
  using KnownKeys = std::unordered_map<std::string, Known>;

  static constexpr int kAskAfterMs = 100;
  // If a promised push does not arrive for this time, and no other push either, this task has
  // dropped it.
  static constexpr int kLostAfterMs = 30'000;
  // How long a push is kept if its step does not begin here: that step may have ended long ago.
  static constexpr int kParkedForMs = 60'000;
  static constexpr size_t kMostOrders = 1u << 16;
  static constexpr size_t kMostSeen = 1u << 16;

  static std::string NameOf(uint64_t scope, std::string_view key);
  void Deliver(int64_t step_id, uint32_t order, Pushed pushed);
  // The waiter for the push `order` in `step_id`; null if there is none.
  Waiting* FindWaitingLocked(int64_t step_id, uint32_t order);
  // The push for `key` in `step_id` that arrived before its waiter. By key, because that waiter
  // does not know the order.
  std::map<Slot, Parked>::iterator FindParkedLocked(int64_t step_id, std::string_view key);
  Pushed TakeParkedLocked(std::map<Slot, Parked>::iterator at);
  void ArmLocked();
  // Tells waiters of overdue pushes to send requests, and drops pushes that no waiter has taken.
  void Tick();

  const std::weak_ptr<wire::Channel> channel_;
  const std::shared_ptr<const RecentSteps> ended_;
  std::atomic<int64_t> arrived_us_{0};  // when the head of the last push arrived

  // Invariants between two locks:
  // - orders_ has exactly the orders of known_.
  // - For one step and one order there is a push in parked_, or a waiter in waiting_ or unordered_,
  //   or neither; never both.
  // - A waiter in waiting_ or unordered_ has not been told of its tensor, or is just being told. It
  //   removes itself (Forget).
  // - parked_ has no push of a step in `ended_`, except until EndStep for that step has run.
  // - A Tick is scheduled (armed_) while a waiter is kExpected or kPromised, or parked_ is not
  //   empty.
  std::mutex mutex_;
  uint32_t last_order_ = 0;
  KnownKeys known_;                                              // by session and key
  std::unordered_map<uint32_t, KnownKeys::value_type*> orders_;  // of known_, by number
  // Hashes of the keys that were requested once. Most keys of eager execution are never requested
  // again and are not worth an order.
  std::unordered_set<size_t> seen_;
  std::map<Slot, Waiting> waiting_;
  // Waiters without an order, by step and key. A push may still arrive for them: if two steps are
  // under way, the second may give an order that the producer follows for the first as well.
  Unordered unordered_;
  std::map<Slot, Parked> parked_;
  std::atomic<bool> any_parked_{false};
  bool armed_ = false;
  PushTimes times_;
};

}  // namespace tensorwire::plugin
