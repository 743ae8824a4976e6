#include "worker_service.h"

#include <memory>
#include <string>

#include "counters.h"
#include "methods.h"
#include "status.h"
#include "tensor_codec.h"
#include "tensor_figures.h"
#include "tensorflow/core/common_runtime/copy_tensor.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/message_wrappers.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::Device;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

constexpr size_t kLargeFeedBytes = 16u << 10;

// Finds the device that `parsed` says the tensor is made on, and makes sure that it is still the
// one the asker knows: a task that was restarted has none of the old one's tensors.
absl::Status FindSource(tensorflow::WorkerEnv* env, const Rendezvous::ParsedKey& parsed,
                        Device** device) {
  const std::string local_name = tensorflow::DeviceNameUtils::LocalName(parsed.src_device);
  if (absl::Status s = env->device_mgr->LookupDevice(local_name, device); !s.ok()) return s;
  const uint64_t incarnation = (*device)->attributes().incarnation();
  if (incarnation == parsed.src_incarnation) return absl::OkStatus();
  return absl::AbortedError(
      "RecvTensor expects a different device incarnation of " + std::string(parsed.src_device) +
      ": " + std::to_string(parsed.src_incarnation) + " instead of " + std::to_string(incarnation) +
      ". The task was probably restarted; its log may say why.");
}

// A request whose answer may never be: it keeps neither the connection nor its descriptor when who
// asked has gone.
class Unanswered {
 public:
  explicit Unanswered(const wire::Request& request)
      : connection_(request.connection),
        connection_id_(request.connection_id()),
        claim_(request.claim),
        id_(request.id),
        one_way_(request.one_way) {}

  uint64_t connection_id() const { return connection_id_; }

  // False when nobody waits for an answer any more.
  bool Take(wire::Request* request) const {
    request->connection = connection_.lock();
    request->id = id_;
    request->one_way = one_way_;
    return request->connection != nullptr;
  }

 private:
  std::weak_ptr<wire::Connection> connection_;
  uint64_t connection_id_;
  wire::Claim claim_;  // goes with this
  uint64_t id_;
  bool one_way_;
};

void ReplyTensor(const wire::Request& request, const Tensor& tensor, uint8_t flags,
                 uint32_t waited_us, TensorCounters* counters) {
  wire::Message reply;
  EncodeTensor(tensor, flags, waited_us, &reply);
  counters->Count(reply.payload_bytes());
  request.Reply(std::move(reply));
}

// The same, in the pool where it takes time in proportion to the tensor: this may be a reactor.
void ReplyEncoded(tensorflow::WorkerEnv* env, const wire::Request& request, const Tensor& tensor,
                  uint8_t flags, uint32_t waited_us, TensorCounters* counters) {
  if (TravelsAsMemory(tensor)) {
    ReplyTensor(request, tensor, flags, waited_us, counters);
    return;
  }
  env->compute_pool->Schedule([request, tensor, flags, waited_us, counters] {
    ReplyTensor(request, tensor, flags, waited_us, counters);
  });
}

// Who asked for this tensor has gone. Another connection may have asked for it, or may ask yet.
void PutBack(tensorflow::WorkerEnv* env, const DataPlane& plane, int64_t step_id,
             const std::string& key, const Rendezvous::Args& args, const Tensor& value,
             bool is_dead) {
  if (plane.ended_steps().Has(step_id)) return;
  Rendezvous::ParsedKey parsed;
  if (!Rendezvous::ParseKey(key, &parsed).ok()) return;
  // Fails when the step has been aborted; then nobody waits.
  env->rendezvous_mgr->Find(step_id)->Send(parsed, args, value, is_dead).IgnoreError();
  if (plane.ended_steps().Has(step_id)) env->rendezvous_mgr->Cleanup(step_id);
}

}  // namespace

struct WorkerService::RunGraphState {
  tensorflow::CallOptions options;
  tensorflow::RunGraphRequest request;
  tensorflow::RunGraphResponse response;
  tensorflow::ProtoRunGraphRequest wrapped_request{&request};
  tensorflow::NonOwnedProtoRunGraphResponse wrapped_response{&response};
};

