#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "counters.h"
#include "fuse_pass.h"
#include "fused_tensor.h"
#include "tensor_figures.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/rendezvous.h"

// The kernels at the two ends of a fused tensor.

namespace tensorwire::plugin {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

// What the nodes at both ends of a group share.
class Group {
 public:
  explicit Group(OpKernelConstruction* ctx) {
    int64_t incarnation = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("send_device", &send_device_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("recv_device", &recv_device_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("send_device_incarnation", &incarnation));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("tensor_name", &tensor_name_));
    incarnation_ = static_cast<uint64_t>(incarnation);
    OP_REQUIRES_OK(ctx, MakeKey("", &key_));
  }

  const Rendezvous::ParsedKey& key() const { return key_; }
  absl::Status ApartKey(size_t part, Rendezvous::ParsedKey* key) const {
    return MakeKey("_" + std::to_string(part), key);
  }

 private:
  absl::Status MakeKey(const std::string& end, Rendezvous::ParsedKey* key) const {
    return Rendezvous::ParseKey(
        Rendezvous::CreateKey(send_device_, incarnation_, recv_device_, tensor_name_ + end,
                              tensorflow::FrameAndIter(0, 0)),
        key);
  }

  std::string send_device_;
  std::string recv_device_;
  std::string tensor_name_;
  uint64_t incarnation_ = 0;
  Rendezvous::ParsedKey key_;
};

absl::Status Send(OpKernelContext* ctx, const Rendezvous::ParsedKey& key, const Tensor& tensor) {
  Rendezvous::Args args;
  args.device_context = ctx->op_device_context();
  args.alloc_attrs = ctx->input_alloc_attr(0);
  return ctx->rendezvous()->Send(key, args, tensor, /*is_dead=*/false);
}

// Sends all its inputs as one fused tensor, except those that travel on their own (kApart).
class FuseSendOp : public tensorflow::OpKernel {
 public:
  explicit FuseSendOp(OpKernelConstruction* ctx) : OpKernel(ctx), group_(ctx) {
    const auto key = group_.key().FullKey();
    for (int i = 0; i < num_inputs(); ++i) {
      // A NodeDef's input is "node:output".
      const std::string& input = requested_input(i);
      counters_.push_back(
          TensorFigures::Get().OfPart({key.data(), key.size()}, input.substr(0, input.find(':'))));
    }
  }

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* ctx) override {
    std::vector<FusedPart> parts(counters_.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      const Tensor& tensor = ctx->input(static_cast<int>(i));
      parts[i] = {WayOf(tensor), tensor};
      counters_[i]->Count(tensor.TotalBytes());
      if (parts[i].way != FusedPart::Way::kApart) continue;
      Rendezvous::ParsedKey key;
      OP_REQUIRES_OK(ctx, group_.ApartKey(i, &key));
      OP_REQUIRES_OK(ctx, Send(ctx, key, tensor));
    }
    Tensor fused;
    OP_REQUIRES_OK(ctx, Fuse(parts, &fused));
    Counters().fused_messages.fetch_add(1, std::memory_order_relaxed);
    Counters().fused_tensors.fetch_add(parts.size(), std::memory_order_relaxed);
    OP_REQUIRES_OK(ctx, Send(ctx, group_.key(), fused));
  }

 private:
  const Group group_;
  std::vector<TensorCounters*> counters_;
};

// Receives a fused tensor, and those of its parts that travel on their own. Lives until it has
// called `done`.
class Arrival : public std::enable_shared_from_this<Arrival> {
 public:
  using Done = tensorflow::AsyncOpKernel::DoneCallback;

  Arrival(OpKernelContext* ctx, const Group* group, Done done)
      : ctx_(ctx), group_(group), done_(std::move(done)) {}

  void Begin() {
    Receive(group_->key(),
            [self = shared_from_this()](const absl::Status& status, const Tensor& fused) {
              if (!status.ok()) return self->End(status);
              // This thread may be a reactor.
              if (self->ctx_->runner() != nullptr && IsLongToSplit(fused)) {
                (*self->ctx_->runner())([self, fused] { self->SplitAll(fused); });
              } else {
                self->SplitAll(fused);
              }
            });
  }

