#include "worker_service.h"

#include <memory>
#include <string>

#include "counters.h"
#include "methods.h"
#include "status.h"
#include "tensor_codec.h"
#include "tensor_figures.h"
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
      "RecvTensor expects another incarnation of " + std::string(parsed.src_device) + ": " +
      std::to_string(parsed.src_incarnation) + " instead of " + std::to_string(incarnation) +
      ". The task was probably restarted; its log may say why.");
}

// A request whose answer may never be: it keeps neither the connection nor its descriptor when who
// asked has gone.
class Unanswered {
 public:
  explicit Unanswered(const wire::Request& request)
      : connection_(request.connection),
        claim_(request.claim),
        id_(request.id),
        one_way_(request.one_way) {}

  // False when nobody waits for an answer any more.
  bool Take(wire::Request* request) const {
    request->connection = connection_.lock();
    request->id = id_;
    request->one_way = one_way_;
    return request->connection != nullptr;
  }

 private:
  std::weak_ptr<wire::Connection> connection_;
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

}  // namespace

struct WorkerService::RunGraphState {
  tensorflow::CallOptions options;
  tensorflow::RunGraphRequest request;
  tensorflow::RunGraphResponse response;
  tensorflow::ProtoRunGraphRequest wrapped_request{&request};
  tensorflow::NonOwnedProtoRunGraphResponse wrapped_response{&response};
};

void WorkerService::Begin(tensorflow::WorkerEnv* env, tensorflow::Worker* worker,
                          StandingOrders* orders, EagerService* eager) {
  env_ = env;
  worker_ = worker;
  orders_ = orders;
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
  int64_t step_id = 0;
  uint32_t order = 0;
  Rendezvous::ParsedKey parsed;
  Device* device = nullptr;
  absl::Status status = absl::InvalidArgumentError("grpc++: a malformed RecvTensor request");
  if (reader.Get(&step_id) && reader.Get(&order)) {
    status = Rendezvous::ParseKey({reader.rest().data(), reader.rest().size()}, &parsed);
  }
  if (status.ok()) status = FindSource(env_, parsed, &device);
  if (!status.ok()) {
    request.Fail(ToWire(status));
    return;
  }
  Counters().served_tensors.fetch_add(1, std::memory_order_relaxed);
  // What is made on an accelerator is copied to the host when it is asked for, not before.
  TensorCounters* const counters =
      TensorFigures::Get().Of(reader.rest(), TensorFigures::Direction::kOut);
  bool ordered = false;
  if (order != 0 && device->tensorflow_accelerator_device_info() == nullptr) {
    const auto added = orders_->Add(reader.rest(), order, request.pusher(), counters, step_id);
    // Who asked gives the request up when it comes, or loses it with the connection.
    if (added == StandingOrders::Added::kPushed) return;
    ordered = added == StandingOrders::Added::kYes;
  }
  const int64_t asked_us = wire::NowUs();
  env_->rendezvous_mgr->RecvLocalAsync(
      step_id, parsed,
      [env = env_, device, asked_us, ordered, counters, unanswered = Unanswered(request)](
          const absl::Status& status, const Rendezvous::Args& send_args,
          const Rendezvous::Args& /*recv_args*/, const Tensor& value, bool is_dead) {
        wire::Request request;
        if (!unanswered.Take(&request)) return;
        if (!status.ok()) {
          // What made the step fail here is reported by this task's own part of it.
          request.Fail(ToWire(tensorflow::StatusGroup::MakeDerived(status)));
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
          auto copy = std::make_shared<Tensor>(device->GetAllocator(attributes), value.dtype(),
                                               value.shape());
          auto source = std::make_shared<Tensor>(value);
          send_args.device_context->CopyDeviceTensorToCPU(
              source.get(), "RecvTensor", device, copy.get(),
              [request, copy, source, waited_us, counters](const absl::Status& copied) {
                if (copied.ok()) {
                  ReplyTensor(request, *copy, /*flags=*/0, waited_us, counters);
                } else {
                  request.Fail(ToWire(copied));
                }
              });
          return;
        }
        if (TravelsAsMemory(value)) {
          ReplyTensor(request, value, flags, waited_us, counters);
          return;
        }
        // Encoding takes time in proportion to the tensor; this may be a reactor.
        env->compute_pool->Schedule([request, value, flags, waited_us, counters] {
          ReplyTensor(request, value, flags, waited_us, counters);
        });
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
    orders_->Forget(connection_id);
    eager_->OnDisconnect(connection_id);
  }
  running_.CancelAll(connection_id);
}

}  // namespace tensorwire::plugin