void WorkerService::Begin(tensorflow::WorkerEnv* env, tensorflow::Worker* worker, DataPlane* plane,
                          EagerService* eager) {
  env_ = env;
  worker_ = worker;
  plane_ = plane;
  eager_ = eager;
  ready_.store(true, std::memory_order_release);
}

wire::RunOn WorkerService::HandleOn(const wire::Request& request) const {
  switch (request.method) {
    case kRecvTensor:
    case kCleanupGraph:
      // Looking a tensor up takes a microsecond or two, and forgetting a step little more; whoever
      // makes a tensor later answers in a thread of its own.
      return wire::RunOn::kReactor;
    case kRunGraph:
    case kEagerRunFunction:
      // Starting a graph is tens of microseconds; its kernels run in TensorFlow's pool. Decoding
      // what is fed can take longer.
      return request.payload.size() < kLargeFeedBytes ? wire::RunOn::kReactorWhenAlone
                                                      : wire::RunOn::kExecutor;
    case kEagerEnqueue:
      return wire::RunOn::kReactor;  // it only puts it into its stream
    default:
      return wire::RunOn::kExecutor;
  }
}

void WorkerService::Handle(wire::Request request) {
  if (!ready_.load(std::memory_order_acquire)) {
    request.Fail(ToWire(absl::UnavailableError("grpc++: this task is still starting")));
    return;
  }
  switch (request.method) {
    case kRecvTensor:
      return RecvTensor(std::move(request));
    case kRunGraph:
      return RunGraph(std::move(request));
    case kCleanupGraph:
      return CleanupGraph(request);
    case kEagerEnqueue:
      return eager_->Enqueue(std::move(request));
    case kEagerRunFunction:
      return eager_->RunFunction(std::move(request));
    case kEagerCloseContext:
      return eager_->CloseContext(std::move(request));
    default:
      request.Fail(
          ToWire(absl::UnimplementedError("grpc++: no method " + std::to_string(request.method))));
  }
}

