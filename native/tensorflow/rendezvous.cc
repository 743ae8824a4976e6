#include "rendezvous.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "counters.h"
#include "methods.h"
#include "pool_allocator.h"
#include "remote_worker.h"
#include "status.h"
#include "tensor_codec.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::BaseRecvTensorCall;
using tensorflow::BaseRemoteRendezvous;
using tensorflow::Device;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

class RemoteRendezvous : public BaseRemoteRendezvous {
 public:
  RemoteRendezvous(const tensorflow::WorkerEnv* env, int64_t step_id)
      : BaseRemoteRendezvous(env, step_id) {}

 protected:
  void RecvFromRemoteAsync(const Rendezvous::ParsedKey& parsed, const Rendezvous::Args& args,
                           DoneCallback done) override;

 private:
  class RecvCall;
  class Reply;
};

// A tensor on its way from another task. TensorFlow sees it as a BaseRecvTensorCall, by which a
// step is aborted; the engine sees its Reply. Lives until `done` has been called.
class RemoteRendezvous::RecvCall : public BaseRecvTensorCall {
 public:
  RecvCall(RemoteRendezvous* rendezvous, std::shared_ptr<wire::Channel> channel, Device* device,
           const Rendezvous::Args& args, DoneCallback done)
      : rendezvous_(rendezvous),
        channel_(std::move(channel)),
        device_(device),
        args_(args),
        done_(std::move(done)) {}

  // Sends the request, unless the step has been aborted already.
  static void Run(const std::shared_ptr<RecvCall>& call, wire::Message request);

  void Start(std::function<void()> /*done*/) override {}  // Run is what starts it
  void StartAbort(const absl::Status& status) override;
  absl::Status status() const override {
    tensorflow::mutex_lock lock(mutex_);
    return status_;
  }

  // Of a tensor that arrives: where it is to be in host memory first.
  tensorflow::Allocator* HostAllocator(uint64_t bytes) const;
  IncomingTensor incoming;

  // The wire has done its part.
  void Arrived(absl::Status status);

 private:
  bool OnAccelerator() const {
    return device_->tensorflow_accelerator_device_info() != nullptr &&
           !args_.alloc_attrs.on_host();
  }
  absl::Status DecodeProto(Tensor* out);
  void CopyToDevice(const Tensor& host);
  void Finish(const absl::Status& status, const Tensor& tensor);

  RemoteRendezvous* const rendezvous_;
  const std::shared_ptr<wire::Channel> channel_;
  Device* const device_;
  const Rendezvous::Args args_;
  const DoneCallback done_;
  std::shared_ptr<RecvCall> self_;  // from Run to Finish

  mutable tensorflow::mutex mutex_;
  absl::Status status_;  // why the step was aborted
  uint64_t call_id_ = 0;
};

class RemoteRendezvous::Reply : public wire::Call {
 public:
  explicit Reply(std::shared_ptr<RecvCall> call) : call_(std::move(call)) {}
  wire::Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                                  std::vector<wire::MutableBuffer>* into) override {
    return ToWire(
        call_->incoming.Prepare(metadata, payload_bytes, call_->HostAllocator(payload_bytes), into));
  }
  void Done(const wire::Status& status) override { call_->Arrived(FromWire(status)); }

 private:
  const std::shared_ptr<RecvCall> call_;
};

void RemoteRendezvous::RecvFromRemoteAsync(const Rendezvous::ParsedKey& parsed,
                                           const Rendezvous::Args& args, DoneCallback done) {
  auto fail = [&](const absl::Status& status) {
    done(status, Rendezvous::Args(), args, Tensor(), false);
  };
  std::string task;
  std::string device_on_task;
  if (!tensorflow::DeviceNameUtils::SplitDeviceName(parsed.src_device, &task, &device_on_task)) {
    return fail(absl::InternalError(std::string(parsed.src_device) +
                                    " is not the name of a device on another task"));
  }
  tensorflow::WorkerSession* const session = this->session();
  const auto cache = session->GetSharedWorkerCache();
  tensorflow::WorkerInterface* const worker = cache->GetOrCreateWorker(task);
  auto* const remote = dynamic_cast<RemoteWorker*>(worker);
  if (remote == nullptr) {
    if (worker != nullptr) cache->ReleaseWorker(task, worker);
    return fail(absl::InternalError("No worker known as " + task));
  }
  const std::shared_ptr<wire::Channel> channel = remote->channel();
  cache->ReleaseWorker(task, worker);

  Device* device = nullptr;
  if (absl::Status s = session->device_mgr()->LookupDevice(parsed.dst_device, &device); !s.ok()) {
    return fail(s);
  }
  wire::Message request(kRecvTensor);
  request.Put<int64_t>(step_id_);
  const auto key = parsed.FullKey();
  request.AppendMetadata({key.data(), key.size()});
  RecvCall::Run(std::make_shared<RecvCall>(this, channel, device, args, std::move(done)),
                std::move(request));
}

