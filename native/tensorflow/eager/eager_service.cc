#include "eager/eager_service.h"

#include <algorithm>

#include "calls/proto_call.h"
#include "calls/status.h"
#include "metrics/counters.h"
#include "tensorflow/core/distributed_runtime/eager/eager_service_impl.h"
#include "tensorflow/core/distributed_runtime/rpc/eager/grpc_eager_service_impl.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/protobuf/eager_service.pb.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::eager::EagerServiceImpl;
using tensorflow::eager::GrpcEagerServiceImpl;

// A context lives in the EagerServiceImpl that created it. GrpcServer keeps its EagerServiceImpl in
// private members, two classes deep, and has no accessor for it. The arguments of an explicit
// instantiation are not subject to access checks ([temp.spec]), so they can name these members.
// Everything else here is type-checked as usual.
template <typename Member, typename Member::Type kPointer>
struct Reveal {
  friend typename Member::Type PointerTo(Member) { return kPointer; }
};
struct EagerServiceMember {
  using Type = tsl::AsyncServiceInterface* tensorflow::GrpcServer::*;
  friend Type PointerTo(EagerServiceMember);
};
template struct Reveal<EagerServiceMember, &tensorflow::GrpcServer::eager_service_>;
struct LocalImplMember {
  using Type = EagerServiceImpl GrpcEagerServiceImpl::*;
  friend Type PointerTo(LocalImplMember);
};
template struct Reveal<LocalImplMember, &GrpcEagerServiceImpl::local_impl_>;

wire::Status Malformed() {
  return ToWire(absl::InvalidArgumentError("grpc++: a malformed eager request"));
}

}  // namespace

struct EagerService::FunctionCall {
  tensorflow::CallOptions options;
  tensorflow::eager::RunComponentFunctionRequest request;
  tensorflow::eager::RunComponentFunctionResponse response;
};

struct EagerService::Stream {
  uint32_t attempt = 0;
  uint64_t next = 0;
  bool draining = false;
  absl::Status failed;
  std::map<uint64_t, wire::Request> waiting;  // by number
};

EagerServiceImpl* EagerServiceOf(const tensorflow::GrpcServer& server) {
  auto* const service =
      dynamic_cast<GrpcEagerServiceImpl*>(server.*PointerTo(EagerServiceMember()));
  return service == nullptr ? nullptr : &(service->*PointerTo(LocalImplMember()));
}

EagerService::EagerService(EagerServiceImpl* impl, const tensorflow::WorkerEnv& env,
                           RunningRequests* running)
    : impl_(impl), pool_(env.compute_pool), running_(running) {}

void EagerService::Enqueue(wire::Request request) {
  Counters().eager_calls.fetch_add(1, std::memory_order_relaxed);
  wire::MetadataReader reader(request.metadata);
  uint64_t sender = 0;
  uint32_t attempt = 0;
  uint64_t number = 0;
  uint64_t first_under_way = 0;
  if (!reader.Get(&sender)) return request.Fail(Malformed());
  if (sender == 0) {
    auto options = std::make_shared<tensorflow::CallOptions>();
    running_->Add(request, options);
    threads_.Schedule([this, options, request = std::move(request)] {
      RunEnqueue(request, options.get()).IgnoreError();
      running_->Remove(request);
    });
    return;
  }
  if (!reader.Get(&attempt) || !reader.Get(&number) || !reader.Get(&first_under_way)) {
    return request.Fail(Malformed());
  }
  std::shared_ptr<Stream> stream;
  {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Stream>& current = streams_[{request.connection_id(), sender}];
    if (current == nullptr || current->attempt < attempt) {
      current = std::make_shared<Stream>();
      current->attempt = attempt;
    }
    if (current->attempt > attempt) {
      return request.Fail(ToWire(absl::CancelledError("grpc++: this stream has ended")));
    }
    if (number < current->next || current->waiting.count(number) != 0) {
      return request.Fail(Malformed());  // it was received before
    }
    // All earlier requests have been answered, perhaps on a connection that is gone.
    current->next = std::max(current->next, first_under_way);
    current->waiting.emplace(number, std::move(request));
    if (current->draining || current->waiting.begin()->first != current->next) return;
    current->draining = true;
    stream = current;
  }
  threads_.Schedule([this, stream] { Drain(stream); });
}

