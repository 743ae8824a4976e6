#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "key_table.h"
#include "tensor_figures.h"
#include "tensorflow/core/common_runtime/device.h"
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
  // to `pusher` and counted in `counters`. `device`: the one that makes the tensor.
  Asked Ask(const Wish& wish, wire::Pusher pusher, tensorflow::Device* device,
            TensorCounters* counters, bool* accepted);

  // Called when a requested tensor has been made. True if it goes to this connection; false if
  // another connection has requested it since.
  bool Claim(int64_t step_id, std::string_view key, uint64_t connection_id);

  // What a consumer has ordered.
  struct Order {
    std::string key;
    uint64_t scope = 0;
    uint32_t number = 0;
    wire::Pusher pusher;
    tensorflow::Device* device = nullptr;
    TensorCounters* counters = nullptr;
  };

  // A tensor that is to be pushed: it is noted as sent.
  class Reserved {
   public:
    explicit operator bool() const { return order_ != nullptr; }
    tensorflow::Device* device() const { return order_->device; }  // that makes it

   private:
    friend class StandingOrders;
    int64_t step_id_ = 0;
    uint64_t key_hash_ = 0;
    std::shared_ptr<const Order> order_;
  };
  // False if there is no order for the tensor, or a request for it: then it has to go into the
  // rendezvous. So it has to if the consumer's connection has a backlog; then a push without a
  // tensor tells the consumer to send a request.
  Reserved Reserve(int64_t step_id, uint64_t scope, std::string_view key);
  // Pushes the tensor, which is in host memory. False: the connection has ended, the note is gone,
  // and the tensor has to go into the rendezvous.
  bool Push(const Reserved& reserved, const tensorflow::Tensor& tensor, bool is_dead);
  // The tensor is not pushed; it has to go into the rendezvous.
  void Release(const Reserved& reserved);

  // The step has ended; no request for it will follow.
  void EndStep(int64_t step_id);
  // The session was closed.
  void EndScope(uint64_t scope);
  // The connection is gone; its orders are dropped.
  void Forget(uint64_t connection_id);

 private:
  // 350 bytes each: a thousand workers that want 365 variables take 130 MB.
  static constexpr size_t kMostOrders = size_t{1} << 20;
  // Limit over all steps. If a master dies before it ends a step, the step's notes are dropped only
  // when the limit is reached.
  static constexpr size_t kMostNotes = size_t{1} << 21;

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

  // The notes of some steps. Each part has a lock of its own, so that steps seldom wait for each
  // other.
  struct alignas(64) Part {
    std::mutex mutex;
    std::unordered_map<int64_t, Step> steps;
    uint64_t steps_begun = 0;
    size_t notes = 0;  // an upper bound: a key that is requested twice counts twice

    Step& StepLocked(int64_t step_id);
    void CountNoteLocked();
  };
  static constexpr int kPartBits = 3;

  Part& PartOf(int64_t step_id) {
    return parts_[(static_cast<uint64_t>(step_id) * 0x9e3779b97f4a7c15u) >> (64 - kPartBits)];
  }
  static std::unordered_map<uint64_t, Note>& NotesOf(Step* step);

  KeyTable<Order> orders_{kMostOrders};
  std::array<Part, 1 << kPartBits> parts_;
};

}  // namespace tensorwire::plugin