void RemoteRendezvous::RecvCall::Run(const std::shared_ptr<RecvCall>& call,
                                     wire::Message request) {
  call->rendezvous_->Ref();
  call->self_ = call;
  call->rendezvous_->RegisterCall(call.get(), call->args_);
  if (absl::Status s = call->status(); !s.ok()) {
    call->Arrived(s);
    return;
  }
  Counters().recv_tensors.fetch_add(1, std::memory_order_relaxed);
  // What comes after a Recv is put into TensorFlow's pool by the executor itself.
  wire::CallOptions options;
  options.done_on = wire::RunOn::kReactorWhenAlone;
  const uint64_t id =
      call->channel_->Start(std::move(request), std::make_unique<Reply>(call), options);
  bool aborted = false;
  {
    tensorflow::mutex_lock lock(call->mutex_);
    call->call_id_ = id;
    aborted = !call->status_.ok();
  }
  if (aborted) call->channel_->Cancel(id);
}

void RemoteRendezvous::RecvCall::StartAbort(const absl::Status& status) {
  uint64_t id = 0;
  {
    tensorflow::mutex_lock lock(mutex_);
    if (status_.ok()) status_ = status;
    id = call_id_;
  }
  if (id != 0) channel_->Cancel(id);
}

tensorflow::Allocator* RemoteRendezvous::RecvCall::HostAllocator(uint64_t bytes) const {
  tensorflow::AllocatorAttributes attributes = args_.alloc_attrs;
  if (OnAccelerator()) {
    attributes.set_on_host(true);
    attributes.set_gpu_compatible(true);
  } else if (bytes >= PoolAllocator::kMinBytes && PoolAllocator::Get() != nullptr) {
    return PoolAllocator::Get();
  }
  return device_->GetAllocator(attributes);
}

absl::Status RemoteRendezvous::RecvCall::DecodeProto(Tensor* out) {
  tensorflow::TensorProto proto;
  if (!proto.ParseFromString(incoming.proto_bytes())) {
    return absl::InternalError("grpc++: a TensorProto that cannot be parsed arrived");
  }
  return device_->MakeTensorFromProto(proto, args_.alloc_attrs, out);
}

void RemoteRendezvous::RecvCall::Arrived(absl::Status status) {
  // Nobody aborts it from here on; why it was aborted, if it was, comes before what the wire says.
  rendezvous_->DeregisterCall(this, args_);
  if (absl::Status aborted = this->status(); !aborted.ok()) status = aborted;
  Tensor tensor;
  if (status.ok()) {
    if (incoming.as_proto()) {
      status = DecodeProto(&tensor);
    } else if (OnAccelerator() && !incoming.is_dead() && incoming.tensor().NumElements() > 0) {
      CopyToDevice(incoming.tensor());
      return;
    } else {
      tensor = incoming.tensor();
    }
  }
  Finish(status, tensor);
}

void RemoteRendezvous::RecvCall::CopyToDevice(const Tensor& host) {
  if (args_.device_context == nullptr) {
    Finish(absl::InternalError("grpc++: no device context for a tensor that goes to " +
                               device_->name()),
           Tensor());
    return;
  }
  auto copy = std::make_shared<Tensor>(device_->GetAllocator(args_.alloc_attrs), host.dtype(),
                                       host.shape());
  args_.device_context->CopyCPUTensorToDevice(
      &host, device_, copy.get(),
      [this, copy](const absl::Status& status) { Finish(status, *copy); });
}

void RemoteRendezvous::RecvCall::Finish(const absl::Status& status, const Tensor& tensor) {
  const auto self = std::move(self_);
  RemoteRendezvous* const rendezvous = rendezvous_;
  done_(status, Rendezvous::Args(), args_, tensor, incoming.is_dead());
  rendezvous->Unref();
}

}  // namespace

tsl::core::RefCountPtr<BaseRemoteRendezvous> RendezvousMgr::Create(
    int64_t step_id, const tensorflow::WorkerEnv* env) {
  return tsl::core::RefCountPtr<BaseRemoteRendezvous>(new RemoteRendezvous(env, step_id));
}

}  // namespace tensorwire::plugin
