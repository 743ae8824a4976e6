#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensor_figures.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

// The step id of TensorFlow's rendezvous for everything outside of steps. This step never ends.
constexpr int64_t kNoStep = -1;

// Identifies a session; all its tasks compute the same value. A TF2 context has a scope, too.
uint64_t ScopeOf(const std::string& session_name);

// The producer's side of standing orders (the consumer's is PushInbox): the rendezvous keys that
// another task wants in every step of a session. A tensor with such a key is sent as soon as it is
// made, so that it need not wait for a request.
//
// A push must never lose a tensor. So for each step that has not ended, notes record which keys
// were requested, which were pushed, and over which connection. A requested tensor is not pushed.
// If two connections request the same tensor, the later one gets it. A request for a tensor that
// has left over another connection fails at once. Thread-safe.
class StandingOrders {
 public:
  // What a request asks for: a tensor, and perhaps a standing order for those of later steps.
  struct Wish {
    int64_t step_id = 0;
    std::string_view key;
    uint32_t order = 0;  // 0: no order
    uint64_t scope = 0;  // of the session; unused without an order
  };
  enum class Asked {
    kInRendezvous,  // the tensor is in the rendezvous, or will be
    kOnItsWay,      // it was pushed over the connection of the request
    kGone,          // it has left over another connection
  };

  // Records a request that has arrived. `*accepted`: whether later tensors of this key are pushed
  // to `pusher` and counted in `counters`.
  Asked Ask(const Wish& wish, wire::Pusher pusher, TensorCounters* counters, bool* accepted);

  // Called when a requested tensor has been made. True if it goes to this connection; false if
  // another connection has requested it since.
  bool Claim(int64_t step_id, std::string_view key, uint64_t connection_id);

  // Pushes the tensor, which is in host memory, if there is an order for its key and no request for
  // it. False: the tensor has to go into the rendezvous. If the consumer's connection has a
  // backlog, the push carries no tensor and tells the consumer to send a request.
  bool Push(int64_t step_id, uint64_t scope, std::string_view key, const tensorflow::Tensor& tensor,
            bool is_dead);

  // The step has ended; no request for it will follow.
  void EndStep(int64_t step_id);
  // The session was closed.
  void EndScope(uint64_t scope);
  // The connection is gone; its orders are dropped.
  void Forget(uint64_t connection_id);

 private:
  static constexpr size_t kMostOrders = size_t{1} << 18;
  // Limit over all steps. If a master dies before it ends a step, the step's notes are dropped only
  // when the limit is reached.
  static constexpr size_t kMostNotes = size_t{1} << 21;

  struct Order {
    std::string key;
    uint64_t scope = 0;
    uint32_t number = 0;
    wire::Pusher pusher;
    TensorCounters* counters = nullptr;
  };
  struct Note {
    uint64_t connection_id = 0;  // the one that requested last, or that the tensor was sent over
    bool sent = false;
  };
  // Keys are noted by their 64-bit hash. If two keys of one step had the same hash, the step would
  // fail.
  struct Step {
    uint64_t begun = 0;  // sequence number of the step
    std::unordered_map<uint64_t, Note> notes;
    std::vector<std::pair<uint64_t, Note>> pushed;  // not in `notes` yet: adding here is faster
  };

  Step& StepLocked(int64_t step_id);
  std::unordered_map<uint64_t, Note>& NotesLocked(Step* step);
  void MakeRoomLocked();
  template <typename Unwanted>
  void DropOrdersLocked(Unwanted unwanted);

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::unordered_map<uint64_t, Order> orders_;  // by the hash of session and key
  std::unordered_map<int64_t, Step> steps_;
  uint64_t steps_begun_ = 0;
  size_t notes_ = 0;  // an upper bound: a key that is requested twice counts twice
};

}  // namespace tensorwire::plugin
