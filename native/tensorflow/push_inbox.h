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
  int64_t way_us = 0;  // from when it was made until its head was here
  // Why there is none: it was damaged, say, or there was no memory for it. The producer has let go
  // of it, so asking would not bring it.
  absl::Status status;

  // True if the tensor has to be asked for.
  bool declined() const { return status.ok() && tensor.declined(); }
};

// Standing orders, seen from the consumer. A graph asks for the same tensors in every step. The
// second time that a session asks for a key, the request carries the number of a *standing order*;
// a producer that accepts it sends the tensors of later steps as soon as they are made
// (StandingOrders).
//
// The order is an optimisation and nothing relies on it: who waits for a push sends an ordinary
// request after kAskAfterMs, and takes whichever comes first. So it does not matter that a tensor
// may have been made just before the producer learned of the order. An order keeps its number when
// the connection is lost, and is given anew on the next one; what has been pushed over the old one
// stays.
//
// One inbox for each channel. Thread-safe.
class PushInbox : public wire::PushReceiver, public std::enable_shared_from_this<PushInbox> {
 public:
  // Somebody who wants a tensor. Called without locks held; several calls may race, and the first
  // that ends it counts.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    virtual void OnPush(Pushed pushed) = 0;
    virtual void OnLost(const absl::Status& why) = 0;
    // Send an ordinary request too.
    virtual void Ask() = 0;
  };
  // The order that a request for a key carries.
  struct Order {
    uint32_t number = 0;  // 0: no order
    TensorCounters* counters = nullptr;
  };
  enum class Expected {
    kHere,  // it has come already: `*here` is it
    kWait,  // it will come by itself; the waiter is told
    kAsk,   // send a request with the order; the waiter is told should a push be faster
  };

  // `ended`: the steps that have ended on this task.
  PushInbox(std::weak_ptr<wire::Channel> channel, std::shared_ptr<const RecentSteps> ended)
      : channel_(std::move(channel)), ended_(std::move(ended)) {}

  // The order for a key that a session asks for. `may_be_new`: otherwise only one that it has given
  // already.
  Order OrderFor(uint64_t scope, std::string_view key, bool may_be_new = true);
  Expected Expect(int64_t step_id, uint32_t order, std::string_view key,
                  const std::shared_ptr<Waiter>& waiter, Pushed* here);
  // The producer accepted this order. `round_trip_us`: how long request and reply were under way.
  void Accept(uint32_t order, int64_t round_trip_us);
  // The producer answered that it has pushed the tensor already.
  void Promise(int64_t step_id, uint32_t order, std::string_view key);
  // The waiter got its tensor, or its error, in another way.
  void Forget(int64_t step_id, uint32_t order, std::string_view key);

  // The step is over, and among the ended ones; what was pushed for it and not taken is dropped.
  void EndStep(int64_t step_id);
  // The session was closed.
  void EndScope(uint64_t scope);

  std::unique_ptr<wire::Call> BeginFromReactor(uint64_t what) override;
  void OnLost(const wire::Status& why) override;

 private:
  class PushCall;
  using Slot = std::pair<int64_t, uint32_t>;  // step, order
  // The ways in which an awaited tensor arrives:
  //
  //   kExpected --- late, or declined ---> kAsked --- answer ---> its tensor, or its error
  //                                        ^    \
  //                                declined \    `-- "pushed already" --> kPromised
  //                                          `-------------------------------'
  //
  // A push ends the wait in each of them. When the connection is lost kAsked hears it from its
  // request, and the others from OnLost.
  enum class State { kExpected, kAsked, kPromised };
  struct Waiting {
    std::shared_ptr<Waiter> waiter;
    State state;
    int64_t since_ms;  // that it is in this state

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
  // A push that was promised and does not come, while no other comes either, was dropped here.
  static constexpr int kLostAfterMs = 30'000;
  // Time for which a push is kept if its step does not begin here: it may have ended long ago.
  static constexpr int kParkedForMs = 60'000;
  static constexpr size_t kMostOrders = 1u << 16;
  static constexpr size_t kMostSeen = 1u << 16;

  static std::string NameOf(uint64_t scope, std::string_view key);
  void Deliver(int64_t step_id, uint32_t order, Pushed pushed);
  // The waiter for the push `order` in `step_id`; null if there is none.
  Waiting* FindWaitingLocked(int64_t step_id, uint32_t order);
  // The push for `key` in `step_id` that arrived before its waiter, which did not know of the
  // order.
  std::map<Slot, Parked>::iterator FindParkedLocked(int64_t step_id, std::string_view key);
  Pushed TakeParkedLocked(std::map<Slot, Parked>::iterator at);
  void ArmLocked();
  // Asks for what is overdue, and drops what nobody takes.
  void Tick();

  const std::weak_ptr<wire::Channel> channel_;
  const std::shared_ptr<const RecentSteps> ended_;
  std::atomic<int64_t> arrived_us_{0};  // the last push, or a part of it

  // Invariants between two locks:
  // - orders_ has each order of known_, and no other.
  // - A tensor of a step that is pushed as some order is in parked_, or somebody who waits for it
  // is
  //   in waiting_ or unordered_, or neither; never both.
  // - Who is in waiting_ or unordered_ has not been told of its tensor, or is being told; it takes
  //   itself out (Forget).
  // - parked_ has nothing of a step that is among `ended_`, except while EndStep is on its way.
  // - The next Tick is planned (armed_) while somebody is kExpected or kPromised, or parked_ is not
  //   empty.
  std::mutex mutex_;
  uint32_t last_order_ = 0;
  KnownKeys known_;                                              // by session and key
  std::unordered_map<uint32_t, KnownKeys::value_type*> orders_;  // of known_, by number
  // Hashes of the keys that were asked for once: most keys of eager execution never come again, and
  // are not worth an order.
  std::unordered_set<size_t> seen_;
  std::map<Slot, Waiting> waiting_;
  // Waiters without an order, by step and key. Of two steps under way the second may give an
  // order that the producer then follows for the first as well.
  Unordered unordered_;
  std::map<Slot, Parked> parked_;
  std::atomic<bool> any_parked_{false};
  bool armed_ = false;
  PushTimes times_;
};

}  // namespace tensorwire::plugin
