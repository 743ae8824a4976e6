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

}  // namespace

TensorRequest::TensorRequest(tensorflow::WorkerEnv* env, DataPlane* plane, wire::Request request,
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

void TensorRequest::Serve(tensorflow::WorkerEnv* env, DataPlane* plane, wire::Request request) {
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
  switch (StandingOrders::Ask(plane->steps(), step_id, scope, is_again != 0, order, &taken)) {
    case StandingOrders::Asked::kInRendezvous:
      break;
    case StandingOrders::Asked::kOnItsWay:
      request.Reply(Encode(Tensor(), kDead | kPushed, /*waited_us=*/0, taken));
      return;
    case StandingOrders::Asked::kGone:
      request.Fail(ToWire(absl::UnavailableError(
          "grpc++: the tensor was sent over another connection of the task that requests it; the "
          "step has to be run again")));
      return;
    case StandingOrders::Asked::kEnded:
      request.Fail(ToWire(tensorflow::StatusGroup::MakeDerived(
          absl::AbortedError("grpc++: the step has ended on the task that makes the tensor"))));
      return;
  }
  auto* const self =
      new TensorRequest(env, plane, std::move(request), step_id, order, std::move(taken));
  // A raw pointer, because the rendezvous may copy the callback. The callback is called exactly
  // once.
  env->rendezvous_mgr->RecvLocalAsync(
      step_id, parsed,
      [self](const absl::Status& status, const Rendezvous::Args& send_args,
             const Rendezvous::Args& /*recv_args*/, const Tensor& value, bool is_dead) {
        OnMade(std::unique_ptr<TensorRequest>(self), status, send_args, value, is_dead);
      });
}

void TensorRequest::OnMade(std::unique_ptr<TensorRequest> self, const absl::Status& status,
                           const Rendezvous::Args& send_args, const Tensor& value, bool is_dead) {
  wire::Request asker;
  const bool is_wanted = self->FindAsker(&asker);
  if (!status.ok()) {
    // Derived: this task's own part of the step reports the cause.
    if (is_wanted) asker.Fail(ToWire(tensorflow::StatusGroup::MakeDerived(status)));
    return;
  }
  if (!is_wanted || !StandingOrders::Claim(self->taken_, self->connection_id_)) {
    self->PutBack(send_args, value, is_dead);
    if (!is_wanted) return;
    asker.Fail(
        ToWire(absl::AbortedError("grpc++: another connection has asked for this tensor since")));
    return;
  }
  self->waited_us_ = static_cast<uint32_t>(
      std::min<int64_t>(wire::NowUs() - self->asked_us_, std::numeric_limits<uint32_t>::max()));
  if (IsOnAccelerator(self->device_, send_args.alloc_attrs, value, is_dead)) {
    CopyAndAnswer(std::move(self), value, send_args.device_context);
    return;
  }
  Answer(std::move(self), asker, value, is_dead ? kDead : 0);
}

void TensorRequest::CopyAndAnswer(std::unique_ptr<TensorRequest> self, const Tensor& value,
                                  tensorflow::DeviceContext* context) {
  TensorRequest* const request = self.release();  // owned by the callback, which is called once
  CopyToHost(request->device_, context, request->key_, value,
             [request](const absl::Status& status, const Tensor& copy) {
               std::unique_ptr<TensorRequest> self(request);
               wire::Request asker;
               if (!self->FindAsker(&asker)) return;
               if (status.ok()) {
                 Answer(std::move(self), asker, copy, /*flags=*/0);
               } else {
                 asker.Fail(ToWire(status));
               }
             });
}

bool TensorRequest::FindAsker(wire::Request* asker) const {
  asker->connection = connection_.lock();
  asker->id = id_;
  asker->one_way = one_way_;
  return asker->connection != nullptr;
}

void TensorRequest::PutBack(const Rendezvous::Args& send_args, const Tensor& value,
                            bool is_dead) const {
  if (plane_->steps()->HasEnded(step_id_)) return;
  Rendezvous::ParsedKey parsed;
  if (!Rendezvous::ParseKey(key_, &parsed).ok()) return;
  // Send fails if the step has been aborted; then no Recv waits.
  env_->rendezvous_mgr->Find(step_id_)->Send(parsed, send_args, value, is_dead).IgnoreError();
  if (plane_->steps()->HasEnded(step_id_)) env_->rendezvous_mgr->Cleanup(step_id_);
}

void TensorRequest::Answer(std::unique_ptr<TensorRequest> self, const wire::Request& asker,
                           const Tensor& tensor, uint8_t flags) {
  if (TravelsAsMemory(tensor)) return self->Reply(asker, tensor, flags);
  // In the pool: the time for encoding grows with the tensor's size, and this thread may be a
  // reactor.
  auto* const pool = self->env_->compute_pool;
  pool->Schedule([self = std::shared_ptr<TensorRequest>(std::move(self)), asker, tensor, flags] {
    self->Reply(asker, tensor, flags);
  });
}

void TensorRequest::Reply(const wire::Request& asker, const Tensor& tensor, uint8_t flags) const {
  wire::Message reply = Encode(tensor, flags, waited_us_, taken_);
  counters_->Count(reply.payload_bytes());
  asker.Reply(std::move(reply));
}

}  // namespace tensorwire::plugin
