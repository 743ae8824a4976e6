#include "transport/tensor_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "calls/status.h"
#include "metrics/counters.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tensors/host_copy.h"
#include "tensors/tensor_codec.h"
#include "tensorwire/wire/clock.h"
#include "transport/standing_orders.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::Rendezvous;
using tensorflow::Tensor;

// Finds the device that makes the tensor, and checks that it still has the incarnation that the
// client knows: a restarted task has none of its predecessor's tensors.
absl::Status FindSource(tensorflow::WorkerEnv* env, const tensorflow::Rendezvous::ParsedKey& parsed,
                        tensorflow::Device** device) {
  const std::string local_name = tensorflow::DeviceNameUtils::LocalName(parsed.src_device);
  TF_RETURN_IF_ERROR(env->device_mgr->LookupDevice(local_name, device));
  const uint64_t incarnation = (*device)->attributes().incarnation();
  if (incarnation == parsed.src_incarnation) return absl::OkStatus();
  return absl::AbortedError(
      "RecvTensor expects a different device incarnation of " + std::string(parsed.src_device) +
      ": " + std::to_string(parsed.src_incarnation) + " instead of " + std::to_string(incarnation) +
      ". The task was probably restarted; its log may say why.");
}

wire::Message Encode(const tensorflow::Tensor& tensor, uint8_t flags, uint32_t waited_us,
                     const PushSteps::Taken& taken) {
  wire::Message reply;
  EncodeTensor(tensor, taken.is_accepted ? flags | kOrderAccepted : flags, waited_us, &reply);
  if (!taken.is_accepted) return reply;
  reply.Put<uint64_t>(taken.since);
  for (const int64_t step_id : taken.not_in) reply.Put<int64_t>(step_id);
  return reply;
}

// Another task's request for a tensor that is made here (RecvTensor), from its arrival to its
// answer. At any time exactly one of these places holds it:
//
//   TensorFlow's rendezvous --- made, and wanted ---> a device's copy to the host ---> answered
//            |   |                                     (of an accelerator's tensor)      ^
//            |   `----------------- made in host memory, or the step failed -------------'
//            `--- made, and not for this client ---> the tensor goes back; the request ends
//
// The tensor may never be made. So a request whose client has gone keeps neither the connection nor
// its descriptor.
class TensorRequest : public std::enable_shared_from_this<TensorRequest> {
 public:
  TensorRequest(tensorflow::WorkerEnv* env, DataPlane* plane, wire::Request request,
                int64_t step_id, const Order& order, PushSteps::Taken taken)
      : env_(env),
        plane_(plane),
        step_id_(step_id),
        key_(order.key),
        device_(order.device),
        taken_(std::move(taken)),
        counters_(order.counters),
        asked_us_(wire::NowUs()),
        connection_(request.connection),
        connection_id_(request.connection_id()),
        id_(request.id),
        one_way_(request.one_way),
        claim_(std::move(request.claim)) {}

  // Called once, by TensorFlow's rendezvous.
  void OnMade(const absl::Status& status, const Rendezvous::Args& send_args, const Tensor& value,
              bool is_dead) {
    wire::Request asker;
    const bool is_wanted = FindAsker(&asker);
    if (!status.ok()) {
      // Derived: this task's own part of the step reports the cause.
      if (is_wanted) asker.Fail(ToWire(tensorflow::StatusGroup::MakeDerived(status)));
      return;
    }
    if (!is_wanted || !ClaimTensor(taken_, connection_id_)) {
      PutBack(send_args, value, is_dead);
      if (!is_wanted) return;
      asker.Fail(
          ToWire(absl::AbortedError("grpc++: another connection has asked for this tensor since")));
      return;
    }
    waited_us_ = static_cast<uint32_t>(
        std::min<int64_t>(wire::NowUs() - asked_us_, std::numeric_limits<uint32_t>::max()));
    if (!IsOnAccelerator(device_, send_args.alloc_attrs, value, is_dead)) {
      return Answer(asker, value, is_dead ? kDead : 0);
    }
    CopyToHost(device_, send_args.device_context, key_, value,
               [self = shared_from_this()](const absl::Status& status, const Tensor& copy) {
                 wire::Request asker;
                 if (!self->FindAsker(&asker)) return;
                 if (!status.ok()) return asker.Fail(ToWire(status));
                 self->Answer(asker, copy, /*flags=*/0);
               });
  }