void EagerService::Drain(const std::shared_ptr<Stream>& stream) {
  for (absl::Status status;;) {
    wire::Request request;
    {
      std::lock_guard lock(mutex_);
      if (stream->failed.ok()) stream->failed = status;
      status = stream->failed;
      const auto first = stream->waiting.begin();
      if (first == stream->waiting.end() || first->first != stream->next) {
        stream->draining = false;
        return;
      }
      request = std::move(first->second);
      stream->waiting.erase(first);
      ++stream->next;
    }
    if (status.ok()) {
      status = RunEnqueue(request, nullptr);
    } else {
      request.Fail(ToWire(status));
    }
  }
}

absl::Status EagerService::RunEnqueue(const wire::Request& request,
                                      tensorflow::CallOptions* options) {
  tensorflow::eager::EnqueueRequest enqueue;
  tensorflow::eager::EnqueueResponse response;
  absl::Status status = absl::InvalidArgumentError("grpc++: a malformed Enqueue request");
  if (enqueue.ParseFromString(request.payload)) {
    // TensorFlow is not told that there is a stream. Otherwise it would run each operation in a new
    // thread and make this thread wait for it.
    status = impl_->Enqueue(options, &enqueue, &response);
  }
  ReplyWith(request, status, response);
  return status;
}

void EagerService::RunFunction(wire::Request request) {
  Counters().eager_calls.fetch_add(1, std::memory_order_relaxed);
  auto call = std::make_shared<FunctionCall>();
  if (!call->request.ParseFromString(request.payload)) return request.Fail(Malformed());
  running_->Add(request, {call, &call->options});
  const std::string name =
      std::to_string(call->request.context_id()) + " " + call->request.operation().name();
  bool is_ready = false;
  {
    std::lock_guard lock(mutex_);
    is_ready = ready_functions_.count(name) != 0;
  }
  if (is_ready) {
    StartFunction(call, request);
    return;
  }
  // This thread may be a reactor, and a new function first has to be made ready to run. That never
  // blocks, so it runs in the pool; many functions may be new at once, and `threads_` would start a
  // thread for each.
  pool_->Schedule([this, call, request, name] {
    StartFunction(call, request);
    constexpr size_t kRemembered = 1u << 16;
    std::lock_guard lock(mutex_);
    if (ready_functions_.size() >= kRemembered) ready_functions_.clear();
    ready_functions_.insert(name);
  });
}

void EagerService::StartFunction(const std::shared_ptr<FunctionCall>& call,
                                 const wire::Request& request) {
  impl_->RunComponentFunction(&call->options, &call->request, &call->response,
                              [this, call, request](const absl::Status& status) {
                                running_->Remove(request);
                                ReplyWith(request, status, call->response);
                              });
}

void EagerService::CloseContext(wire::Request request) {
  wire::MetadataReader reader(request.metadata);
  uint64_t sender = 0;
  tensorflow::eager::CloseContextRequest close;
  if (!reader.Get(&sender) || !close.ParseFromString(request.payload)) {
    return request.Fail(Malformed());
  }
  {
    std::lock_guard lock(mutex_);
    streams_.erase({request.connection_id(), sender});
  }
  // CloseContext waits for operations that still run in the context.
  threads_.Schedule([this, close = std::move(close), request = std::move(request)] {
    tensorflow::eager::CloseContextResponse response;
    const absl::Status status = impl_->CloseContext(&close, &response);
    ReplyWith(request, status, response);
  });
}

void EagerService::OnDisconnect(uint64_t connection_id) {
  std::lock_guard lock(mutex_);
  const auto first = streams_.lower_bound({connection_id, 0});
  streams_.erase(first, streams_.lower_bound({connection_id + 1, 0}));
}

}  // namespace tensorwire::plugin
