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
#include "tensorflow/core/framework/allocator.h"
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
  // The order that a session has given for a key.
  class Order;
  enum class Expected {
    kHere,  // the tensor has arrived already, in `*here`
    kWait,  // the tensor will be pushed; the waiter is told
    kAsk,   // send a request with the order; the waiter is told if a push is faster
  };

  // What the inboxes of a task share.
  struct Steps {
    RecentSteps ended;  // on this task
    // The number of inboxes in which pushes wait for a call: a step that ends need not look into
    // them while it is 0.
    std::atomic<int> inboxes_with_parked{0};
  };
  PushInbox(std::weak_ptr<wire::Channel> channel, std::shared_ptr<Steps> steps)
      : channel_(std::move(channel)), steps_(std::move(steps)) {}
  ~PushInbox() override;

  // The order for a key that a session asks for; null the first time. `host_memory`: where a pushed
  // tensor is put, such as pinned memory for a tensor that goes to an accelerator; null:
  // HostMemoryFor its size. It lives as long as the process.
  std::shared_ptr<Order> OrderFor(uint64_t scope, std::string_view key,
                                  tensorflow::Allocator* host_memory = nullptr);
  // In the methods below `order` is null if the call has none.
  Expected Expect(int64_t step_id, const std::shared_ptr<Order>& order, std::string_view key,
                  const std::shared_ptr<Waiter>& waiter, Pushed* here);
  // The producer accepted this order. `round_trip_us`: how long request and reply were under way.
  void Accept(const std::shared_ptr<Order>& order, int64_t round_trip_us);
  // The producer answered that it has pushed the tensor already.
  void Promise(int64_t step_id, const std::shared_ptr<Order>& order, std::string_view key);
  // The waiter got its tensor, or its error, in another way.
  void Forget(int64_t step_id, const std::shared_ptr<Order>& order, std::string_view key);

  // Drops the pushes for an ended step that no call has taken. The step must already be in `ended`.
  void EndStep(int64_t step_id);
  // The session was closed.
  void EndScope(uint64_t scope);

  std::unique_ptr<wire::Call> BeginFromReactor(uint64_t what) override;
  void OnLost(const wire::Status& why) override;

 private:
  class PushCall;
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
    int64_t step_id = 0;
    std::shared_ptr<Waiter> waiter;
    State state = State::kAsked;
    int64_t since_ms = 0;  // when it entered this state

    void Move(State next, int64_t now_ms) {
      state = next;
      since_ms = now_ms;
    }
  };
  // A push that arrived before a call waited for it.
  struct Parked {
    int64_t step_id = 0;
    Pushed pushed;
    int64_t since_ms = 0;
  };

  static constexpr int kAskAfterMs = 100;
  // If a promised push does not arrive for this time, and no other push either, this task has
  // dropped it.
  static constexpr int kLostAfterMs = 30'000;
  // How long a push is kept if its step does not begin here: that step may have ended long ago.
  static constexpr int kParkedForMs = 60'000;
  static constexpr size_t kMostOrders = 1u << 16;
  static constexpr size_t kMostSeen = 1u << 16;

  static std::string NameOf(uint64_t scope, std::string_view key);
  void Deliver(int64_t step_id, Order* order, Pushed pushed);
  // The waiter for the push as `order` in `step_id`; null if there is none.
  Waiting* FindWaitingLocked(int64_t step_id, Order* order);
  // The order as which `key` was pushed in `step_id`, although the waiter does not know of it; null
  // if nothing was pushed.
  Order* FindParkedLocked(int64_t step_id, std::string_view key);
  void ParkLocked(int64_t step_id, Order* order, Pushed pushed);
  // True if there was a push, which is moved to `*pushed`.
  bool TakeParkedLocked(int64_t step_id, Order* order, Pushed* pushed);
  // The count of parked pushes for a step.
  std::vector<std::pair<int64_t, size_t>>::iterator FindCountLocked(int64_t step_id);
  void CountTakenLocked(int64_t step_id);
  // Removes those parked pushes of all orders that are `unwanted`; the caller frees them without
  // the lock.
  template <typename Unwanted>
  std::vector<Parked> DropParkedLocked(Unwanted unwanted);
  // Sets any_parked_, and counts this inbox among those that have parked pushes.
  void SetAnyParkedLocked(bool any);
  // Forgets an order of a closed session for which no call waits and no push is parked.
  void DropIfDoneLocked(Order* order);
  void ArmLocked();
  // Tells waiters of overdue pushes to send requests, and drops pushes that no waiter has taken.
  void Tick();

  const std::weak_ptr<wire::Channel> channel_;
  const std::shared_ptr<Steps> steps_;
  std::atomic<int64_t> arrived_us_{0};  // when the head of the last push arrived

  // Invariants between two locks:
  // - orders_ has the orders of known_, and those of closed sessions that are still waited for or
  //   have a parked push.
  // - For one step and one order there is a parked push, or a waiter (of the order, or in
  //   unordered_), or neither; never both.
  // - A waiter has not been told of its tensor, or is just being told. It removes itself (Forget).
  // - No push of an ended step is parked, except until EndStep for that step has run.
  // - parked_steps_ counts all parked pushes, by step; any_parked_ says whether there are any.
  // - A Tick is scheduled (armed_) while a waiter is kExpected or kPromised, or a push is parked.
  std::mutex mutex_;
  uint32_t last_order_ = 0;
  std::unordered_map<std::string, std::shared_ptr<Order>> known_;  // by session and key
  std::unordered_map<uint32_t, std::shared_ptr<Order>> orders_;    // by number
  // Hashes of the keys that were requested once. Most keys of eager execution are never requested
  // again and are not worth an order.
  std::unordered_set<size_t> seen_;
  // Waiters without an order, by step and key. While two steps are under way, the second may give
  // an order that the producer then follows for the first as well.
  std::map<std::pair<int64_t, std::string>, Waiting> unordered_;
  std::vector<std::pair<int64_t, size_t>> parked_steps_;  // few: steps under way
  std::atomic<bool> any_parked_{false};
  bool armed_ = false;
  PushTimes times_;
};

// What waits for the pushes of one order, and the pushes that nobody has taken, are in the order
// itself: few at a time, for they are of different steps.
class PushInbox::Order {
 public:
  Order(uint32_t number, std::string name, tensorflow::Allocator* host_memory)
      : number_(number), name_(std::move(name)), host_memory_(host_memory) {}
  // In requests and pushes; never 0.
  uint32_t number() const { return number_; }

 private:
  friend class PushInbox;
  // True if nobody can use it any more.
  bool IsDone() const { return has_ended_ && waiting_.empty() && parked_.empty(); }
  std::string_view key() const { return std::string_view(name_).substr(sizeof(uint64_t)); }

  const uint32_t number_;
  const std::string name_;  // NameOf session and key
  tensorflow::Allocator* const host_memory_;
  // The rest under the inbox's lock.
  bool is_accepted_ = false;  // by the producer at the other end of the connection
  bool has_ended_ = false;    // the session was closed
  std::vector<Waiting> waiting_;
  std::vector<Parked> parked_;
};

}  // namespace tensorwire::plugin