void WorkerService::RecvTensor(wire::Request request) {
  wire::MetadataReader reader(request.metadata);
  StandingOrders::Wish wish;
  Rendezvous::ParsedKey parsed;
  Device* device = nullptr;
  absl::Status status = absl::InvalidArgumentError("grpc++: a malformed RecvTensor request");
  if (reader.Get(&wish.step_id) && reader.Get(&wish.order) &&
      (wish.order == 0 || reader.Get(&wish.scope))) {
    wish.key = reader.rest();
    status = Rendezvous::ParseKey({wish.key.data(), wish.key.size()}, &parsed);
  }
  if (status.ok()) status = FindSource(env_, parsed, &device);
  if (!status.ok()) {
    request.Fail(ToWire(status));
    return;
  }
  Counters().served_tensors.fetch_add(1, std::memory_order_relaxed);
  // What is made on an accelerator is copied to the host when it is asked for, not before.
  TensorCounters* const counters =
      TensorFigures::Get().Of(wish.key, TensorFigures::Direction::kOut);
  if (device->tensorflow_accelerator_device_info() != nullptr) wish.order = 0;
  bool ordered = false;
  switch (plane_->orders()->Ask(wish, request.pusher(), counters, &ordered)) {
    case StandingOrders::Asked::kInRendezvous:
      break;
    case StandingOrders::Asked::kOnItsWay:
      ReplyTensor(request, Tensor(), kDead | kPushed, /*waited_us=*/0, counters);
      return;
    case StandingOrders::Asked::kGone:
      request.Fail(ToWire(absl::UnavailableError(
          "grpc++: the tensor has left over another connection of the task that asks for it; the "
          "step has to be run again")));
      return;
  }
  const int64_t asked_us = wire::NowUs();
  env_->rendezvous_mgr->RecvLocalAsync(
      wish.step_id, parsed,
      [env = env_, plane = plane_, step_id = wish.step_id, key = std::string(wish.key), device,
       asked_us, ordered, counters, unanswered = Unanswered(request)](
          const absl::Status& status, const Rendezvous::Args& send_args,
          const Rendezvous::Args& /*recv_args*/, const Tensor& value, bool is_dead) {
        wire::Request request;
        const bool is_wanted = unanswered.Take(&request);
        if (!status.ok()) {
          // What made the step fail here is reported by this task's own part of it.
          if (is_wanted) request.Fail(ToWire(tensorflow::StatusGroup::MakeDerived(status)));
          return;
        }
        if (!is_wanted || !plane->orders()->Claim(step_id, key, unanswered.connection_id())) {
          PutBack(env, *plane, step_id, key, send_args, value, is_dead);
          if (!is_wanted) return;
          request.Fail(ToWire(
              absl::AbortedError("grpc++: another connection has asked for this tensor since")));
          return;
        }
        const auto waited_us = static_cast<uint32_t>(
            std::min<int64_t>(wire::NowUs() - asked_us, std::numeric_limits<uint32_t>::max()));
        const auto flags =
            static_cast<uint8_t>((is_dead ? kDead : 0) | (ordered ? kOrderAccepted : 0));
        const bool on_device = device->tensorflow_accelerator_device_info() != nullptr &&
                               !send_args.alloc_attrs.on_host();
        if (on_device && !is_dead && value.IsInitialized() && value.NumElements() > 0) {
          tensorflow::AllocatorAttributes attributes;
          attributes.set_on_host(true);
          attributes.set_gpu_compatible(true);
          tensorflow::Allocator* const host_memory = device->GetAllocator(attributes);
          auto copy = std::make_shared<Tensor>(host_memory, value.dtype(), value.shape());
          if (!copy->IsInitialized()) {
            request.Fail(ToWire(absl::ResourceExhaustedError(
                "grpc++: no memory on the host for a tensor of shape " +
                value.shape().DebugString() + " on " + device->name())));
            return;
          }
          auto source = std::make_shared<Tensor>(value);
          // It knows variants, too, whose elements are on the device.
          tensorflow::CopyDeviceToHost(
              source.get(), host_memory, host_memory, key, device, copy.get(),
              send_args.device_context,
              [env, request, copy, source, waited_us, counters](const absl::Status& copied) {
                if (copied.ok()) {
                  ReplyEncoded(env, request, *copy, /*flags=*/0, waited_us, counters);
                } else {
                  request.Fail(ToWire(copied));
                }
              });
          return;
        }
        ReplyEncoded(env, request, value, flags, waited_us, counters);
      });
}

void WorkerService::RunGraph(wire::Request request) {
  Counters().run_graphs.fetch_add(1, std::memory_order_relaxed);
  auto state = std::make_shared<RunGraphState>();
  if (!state->request.ParseFromString(request.payload)) {
    request.Fail(ToWire(absl::InvalidArgumentError("grpc++: a malformed RunGraph request")));
    return;
  }
  state->request.set_request_id(kNoRequestId);
  running_.Add(request, {state, &state->options});
  worker_->RunGraphAsync(&state->options, &state->wrapped_request, &state->wrapped_response,
                         [this, state, request](const absl::Status& status) {
                           running_.Remove(request);
                           if (!status.ok()) {
                             request.Fail(ToWire(status));
                             return;
                           }
                           wire::Message reply;
                           reply.SetOwnedPayload(state->response.SerializeAsString());
                           request.Reply(std::move(reply));
                         });
}

void WorkerService::CleanupGraph(const wire::Request& request) {
  wire::MetadataReader reader(request.metadata);
  tensorflow::CleanupGraphRequest cleanup;
  int64_t step_id = 0;
  if (!reader.Get(&step_id)) return;
  cleanup.set_step_id(step_id);
  tensorflow::CleanupGraphResponse response;
  worker_->CleanupGraphAsync(&cleanup, &response, [](const absl::Status&) {});
}

void WorkerService::OnCancel(uint64_t connection_id, uint64_t request_id) {
  running_.Cancel(connection_id, request_id);
  if (ready_.load(std::memory_order_acquire)) eager_->OnCancel(connection_id, request_id);
}

void WorkerService::OnDisconnect(uint64_t connection_id) {
  if (ready_.load(std::memory_order_acquire)) {
    plane_->orders()->Forget(connection_id);
    eager_->OnDisconnect(connection_id);
  }
  running_.CancelAll(connection_id);
}

}  // namespace tensorwire::plugin
