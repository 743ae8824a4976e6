#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensors/tensor_codec.h"
#include "tensorwire/wire/engine.h"
#include "transport/push_steps.h"
#include "transport/push_times.h"

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
// first time that a session asks for a key, the key gets a number, and the request carries it as a
// *standing order*; a producer that accepts it sends the tensors of later steps as soon as they are
// made (ReservedPush).
//
// A call waits for a push only if there will be one: the producer has accepted the order over this
// connection, and said for which steps it does not hold. Then the push arrives, or a push without a
// tensor which says that the call must send a request, or the connection is lost. If the connection
// is lost, an order keeps its number and is given again over the next connection. Tensors that were
// pushed over the old connection stay.
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
  class Keys;
  // The order that a session has given for a key.
  struct Order {
    std::shared_ptr<Keys> keys;  // null: none; the tensor is requested
    uint64_t number = 0;         // of the session on this link, and of the key in the session
    explicit operator bool() const { return keys != nullptr; }
  };
  enum class Expected {
    kHere,  // the tensor has arrived already, in `*here`
    kWait,  // the tensor will be pushed; the waiter is told
    kAsk,   // send a request with the order; the waiter is told if a push is faster
  };

  explicit PushInbox(PushSteps* steps) : steps_(steps) {}

  // A new order for a key of the session. `host_memory`: where a pushed tensor is put, such as
  // pinned memory for a tensor that goes to an accelerator; null: HostMemoryFor its size. It lives
  // as long as the process.
  Order NewOrder(const std::shared_ptr<PushSession>& session,
                 tensorflow::Allocator* host_memory = nullptr);
  Expected Expect(int64_t step_id, const Order& order, const std::shared_ptr<Waiter>& waiter,
                  Pushed* here);
  // The producer accepted this order: `numbers` of the reply (tensor_codec.h). `round_trip_us`: how
  // long request and reply were under way. On the channel's reactor, so that it cannot come after
  // the loss of its connection.
  void AcceptFromReactor(const Order& order, const std::vector<int64_t>& numbers,
                         int64_t round_trip_us);
  // The producer answered that it has pushed the tensor already. This answer may overtake a large
  // push, or the ranges of its payload. False if nothing is received for the step any more.
  bool PromiseFromReactor(int64_t step_id, const Order& order);
  // The waiter got its tensor, or its error, in another way. What is still pushed is dropped.
  void Forget(int64_t step_id, const Order& order);

  std::unique_ptr<wire::Call> BeginFromReactor(uint64_t what) override;
  void OnLost(const wire::Status& why) override;

 private:
  class PushCall;

  // How a tensor arrives:
  //
  //   kNone --- head of a push ---> kArriving --- payload ---> kHere, or kTaken if a call waits
  //                                           --- declined --> kNone; who comes or waits, asks
  enum class State : uint8_t { kNone, kArriving, kHere, kTaken };
  struct Slot {
    State state = State::kNone;
    bool asks = false;  // the call has sent a request, or a call that comes must
    std::shared_ptr<Waiter> waiter;
    std::unique_ptr<Pushed> pushed;  // kHere only
  };
  struct Step {
    bool is_again = false;    // PushStep::is_again
    bool asks = false;        // the producer's part has failed: calls that come must send requests
    std::vector<Slot> slots;  // by number of the key
  };

  // Null if the step has ended here, or the session.
  Step* StepLocked(const std::shared_ptr<Keys>& keys, int64_t step_id);
  static Slot& SlotOf(Step* step, uint64_t number);
  // Null if there are no slots for the step.
  Slot* SlotLocked(Keys* keys, int64_t step_id, uint64_t number);
  void Deliver(int64_t step_id, Keys* keys, uint64_t number, Pushed pushed);
  // The producer will not push these orders, in this step or, if there is none, from that event on:
  // calls that wait for them have to ask.
  void Decline(int64_t step_id, Keys* keys, uint64_t number, int64_t event);
  // Ends the calls that wait although their step has been cleaned up. Without the lock.
  static void TellEnded(const Step& step);

  PushSteps* const steps_;
  std::mutex mutex_;
  uint32_t last_number_ = 0;
  std::unordered_map<uint32_t, std::shared_ptr<Keys>> sessions_;  // by number
  std::unordered_map<uint64_t, std::shared_ptr<Keys>> scopes_;    // the same
  PushTimes times_;
};

// What a link holds of a session: its keys, and what has arrived or is awaited in live steps.
// Everything under the inbox's lock.
class PushInbox::Keys : public SessionPart, public std::enable_shared_from_this<Keys> {
 public:
  Keys(uint32_t number, const std::shared_ptr<PushSession>& session,
       const std::shared_ptr<PushInbox>& inbox)
      : number_(number), scope_(session->scope), session_(session), inbox_(inbox) {}
  void EndStep(int64_t step_id) override;
  void EndSession() override;

 private:
  friend class PushInbox;
  struct Key {
    tensorflow::Allocator* host_memory = nullptr;
    bool is_accepted = false;  // by the producer at the other end of the connection
    // A large reply that accepts an order may be overtaken by its end.
    int64_t revoked = 0;
    std::unique_ptr<std::vector<int64_t>> not_in;  // numbers of the reply that accepted it
  };

  const uint32_t number_;
  const uint64_t scope_;
  const std::weak_ptr<PushSession> session_;
  const std::weak_ptr<PushInbox> inbox_;
  std::vector<Key> keys_;
  std::unordered_map<int64_t, Step> steps_;
  size_t usual_slots_ = 0;  // of the last step that ended
};

}  // namespace tensorwire::plugin
