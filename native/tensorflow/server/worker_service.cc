#include "server/worker_service.h"

#include <memory>
#include <string>

#include "calls/methods.h"
#include "calls/proto_call.h"
#include "calls/status.h"
#include "metrics/counters.h"
#include "tensorflow/core/distributed_runtime/message_wrappers.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "transport/tensor_request.h"

namespace tensorwire::plugin {
namespace {

constexpr size_t kLargeFeedBytes = 16u << 10;

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
      // Looking up a tensor takes one or two microseconds, and cleaning up a step little more. If
      // the tensor is not made yet, the thread that makes it answers.
      return wire::RunOn::kReactor;
    case kRunGraph:
    case kEagerRunFunction:
      // Starting a graph takes tens of microseconds; its kernels run in TensorFlow's pool. Decoding
      // fed tensors can take longer.
      return request.payload.size() < kLargeFeedBytes ? wire::RunOn::kReactorWhenAlone
                                                      : wire::RunOn::kExecutor;
    case kEagerEnqueue:
      return wire::RunOn::kReactor;  // only puts the request into its stream
    default:
      return wire::RunOn::kExecutor;
  }
}

void WorkerService::Handle(wire::Request request) {
  if (!ready_.load(std::memory_order_acquire)) {
    return request.Fail(ToWire(absl::UnavailableError("grpc++: this task is still starting")));
  }
  switch (request.method) {
    case kRecvTensor:
      return ServeTensorRequest(env_, plane_, std::move(request));
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

void WorkerService::RunGraph(wire::Request request) {
  Counters().run_graphs.fetch_add(1, std::memory_order_relaxed);
  auto state = std::make_shared<RunGraphState>();
  if (!state->request.ParseFromString(request.payload)) {
    return request.Fail(ToWire(absl::InvalidArgumentError("grpc++: a malformed RunGraph request")));
  }
  state->request.set_request_id(kNoRequestId);
  running_.Add(request, {state, &state->options});
  worker_->RunGraphAsync(&state->options, &state->wrapped_request, &state->wrapped_response,
                         [this, state, request](const absl::Status& status) {
                           running_.Remove(request);
                           ReplyWith(request, status, state->response);
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
}

void WorkerService::OnDisconnect(uint64_t connection_id) {
  if (ready_.load(std::memory_order_acquire)) {
    plane_->steps()->Forget(connection_id);
    eager_->OnDisconnect(connection_id);
  }
  running_.CancelAll(connection_id);
}

}  // namespace tensorwire::plugin