 private:
  // False if the connection of the request is gone.
  bool FindAsker(wire::Request* asker) const {
    asker->connection = connection_.lock();
    asker->id = id_;
    asker->one_way = one_way_;
    return asker->connection != nullptr;
  }

  // Puts the tensor back into the rendezvous: another connection may have asked for it, or may ask
  // later.
  void PutBack(const Rendezvous::Args& send_args, const Tensor& value, bool is_dead) const {
    if (plane_->steps()->HasEnded(step_id_)) return;
    Rendezvous::ParsedKey parsed;
    if (!Rendezvous::ParseKey(key_, &parsed).ok()) return;
    // Send fails if the step has been aborted; then no Recv waits.
    env_->rendezvous_mgr->Find(step_id_)->Send(parsed, send_args, value, is_dead).IgnoreError();
    if (plane_->steps()->HasEnded(step_id_)) env_->rendezvous_mgr->Cleanup(step_id_);
  }

  void Answer(const wire::Request& asker, const Tensor& tensor, uint8_t flags) {
    if (TravelsAsMemory(tensor)) return Reply(asker, tensor, flags);
    // In the pool: the time for encoding grows with the tensor's size, and this thread may be a
    // reactor.
    env_->compute_pool->Schedule(
        [self = shared_from_this(), asker, tensor, flags] { self->Reply(asker, tensor, flags); });
  }

  void Reply(const wire::Request& asker, const Tensor& tensor, uint8_t flags) const {
    wire::Message reply = Encode(tensor, flags, waited_us_, taken_);
    counters_->Count(reply.payload_bytes());
    asker.Reply(std::move(reply));
  }

  tensorflow::WorkerEnv* const env_;
  DataPlane* const plane_;
  const int64_t step_id_;
  const std::string key_;
  tensorflow::Device* const device_;  // makes the tensor
  const PushSteps::Taken taken_;      // the request's standing order
  TensorCounters* const counters_;
  const int64_t asked_us_;
  uint32_t waited_us_ = 0;  // until the tensor was made

  // The connection of the request.
  const std::weak_ptr<wire::Connection> connection_;
  const uint64_t connection_id_;
  const uint64_t id_;
  const bool one_way_;
  const wire::Claim claim_;
};

}  // namespace

void ServeTensorRequest(tensorflow::WorkerEnv* env, DataPlane* plane, wire::Request request) {
  wire::MetadataReader reader(request.metadata);
  int64_t step_id = 0;
  Order order;
  uint64_t scope = 0;
  uint8_t is_again = 0;
  Rendezvous::ParsedKey parsed;
  absl::Status status = absl::InvalidArgumentError("grpc++: a malformed RecvTensor request");
  if (reader.Get(&step_id) && reader.Get(&order.number) &&
      (order.number == 0 || (reader.Get(&scope) && reader.Get(&is_again)))) {
    order.key = reader.rest();
    status = Rendezvous::ParseKey(order.key, &parsed);
  }
  if (status.ok()) status = FindSource(env, parsed, &order.device);
  if (!status.ok()) {
    return request.Fail(ToWire(status));
  }
  Counters().served_tensors.fetch_add(1, std::memory_order_relaxed);
  order.counters = TensorFigures::Get().Of(order.key, TensorFigures::Direction::kOut);
  order.pusher = request.pusher();
  PushSteps::Taken taken;
  switch (NoteRequest(plane->steps(), step_id, scope, is_again != 0, order, &taken)) {
    case Asked::kInRendezvous:
      break;
    case Asked::kOnItsWay:
      request.Reply(Encode(Tensor(), kDead | kPushed, /*waited_us=*/0, taken));
      return;
    case Asked::kGone:
      request.Fail(ToWire(absl::UnavailableError(
          "grpc++: the tensor was sent over another connection of the task that requests it; the "
          "step has to be run again")));
      return;
    case Asked::kEnded:
      request.Fail(ToWire(tensorflow::StatusGroup::MakeDerived(
          absl::AbortedError("grpc++: the step has ended on the task that makes the tensor"))));
      return;
  }
  const auto self = std::make_shared<TensorRequest>(env, plane, std::move(request), step_id, order,
                                                    std::move(taken));
  env->rendezvous_mgr->RecvLocalAsync(
      step_id, parsed,
      [self](const absl::Status& status, const Rendezvous::Args& send_args,
             const Rendezvous::Args& /*recv_args*/, const Tensor& value,
             bool is_dead) { self->OnMade(status, send_args, value, is_dead); });
}

}  // namespace tensorwire::plugin
