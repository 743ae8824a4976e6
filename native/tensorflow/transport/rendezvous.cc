#include "transport/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "calls/methods.h"
#include "calls/status.h"
#include "metrics/counters.h"
#include "metrics/tensor_figures.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/session_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tensors/host_copy.h"
#include "tensors/pool_allocator.h"
#include "tensors/tensor_codec.h"
#include "tensorwire/wire/clock.h"
#include "transport/push_inbox.h"
#include "transport/push_steps.h"
#include "transport/remote_worker.h"
#include "transport/route.h"
#include "transport/standing_orders.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::BaseRecvTensorCall;
using tensorflow::BaseRemoteRendezvous;
using tensorflow::Device;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

constexpr uint64_t kSmallBytes = 16u << 10;

// Set while this thread cleans up a step. The step's rendezvous is aborted later, if it still lives
// then.
thread_local LateAborts* cleaning_up = nullptr;

class RemoteRendezvous : public BaseRemoteRendezvous {
 public:
  RemoteRendezvous(const tensorflow::WorkerEnv* env, int64_t step_id, DataPlane* plane)
      : BaseRemoteRendezvous(env, step_id), plane_(plane) {}

  absl::Status Send(const ParsedKey& parsed, const Rendezvous::Args& args, const Tensor& value,
                    bool is_dead) override {
    PushStep* const step =
        tensorflow::DeviceNameUtils::IsSameAddressSpace(parsed.src, parsed.dst) ? nullptr : Step();
    if (step != nullptr) {
      const auto key = parsed.FullKey();
      const ReservedPush reserved(step, {key.data(), key.size()});
      if (reserved && IsOnAccelerator(reserved.device(), args.alloc_attrs, value, is_dead)) {
        CopyAndPush(reserved, parsed, args, value);
        return absl::OkStatus();
      }
      if (reserved && reserved.Push(value, is_dead)) return absl::OkStatus();
    }
    return BaseRemoteRendezvous::Send(parsed, args, value, is_dead);
  }

  void StartAbort(const absl::Status& status) override {
    if (cleaning_up != nullptr) {
      cleaning_up->Add(this, status);
    } else {
      BaseRemoteRendezvous::StartAbort(status);
      // Afterwards, so that the requests that it causes meet the error. Also if nothing of the step
      // was sent or received here: consumers wait for pushes of it all the same.
      if (const uint64_t scope = scope_.load(std::memory_order_acquire); scope != 0) {
        plane_->steps()->Abort(step_id_, scope);
      }
    }
  }

  absl::Status Initialize(tensorflow::WorkerSession* session) override {
    const std::string& name = session->session_name();
    if (name != ContextSession(step_id_)) scope_.store(ScopeOf(name), std::memory_order_release);
    return BaseRemoteRendezvous::Initialize(session);
  }

 protected:
  void RecvFromRemoteAsync(const Rendezvous::ParsedKey& parsed, const Rendezvous::Args& args,
                           DoneCallback done) override;

 private:
  class RecvCall;
  using RoutePtr = std::shared_ptr<const Route>;

  // Pushes a tensor that is on an accelerator, or sends it if the copy to the host fails: a request
  // for it then brings the error to the consumer.
  void CopyAndPush(const ReservedPush& reserved, const ParsedKey& parsed,
                   const Rendezvous::Args& args, const Tensor& value);

  // The route of a tensor that another task makes.
  absl::Status FindRoute(const ParsedKey& parsed, const Rendezvous::Args& args, RoutePtr* out);
  absl::Status MakeRoute(const ParsedKey& parsed, Route* out);
  // True if the step's session has this worker cache.
  bool HasCache(const std::weak_ptr<tensorflow::WorkerCacheInterface>& cache) {
    Cache();
    return !cache_.owner_before(cache) && !cache.owner_before(cache_);
  }
  // Found once in a step: a session that is given another cache uses it from the next step on.
  const std::weak_ptr<tensorflow::WorkerCacheInterface>& Cache() {
    std::call_once(found_cache_, [this] { cache_ = session()->GetSharedWorkerCache(); });
    return cache_;
  }