 private:
  template <typename Received>
  void Receive(const Rendezvous::ParsedKey& key, Received received) {
    Rendezvous::Args args;
    args.device_context = ctx_->op_device_context();
    args.alloc_attrs = ctx_->output_alloc_attr(0);
    args.cancellation_manager = ctx_->cancellation_manager();
    ctx_->rendezvous()->RecvAsync(
        key, args,
        [received = std::move(received)](const absl::Status& status, const Rendezvous::Args&,
                                         const Rendezvous::Args&, const Tensor& tensor,
                                         bool /*is_dead*/) { received(status, tensor); });
  }

  void SplitAll(const Tensor& fused) {
    const auto count = static_cast<size_t>(ctx_->num_outputs());
    if (absl::Status s = Split(fused, count, ctx_->device(), &parts_); !s.ok()) return End(s);
    // The kApart parts were sent before the fused tensor, so it is safe to wait for them here.
    for (size_t i = 0; i < parts_.size(); ++i) {
      FusedPart& part = parts_[i];
      if (part.way != FusedPart::Way::kApart) continue;
      awaited_.fetch_add(1);
      Rendezvous::ParsedKey key;
      if (absl::Status s = group_->ApartKey(i, &key); !s.ok()) {
        OnPart(s);
        continue;
      }
      Receive(key,
              [self = shared_from_this(), &part](const absl::Status& status, const Tensor& tensor) {
                part.tensor = tensor;
                self->OnPart(status);
              });
    }
    OnPart(absl::OkStatus());
  }

  void OnPart(const absl::Status& status) {
    if (!status.ok()) {
      std::lock_guard lock(mutex_);
      if (status_.ok()) status_ = status;
    }
    if (awaited_.fetch_sub(1) != 1) return;
    for (int i = 0; i < ctx_->num_outputs() && status_.ok(); ++i) {
      Tensor& tensor = parts_[static_cast<size_t>(i)].tensor;
      if (tensor.dtype() == ctx_->expected_output_dtype(i)) {
        ctx_->set_output(i, std::move(tensor));
      } else {
        status_ = absl::InternalError("tensor_fuse: a tensor of another type arrived");
      }
    }
    End(status_);
  }

  void End(const absl::Status& status) {
    OP_REQUIRES_OK_ASYNC(ctx_, status, done_);
    done_();
  }

  OpKernelContext* const ctx_;
  const Group* const group_;  // owned by the kernel, which outlives the call
  const Done done_;
  std::vector<FusedPart> parts_;
  std::atomic<int> awaited_{1};
  std::mutex mutex_;
  absl::Status status_;  // the first that is not OK; under mutex_ until all parts are here
};

// Receives all its outputs as one fused tensor.
class FuseReceiveOp : public tensorflow::AsyncOpKernel {
 public:
  explicit FuseReceiveOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx), group_(ctx) {}

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    std::make_shared<Arrival>(ctx, &group_, std::move(done))->Begin();
  }

 private:
  const Group group_;
};

// Stateful: two nodes with equal attributes must not be merged. Communication: for any other
// operation, the executor turns an UnavailableError into an InternalError.
REGISTER_OP(kFuseSendOp)
    .Input("tensors: types")
    .Attr("types: list(type)")
    .Attr("tensor_name: string")
    .Attr("send_device: string")
    .Attr("send_device_incarnation: int")
    .Attr("recv_device: string")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);
REGISTER_OP(kFuseReceiveOp)
    .Output("tensors: types")
    .Attr("types: list(type)")
    .Attr("tensor_name: string")
    .Attr("send_device: string")
    .Attr("send_device_incarnation: int")
    .Attr("recv_device: string")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_KERNEL_BUILDER(Name(kFuseSendOp).Device(tensorflow::DEVICE_CPU), FuseSendOp);
REGISTER_KERNEL_BUILDER(Name(kFuseReceiveOp).Device(tensorflow::DEVICE_CPU), FuseReceiveOp);

}  // namespace
}  // namespace tensorwire::plugin
