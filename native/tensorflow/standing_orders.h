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

// The step of TensorFlow's rendezvous for everything outside of steps. It never ends.
constexpr int64_t kNoStep = -1;

// Tells sessions apart: all tasks of a session compute the same. A context of TF2 has one, too.
uint64_t ScopeOf(const std::string& session_name);

// The producer's side of standing orders (the consumer's is PushInbox): which rendezvous keys
// another task wants in every step of a session. When a tensor with such a key is made it is sent
// at once, instead of waiting in the rendezvous for a request that takes a round trip to come.
//
// A push never costs anybody a tensor. For each step that has not ended there is a note of what was
// asked for, what was pushed, and over which connection. What was asked for is not pushed; of two
// connections that ask for one tensor the later one gets it; and who asks for what has left over
// another connection is told so at once. Thread-safe.
class StandingOrders {
 public:
  // A request's wish: the tensor that it wants, and whether it orders those of later steps.
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

  // A request has come. `*accepted`: whether later tensors of this key are pushed to `pusher`, and
  // counted in `counters`.
  Asked Ask(const Wish& wish, wire::Pusher pusher, TensorCounters* counters, bool* accepted);

  // A tensor that was asked for is here. Whether it goes to this connection; if not, another one
  // has asked for it since.
  bool Claim(int64_t step_id, std::string_view key, uint64_t connection_id);

  // Pushes the tensor, which is in host memory, if there is an order for its key and nobody has
  // asked for it. False: it belongs into the rendezvous. A consumer that does not take what it is
  // sent is told to ask.
  bool Push(int64_t step_id, uint64_t scope, std::string_view key, const tensorflow::Tensor& tensor,
            bool is_dead);

  // Nobody asks in this step any more.
  void EndStep(int64_t step_id);
  // The session was closed.
  void EndScope(uint64_t scope);
  // The connection is gone, and its orders with it.
  void Forget(uint64_t connection_id);

 private:
  static constexpr size_t kMostOrders = size_t{1} << 18;
  // Limit over all steps. A step whose master died before it ended it is forgotten only for room.
  static constexpr size_t kMostNotes = size_t{1} << 21;

  struct Order {
    std::string key;
    uint64_t scope = 0;
    uint32_t number = 0;
    wire::Pusher pusher;
    TensorCounters* counters = nullptr;
  };
  struct Note {
    uint64_t connection_id = 0;  // that asked last, or that it was sent over
    bool sent = false;
  };
  // Keys are noted by their hash: two keys of one step that share 64 bits would fail the step.
  struct Step {
    uint64_t begun = 0;  // the how manyth it is
    std::unordered_map<uint64_t, Note> notes;
    std::vector<std::pair<uint64_t, Note>> pushed;  // not among `notes` yet, which takes longer
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
  size_t notes_ = 0;  // at least: a key that is asked for twice counts twice
};

}  // namespace tensorwire::plugin