  // What is known of the step here; null outside of steps, and until a part of the step runs here.
  PushStep* Step() {
    PushStep* const begun = begun_.load(std::memory_order_acquire);
    if (begun != nullptr || step_id_ == kNoStep || scope_.load(std::memory_order_acquire) == 0) {
      return begun;
    }
    return is_initialized() ? Begin() : nullptr;
  }
  // The session of the TF2 context that has this id. Its tensors outside of functions have the
  // context's id for a step, and each a key of its own, so nothing can be pushed. The id comes back
  // when the context removes this task and adds it again.
  static std::string ContextSession(int64_t step_id) {
    return "eager_" + std::to_string(static_cast<uint64_t>(step_id));
  }
  PushStep* Begin() {
    std::call_once(begin_, [this] {
      const std::string& name = session()->session_name();
      step_ = plane_->steps()->Begin(
          step_id_, scope_.load(),
          [this, &name] {
            std::shared_ptr<tensorflow::WorkerSession> found;
            env_->session_mgr->WorkerSessionForSession(name, &found).IgnoreError();
            return std::weak_ptr<const void>(found);
          },
          Cache());
      begun_.store(step_.get(), std::memory_order_release);
    });
    return step_.get();
  }

  DataPlane* const plane_;
  std::atomic<uint64_t> scope_{0};  // of the step's session; 0: not known yet, or of a context
  std::once_flag begin_;
  std::shared_ptr<PushStep> step_;
  std::atomic<PushStep*> begun_{nullptr};
  std::once_flag found_cache_;
  std::weak_ptr<tensorflow::WorkerCacheInterface> cache_;  // of the step's session
};

