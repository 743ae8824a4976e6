#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "calls/recent.h"
#include "metrics/tensor_figures.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorwire/wire/engine.h"
#include "transport/key_table.h"

namespace tensorwire::plugin {

struct PushSession;
struct Route;

// The step id of TensorFlow's rendezvous for everything outside of steps. This step never ends.
constexpr int64_t kNoStep = -1;

// The number of standing orders that a task gives, and that it accepts: 1,000 peers with 1,000
// tensors each. Tensors beyond it are requested in every step. An order takes about 350 bytes at
// either end (push_test.cc).
constexpr size_t kMostOrders = size_t{1} << 20;

// Identifies a session; all its tasks compute the same value. A TF2 context has a scope, too.
uint64_t ScopeOf(const std::string& session_name);

// What a consumer has ordered from this task.
struct Order {
  std::string key;
  uint64_t number = 0;  // as the consumer has it (PushInbox::Order)
  uint32_t slot = 0;    // in PushStep::slots; the same for every consumer of this key
  uint64_t since = 0;   // it holds for steps that have begun here later
  wire::Pusher pusher;  // empty: the connection is lost
  tensorflow::Device* device = nullptr;
  TensorCounters* counters = nullptr;
};

// A push without a tensor: the consumer has to request it. Outside of steps it revokes an order.
wire::Message Declined(int64_t step_id);
// The number in a push that stands for all orders of the session of this one.
inline uint64_t AllOrdersOf(uint64_t number) { return number | 0xffff'ffff; }

// What one link holds of a session: PushInbox::Keys.
class SessionPart {
 public:
  virtual ~SessionPart() = default;
  virtual void EndStep(int64_t step_id) = 0;
  virtual void EndSession() = 0;
};

// A step that sends tensors to other tasks or receives some, from when this task first hears of it
// until it is cleaned up here. Pushes and requests may come before a part of it runs here.
struct PushStep {
  PushStep(int64_t id, std::shared_ptr<PushSession> session, bool is_again)
      : id(id), session(std::move(session)), is_again(is_again) {}

  const int64_t id;
  const std::shared_ptr<PushSession> session;
  // A step of this id has ended here before: failed collectives are tried again under their id.
  // Pushes of the two attempts could not be told apart, so this one has none.
  const bool is_again;
  // When its part began to run here; 0: not yet. Written before a tensor of it is sent.
  std::atomic<uint64_t> begun{0};

  // The producer's notes: which tensors were requested or pushed, and over which connection.
  struct Slot {
    uint64_t connection_id = 0;  // that requested last, or that the tensor was sent over; 0: none
    bool is_sent = false;
  };
  std::mutex mutex;
  std::vector<Slot> slots;  // by Order::slot

  std::vector<std::shared_ptr<SessionPart>> parts;  // with slots for it; under PushSteps' lock
};

// What a task keeps of a session. It goes as a whole when TensorFlow's WorkerSession goes.
struct PushSession {
  explicit PushSession(uint64_t scope) : scope(scope) {}

  KeyTable<Route> routes;  // of the tensors that it receives
  KeyTable<Order> orders;  // of the tensors that it sends
  const uint64_t scope;

  // The rest under PushSteps' lock.
  struct Consumer {
    wire::Pusher pusher;
    uint64_t number = 0;            // of one of its orders
    std::vector<std::string> keys;  // of all
  };
  std::weak_ptr<const void> alive;  // the WorkerSession, if is_known
  std::weak_ptr<const void> peers;  // its worker cache
  std::vector<std::shared_ptr<SessionPart>> parts;
  std::unordered_map<int64_t, std::shared_ptr<PushStep>> steps;
  std::unordered_map<uint64_t, Consumer> consumers;  // by connection
  uint32_t last_slot = 0;
  bool is_gone = false;
  bool is_known = false;  // a part of one of its steps has run here
};

// The sessions and live steps of a task, and the steps that have ended.
//
// Nothing in here depends on time. What is kept for a step goes when the step is cleaned up here;
// what is kept for a session, also for those of its steps that never begin or end here, goes when
// TensorFlow has deleted the WorkerSession: when it is closed, when its master has come back as
// another process, when the context of TF2 is gone. TensorFlow does not say when it deletes one, so
// Sweep looks, when a session begins or is closed and when a connection is lost. Thread-safe.
class PushSteps {
 public:
  using StepPtr = std::shared_ptr<PushStep>;
  using SessionPtr = std::shared_ptr<PushSession>;

  // A part of the step runs here, of the session with this scope. `find_alive` finds its
  // WorkerSession; called if it is not known yet. `peers` is the session's worker cache. A TF2
  // context that replaces a task gives its session another one; then all orders end, because one
  // may be of the replaced task, which may live on and keep its connection.
  StepPtr Begin(int64_t step_id, uint64_t scope,
                const std::function<std::weak_ptr<const void>()>& find_alive,
                const std::weak_ptr<const void>& peers = {});
  // The step, of which a push has come or is awaited, so that `part` has slots for it. Null if it
  // has ended here.
  StepPtr Touch(int64_t step_id, const SessionPtr& session, std::shared_ptr<SessionPart> part);
  void Join(const SessionPtr& session, std::shared_ptr<SessionPart> part);

  // The step has ended; no request for it will follow.
  void EndStep(int64_t step_id);
  bool HasEnded(int64_t step_id) const;
  // Ends the sessions that TensorFlow has deleted.
  void Sweep();

  // What a request with a standing order asks for; see NoteRequest.
  struct Taken {
    StepPtr step;  // null: it has ended here
    // Of the order; 0: there is none. Not the order itself, which keeps its connection.
    uint64_t since = 0;
    uint32_t slot = 0;
    bool is_accepted = false;
    // Steps that had begun here before the order: it does not hold for them.
    std::vector<int64_t> not_in;
  };
  Taken Take(int64_t step_id, uint64_t scope, bool is_again, const Order& order);
  // The connection is gone: its orders push no more.
  void Forget(uint64_t connection_id);
  // The part of the step that runs here has failed, perhaps before it sent or received anything:
  // consumers that wait for pushes of it shall send requests, which bring them the error.
  void Abort(int64_t step_id, uint64_t scope) const;

  // True if one more route may be kept; it is counted then.
  bool CountRoute() { return Count(&routes_); }
  size_t routes() const { return routes_.load(std::memory_order_relaxed); }
  size_t sessions() const;
  size_t live_steps() const;

 private:
  SessionPtr SessionLocked(uint64_t scope);
  StepPtr StepLocked(int64_t step_id, const SessionPtr& session, bool is_again);
  static bool IsGoneLocked(const PushSession& session);
  // The orders of a connection in the session push no more.
  static void DropOrdersLocked(PushSession* session, uint64_t connection_id);
  // Tells a consumer that an order has ended at this event.
  static void Revoke(const wire::Pusher& pusher, uint64_t number, uint64_t event);
  // False, and logged once, if there are kMostOrders.
  static bool Count(std::atomic<size_t>* count);

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, SessionPtr> sessions_;  // by scope
  std::unordered_map<int64_t, StepPtr> steps_;
  // If 65,536 further steps end here while a push or a request of an ended step is under way, it is
  // kept until the session ends.
  RecentSteps ended_{size_t{1} << 16};
  // Sessions in which a connection has orders.
  std::unordered_map<uint64_t, std::vector<std::weak_ptr<PushSession>>> ordered_by_;
  uint64_t events_ = 0;  // numbers the beginnings of steps and the orders as they come
  std::atomic<size_t> orders_{0};
  std::atomic<size_t> routes_{0};
};

}  // namespace tensorwire::plugin