// Receives one tensor from another task. TensorFlow sees it as a BaseRecvTensorCall, through which
// it aborts the call. The tensor arrives as the reply to a request or, if there is a standing
// order, as a push; the first to arrive ends the call. Reply and PushInbox keep the call alive,
// because either may end it.
//
//   kWaiting --- reply, push, error, loss or abort ---> kEnding --- decoded, or copied to its
//                                                                   device ---> gone
//
// A kWaiting call is registered with its rendezvous, where an abort finds it, and, if the tensor
// may be pushed, with the inbox. End removes it from both; everything that arrives later is
// dropped. An abort may end the call before Run has registered it with the inbox, so Run checks
// again afterwards. The call holds a reference to its rendezvous until the executor has been told
// of the end. If something other than the reply ends the call, the ending thread cancels the
// request, or Ask does if the request was not sent yet.
class RemoteRendezvous::RecvCall : public BaseRecvTensorCall,
                                   public PushInbox::Waiter,
                                   public std::enable_shared_from_this<RecvCall> {
 public:
  RecvCall(RemoteRendezvous* rendezvous, RoutePtr route, const Rendezvous::Args& args,
           DoneCallback done)
      : rendezvous_(rendezvous),
        step_id_(rendezvous->step_id_),
        route_(std::move(route)),
        scope_(rendezvous->step_ != nullptr ? rendezvous->step_->session->scope : 0),
        is_again_(rendezvous->step_ != nullptr && rendezvous->step_->is_again),
        on_accelerator_(IsAcceleratorMemory(route_->device, args.alloc_attrs)),
        args_(args),
        done_(std::move(done)) {}

  // Waits for a push or sends a request. Ends the call if the step has been aborted already.
  void Run() {
    RecvClock().Begin(began_us_);
    route_->counters->waiting.fetch_add(1, std::memory_order_relaxed);
    rendezvous_->Ref();
    rendezvous_->RegisterCall(this, args_);
    if (absl::Status s = status(); !s.ok()) return End(s, IncomingTensor());
    Counters().recv_tensors.fetch_add(1, std::memory_order_relaxed);
    if (!route_->order) return Ask();
    Pushed here;
    switch (inbox().Expect(step_id_, route_->order, shared_from_this(), &here)) {
      case PushInbox::Expected::kHere:
        return End(FromSource(here.status), std::move(here.tensor), here.way_us);
      case PushInbox::Expected::kAsk:
        Ask();
        break;
      case PushInbox::Expected::kWait:
        break;
    }
    // If an abort has ended the call meanwhile, the call must not stay in the inbox.
    if (!waits()) inbox().Forget(step_id_, route_->order);
  }

  // --- BaseRecvTensorCall ---
  void Start(std::function<void()> /*done*/) override {}  // Run starts the call
  void StartAbort(const absl::Status& status) override {
    uint64_t id = 0;
    {
      std::lock_guard lock(mutex_);
      if (status_.ok()) status_ = status;
      id = request_id_;
    }
    if (id != 0) channel().Cancel(id);
    // The call may wait for a push as well. It is ended in another thread, because the aborting
    // thread holds locks that End takes.
    channel().RunAfter(0, [weak = weak_from_this(), status] {
      if (const auto self = weak.lock()) self->End(status, IncomingTensor());
    });
  }
  absl::Status status() const override {
    std::lock_guard lock(mutex_);
    return status_;
  }

  // --- PushInbox::Waiter ---
  void OnPush(Pushed pushed) override {
    uint64_t id = 0;
    {
      std::lock_guard lock(mutex_);
      id = request_id_;
    }
    const auto channel = route_->link.channel;
    End(FromSource(pushed.status), std::move(pushed.tensor), pushed.way_us);
    if (id != 0) channel->Cancel(id);
  }
  void OnLost(const absl::Status& why) override { End(FromSource(why), IncomingTensor()); }
  void Ask() override {
    if (!waits()) return;
    wire::Message request(kRecvTensor);
    request.Put<int64_t>(step_id_);
    request.Put<uint64_t>(route_->order.number);
    if (route_->order) {
      request.Put<uint64_t>(scope_);
      request.Put<uint8_t>(is_again_ ? 1 : 0);
    }
    request.AppendMetadata(key());
    // The executor itself puts the nodes after a Recv into TensorFlow's pool.
    wire::CallOptions options;
    options.done_on = wire::RunOn::kReactorWhenAlone;
    asked_us_ = wire::NowUs();
    const uint64_t id =
        channel().Start(std::move(request), std::make_unique<Reply>(shared_from_this()), options);
    bool unwanted = false;
    {
      std::lock_guard lock(mutex_);
      request_id_ = id;
      unwanted = !status_.ok();
    }
    if (unwanted || !waits()) channel().Cancel(id);
  }

 private:
  // The head of the reply has arrived. The inbox must learn what it says before it learns that the
  // connection is lost; otherwise nothing would end this call after the loss.
  absl::Status OnHeadFromReactor(const IncomingTensor& tensor) {
    if (route_->order && tensor.order_accepted()) {
      inbox().AcceptFromReactor(route_->order, tensor.numbers(), WayOf(tensor));
    }
    if (!tensor.was_pushed() ||
        (route_->order && inbox().PromiseFromReactor(step_id_, route_->order))) {
      return absl::OkStatus();
    }
    return absl::InternalError("grpc++: a push was announced that nobody has ordered");
  }

  void OnReply(const absl::Status& status, IncomingTensor tensor) {
    if (status.ok() && tensor.was_pushed()) return;
    const int64_t way_us = WayOf(tensor);
    End(FromSource(status), std::move(tensor), way_us);
  }

  // How long request and reply were on the wire, without the request's wait at the producer.
  int64_t WayOf(const IncomingTensor& tensor) const {
    return tensor.head_us() - asked_us_ - tensor.made_us();
  }

  // `status` as an error of the producer's task, which the key names.
  absl::Status FromSource(const absl::Status& status) const {
    if (status.ok()) return status;
    Rendezvous::ParsedKey parsed;
    Rendezvous::ParseKey(key(), &parsed).IgnoreError();
    std::string task;
    std::string device_on_task;
    tensorflow::DeviceNameUtils::SplitDeviceName(parsed.src_device, &task, &device_on_task);
    if (!absl::IsDataLoss(status)) return FromTask(status, task);
    return FromTask(absl::DataLossError(std::string(status.message()) + "; it was to be " +
                                        std::string(parsed.edge_name)),
                    task);
  }

  bool waits() const { return state_.load() == State::kWaiting; }
  // The allocator of the host memory that the tensor is received into.
  tensorflow::Allocator* HostAllocator(uint64_t bytes) const {
    return on_accelerator_ ? PinnedMemory(route_->device) : HostMemoryFor(bytes);
  }

  class Reply : public wire::Call {
   public:
    explicit Reply(std::shared_ptr<RecvCall> call) : call_(std::move(call)) {}
    wire::Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                                    std::vector<wire::MutableBuffer>* into) override {
      if (!call_->waits()) return wire::Status(wire::Code::kCancelled, "it has come already");
      absl::Status status =
          tensor_.Prepare(metadata, payload_bytes, call_->HostAllocator(payload_bytes), into);
      if (status.ok()) status = call_->OnHeadFromReactor(tensor_);
      return ToWire(status);
    }
    void Done(const wire::Status& status) override {
      call_->OnReply(FromWire(status), std::move(tensor_));
    }

   private:
    const std::shared_ptr<RecvCall> call_;
    IncomingTensor tensor_;
  };

  // Ends the call, unless it has ended already. `way_us`: time on the wire until the head arrived.
  void End(absl::Status status, IncomingTensor incoming, int64_t way_us = 0) {
    const auto self = shared_from_this();  // the caller may hold the last reference
    if (state_.exchange(State::kEnding) != State::kWaiting) return;
    // A small payload arrives with its head, when the clock was read already.
    const bool came_at_once = status.ok() && incoming.payload_bytes() <= kSmallBytes;
    const int64_t here_us = std::max(began_us_, came_at_once ? incoming.head_us() : wire::NowUs());
    RecvClock().End(here_us);
    route_->counters->waiting.fetch_sub(1, std::memory_order_relaxed);
    if (status.ok()) {
      const int64_t waited_us = here_us - began_us_;
      // If the tensor was made before the call began, the call waited only for the rest of the way.
      const int64_t wire_us =
          std::clamp<int64_t>(way_us + here_us - incoming.head_us(), 0, waited_us);
      route_->counters->Count(incoming.payload_bytes());
      route_->counters->CountWait(waited_us - wire_us, wire_us);
      if (route_->log->is_on()) {
        route_->log->Record(step_id_, key(), static_cast<int64_t>(incoming.payload_bytes()),
                            incoming.head_us() - std::max<int64_t>(0, way_us),
                            came_at_once ? incoming.head_us() : here_us, waited_us);
      }
    }
    if (route_->order) inbox().Forget(step_id_, route_->order);
    // From here on, no abort reaches the call.
    rendezvous_->DeregisterCall(this, args_);
    if (absl::Status aborted = this->status(); !aborted.ok()) status = std::move(aborted);
    if (!status.ok()) {
      Finish(status, Tensor(), incoming.is_dead());
    } else if (incoming.is_encoded() && incoming.tensor().TotalBytes() > kSmallBytes) {
      // This thread may be a reactor, and the time for decoding grows with the tensor's size.
      auto encoded = std::make_shared<IncomingTensor>(std::move(incoming));
      rendezvous_->env_->compute_pool->Schedule([self, encoded] { self->Decode(*encoded); });
    } else if (incoming.is_encoded()) {
      Decode(incoming);
    } else if (on_accelerator_ && !incoming.is_dead() && incoming.tensor().NumElements() > 0) {
      CopyToDevice(incoming.tensor());
    } else {
      Finish(status, incoming.tensor(), incoming.is_dead());
    }
  }

  const std::string& key() const { return route_->key; }
  wire::Channel& channel() const { return *route_->link.channel; }
  PushInbox& inbox() const { return *route_->link.inbox; }

  void Decode(const IncomingTensor& incoming) {
    Tensor tensor;
    const absl::Status status = incoming.Decode(route_->device, args_.alloc_attrs, &tensor);
    Finish(status, tensor, incoming.is_dead());
  }

  void CopyToDevice(const Tensor& host) {
    if (args_.device_context == nullptr) {
      return Finish(absl::InternalError("grpc++: no device context for a tensor that goes to " +
                                        route_->device->name()),
                    Tensor(), /*is_dead=*/false);
    }
    auto copy = std::make_shared<Tensor>(route_->device->GetAllocator(args_.alloc_attrs),
                                         host.dtype(), host.shape());
    if (!copy->IsInitialized()) {
      return Finish(absl::ResourceExhaustedError("grpc++: no memory on " + route_->device->name() +
                                                 " for an arriving tensor of shape " +
                                                 host.shape().DebugString()),
                    Tensor(), /*is_dead=*/false);
    }
    auto source = std::make_shared<Tensor>(host);  // stays until it has been copied
    args_.device_context->CopyCPUTensorToDevice(
        source.get(), route_->device, copy.get(),
        [self = shared_from_this(), source, copy](const absl::Status& status) {
          self->Finish(status, *copy, /*is_dead=*/false);
        });
  }

  void Finish(const absl::Status& status, const Tensor& tensor, bool is_dead) {
    RemoteRendezvous* const rendezvous = rendezvous_;
    done_(status, Rendezvous::Args(), args_, tensor, is_dead);
    rendezvous->Unref();
  }

  // Valid until the call has ended: when a late reply arrives, the step and its session may be
  // gone.
  RemoteRendezvous* const rendezvous_;
  const int64_t step_id_;
  const RoutePtr route_;  // its device is valid as long as rendezvous_
  const uint64_t scope_;  // of the session
  const bool is_again_;   // see PushStep
  const bool on_accelerator_;
  const Rendezvous::Args args_;
  const DoneCallback done_;
  const int64_t began_us_ = wire::NowUs();
  int64_t asked_us_ = 0;
  enum class State : uint8_t { kWaiting, kEnding };
  std::atomic<State> state_{State::kWaiting};

  mutable std::mutex mutex_;
  absl::Status status_;      // why the step was aborted; takes precedence over the wire's error
  uint64_t request_id_ = 0;  // 0: none has been sent
};

void RemoteRendezvous::CopyAndPush(const ReservedPush& reserved, const ParsedKey& parsed,
                                   const Rendezvous::Args& args, const Tensor& value) {
  Ref();
  CopyToHost(reserved.device(), args.device_context, parsed.FullKey(), value,
             [this, reserved, parsed, args, value](const absl::Status& status, const Tensor& copy) {
               const tsl::core::RefCountPtr<RemoteRendezvous> self(this);
               if (status.ok() && reserved.Push(copy, /*is_dead=*/false)) return;
               if (!status.ok()) reserved.Release();
               // Fails if the step has been aborted; then nobody waits for the tensor.
               BaseRemoteRendezvous::Send(parsed, args, value, /*is_dead=*/false).IgnoreError();
             });
}

void RemoteRendezvous::RecvFromRemoteAsync(const Rendezvous::ParsedKey& parsed,
                                           const Rendezvous::Args& args, DoneCallback done) {
  RoutePtr route;
  if (absl::Status s = FindRoute(parsed, args, &route); !s.ok()) {
    return done(s, Rendezvous::Args(), args, Tensor(), false);
  }
  std::make_shared<RecvCall>(this, std::move(route), args, std::move(done))->Run();
}

absl::Status RemoteRendezvous::FindRoute(const ParsedKey& parsed, const Rendezvous::Args& args,
                                         RoutePtr* out) {
  const auto full_key = parsed.FullKey();
  const std::string_view key(full_key.data(), full_key.size());
  PushStep* const step = Step();
  if (step != nullptr) {
    *out = step->session->routes.Find(key);
    if (*out != nullptr && HasCache((*out)->cache)) return absl::OkStatus();
  }
  auto route = std::make_shared<Route>();
  route->key = key;
  TF_RETURN_IF_ERROR(MakeRoute(parsed, route.get()));
  *out = route;
  if (step == nullptr) return absl::OkStatus();  // nothing is pushed outside of steps
  step->session->routes.Update(key, [&](const RoutePtr& had) -> RoutePtr {
    if (had == nullptr && !plane_->steps()->CountRoute()) return nullptr;
    // A key keeps its order as long as it can: steps that have begun wait for its pushes.
    const bool same = had != nullptr && had->link.inbox == route->link.inbox;
    tensorflow::Allocator* const pinned = IsAcceleratorMemory(route->device, args.alloc_attrs)
                                              ? PinnedMemory(route->device)
                                              : nullptr;
    route->order = same ? had->order : route->link.inbox->NewOrder(step->session, pinned);
    return route;
  });
  return absl::OkStatus();
}

absl::Status RemoteRendezvous::MakeRoute(const ParsedKey& parsed, Route* out) {
  std::string task;
  std::string device_on_task;
  if (!tensorflow::DeviceNameUtils::SplitDeviceName(parsed.src_device, &task, &device_on_task)) {
    return absl::InternalError(std::string(parsed.src_device) +
                               " is not the name of a device on another task");
  }
  tensorflow::WorkerSession* const session = this->session();
  const auto cache = session->GetSharedWorkerCache();
  tensorflow::WorkerInterface* const worker = cache->GetOrCreateWorker(task);
  auto* const remote = dynamic_cast<RemoteWorker*>(worker);
  if (remote == nullptr) {
    if (worker != nullptr) cache->ReleaseWorker(task, worker);
    return absl::InternalError("No worker known as " + task);
  }
  out->cache = cache;
  out->link = remote->link();
  out->log = remote->log();
  cache->ReleaseWorker(task, worker);
  TF_RETURN_IF_ERROR(session->device_mgr()->LookupDevice(parsed.dst_device, &out->device));
  out->counters = TensorFigures::Get().Of(out->key, TensorFigures::Direction::kIn);
  return absl::OkStatus();
}

}  // namespace

void RendezvousMgr::Cleanup(int64_t step_id) {
  // First, so that no inbox keeps a push for this step that arrives from now on.
  plane_->steps()->EndStep(step_id);
  cleaning_up = late_aborts_.get();
  BaseRendezvousMgr::Cleanup(step_id);
  cleaning_up = nullptr;
}

tsl::core::RefCountPtr<BaseRemoteRendezvous> RendezvousMgr::Create(
    int64_t step_id, const tensorflow::WorkerEnv* env) {
  return tsl::core::RefCountPtr<BaseRemoteRendezvous>(new RemoteRendezvous(env, step_id, plane_));
}

}  // namespace tensorwire::plugin
