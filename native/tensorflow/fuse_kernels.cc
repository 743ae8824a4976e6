#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "counters.h"
#include "fuse_boxes.h"
#include "fuse_pass.h"
#include "fused_tensor.h"
#include "tensor_figures.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/rendezvous.h"

// The kernels at the two ends of a fused tensor. The sending nodes of a group put their tensors
// into a box, and the last of them sends what is in it. On the other device one node receives, and
// puts the parts into a box from which each of the receiving nodes takes its own (fuse_boxes.h).

namespace tensorwire::plugin {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

// Attributes that the nodes of one group share.
class Group {
 public:
  explicit Group(OpKernelConstruction* ctx) {
    int64_t incarnation = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("send_device", &send_device_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("recv_device", &recv_device_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("send_device_incarnation", &incarnation));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("tensor_name", &tensor_name_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kFusePartsAttr, &parts_));
    incarnation_ = static_cast<uint64_t>(incarnation);
    OP_REQUIRES_OK(ctx, MakeKey("", &key_));
    id_ = std::hash<std::string_view>()({key_.FullKey().data(), key_.FullKey().size()});
  }

  size_t parts() const { return static_cast<size_t>(parts_); }
  const Rendezvous::ParsedKey& key() const { return key_; }
  absl::Status ApartKey(int64_t part, Rendezvous::ParsedKey* key) const {
    return MakeKey("_" + std::to_string(part), key);
  }

  // Ids of the boxes at this group's ends; see FuseBoxes.
  uint64_t sending_id() const { return 2 * id_; }
  uint64_t receiving_id() const { return 2 * id_ + 1; }

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
  int64_t parts_ = 0;
  Rendezvous::ParsedKey key_;
  uint64_t id_ = 0;
};

// The index of a node's part.
int64_t PartIndex(OpKernelConstruction* ctx, const Group& group) {
  int64_t index = 0;
  const absl::Status status = ctx->GetAttr(kFusePartAttr, &index);
  if (!status.ok() || index < 0 || static_cast<size_t>(index) >= group.parts()) {
    ctx->CtxFailure(absl::InvalidArgumentError("tensor_fuse: a node without a part"));
    return 0;
  }
  return index;
}

TensorCounters* CountersFor(const Group& group, const std::string& input) {
  // `input` has the form of a NodeDef's input: "node:output".
  const auto key = group.key().FullKey();
  return TensorFigures::Get().OfPart({key.data(), key.size()}, input.substr(0, input.find(':')));
}

absl::Status Send(OpKernelContext* ctx, const Rendezvous::ParsedKey& key, const Tensor& tensor) {
  Rendezvous::Args args;
  args.device_context = ctx->op_device_context();
  args.alloc_attrs = ctx->input_alloc_attr(0);
  return ctx->rendezvous()->Send(key, args, tensor, /*is_dead=*/false);
}

// Fills in a part. A part that travels on its own (kApart) is sent here.
absl::Status PutPart(OpKernelContext* ctx, const Group& group, int64_t index, const Tensor& tensor,
                     TensorCounters* counters, FusedPart* part) {
  part->tensor = tensor;
  part->way = WayOf(tensor);
  counters->Count(tensor.TotalBytes());
  if (part->way != FusedPart::Way::kApart) return absl::OkStatus();
  Rendezvous::ParsedKey key;
  if (absl::Status s = group.ApartKey(index, &key); !s.ok()) return s;
  return Send(ctx, key, tensor);
}

absl::Status SendFused(OpKernelContext* ctx, const Group& group,
                       const std::vector<FusedPart>& parts) {
  Tensor fused;
  if (absl::Status s = Fuse(parts, &fused); !s.ok()) return s;
  Counters().fused_messages.fetch_add(1, std::memory_order_relaxed);
  Counters().fused_tensors.fetch_add(group.parts(), std::memory_order_relaxed);
  return Send(ctx, group.key(), fused);
}

// Sends all its inputs as one fused tensor.
class FuseSendAllOp : public tensorflow::OpKernel {
 public:
  explicit FuseSendAllOp(OpKernelConstruction* ctx) : OpKernel(ctx), group_(ctx) {
    OP_REQUIRES(ctx, static_cast<size_t>(num_inputs()) == group_.parts(),
                absl::InvalidArgumentError("tensor_fuse: another number of tensors"));
    for (int i = 0; i < num_inputs(); ++i) {
      counters_.push_back(CountersFor(group_, requested_input(i)));
    }
  }

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* ctx) override {
    std::vector<FusedPart> parts(group_.parts());
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      OP_REQUIRES_OK(ctx, PutPart(ctx, group_, i, ctx->input(i), counters_[i], &parts[i]));
    }
    OP_REQUIRES_OK(ctx, SendFused(ctx, group_, parts));
  }

 private:
  const Group group_;
  std::vector<TensorCounters*> counters_;
};

// Puts a tensor into the box; the last one sends it.
class FuseSendOp : public tensorflow::OpKernel {
 public:
  explicit FuseSendOp(OpKernelConstruction* ctx)
      : OpKernel(ctx),
        group_(ctx),
        index_(PartIndex(ctx, group_)),
        counters_(CountersFor(group_, requested_input(0))) {}

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<FuseBox> box;
    OP_REQUIRES_OK(ctx,
                   FuseBoxes::Get().FindOrMake(ctx, group_.sending_id(), group_.parts(), &box));
    if (!ctx->is_input_dead()) {
      OP_REQUIRES_OK(ctx,
                     PutPart(ctx, group_, index_, ctx->input(0), counters_, &box->part(index_)));
    }
    if (!box->IsLastOne()) return;
    FuseBoxes::Get().Remove(ctx, group_.sending_id());
    OP_REQUIRES_OK(ctx, SendFused(ctx, group_, box->parts()));
  }

 private:
  const Group group_;
  const int64_t index_;
  TensorCounters* const counters_;
};

// Receives a fused tensor, and those of its parts that travel on their own. Lives until it has
// called `done` with all of them.
class Arrival : public std::enable_shared_from_this<Arrival> {
 public:
  using Done = std::function<void(const absl::Status&, std::vector<FusedPart>)>;

  Arrival(OpKernelContext* ctx, const Group* group, Done done)
      : ctx_(ctx), group_(group), done_(std::move(done)) {}

  void Begin() {
    Receive(group_->key(),
            [self = shared_from_this()](const absl::Status& status, const Tensor& fused) {
              if (!status.ok()) return self->done_(status, {});
              // This thread may be a reactor.
              if (self->ctx_->runner() != nullptr && IsLongToSplit(fused)) {
                (*self->ctx_->runner())([self, fused] { self->SplitAll(fused); });
              } else {
                self->SplitAll(fused);
              }
            });
  }

 private:
  using Received = std::function<void(const absl::Status&, const Tensor&)>;

  void Receive(const Rendezvous::ParsedKey& key, Received received) {
    Rendezvous::Args args;
    args.device_context = ctx_->op_device_context();
    args.alloc_attrs = ctx_->output_alloc_attr(0);
    // No cancellation manager is needed: a step that fails aborts its rendezvous.
    ctx_->rendezvous()->RecvAsync(
        key, args,
        [received = std::move(received)](const absl::Status& status, const Rendezvous::Args&,
                                         const Rendezvous::Args&, const Tensor& tensor,
                                         bool /*is_dead*/) { received(status, tensor); });
  }

  void SplitAll(const Tensor& fused) {
    if (absl::Status s = Split(fused, group_->parts(), ctx_->device(), &parts_); !s.ok()) {
      return done_(s, {});
    }
    // The kApart parts were sent before the fused tensor, so it is safe to wait for them here.
    for (size_t i = 0; i < parts_.size(); ++i) {
      FusedPart& part = parts_[i];
      if (part.way != FusedPart::Way::kApart) continue;
      awaited_.fetch_add(1);
      Rendezvous::ParsedKey key;
      if (absl::Status s = group_->ApartKey(static_cast<int64_t>(i), &key); !s.ok()) {
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
    absl::Status all;
    {
      std::lock_guard lock(mutex_);
      all = status_;
    }
    done_(all, std::move(parts_));
  }

  OpKernelContext* const ctx_;
  const Group* const group_;  // owned by the kernel, which outlives the call
  const Done done_;
  std::vector<FusedPart> parts_;
  std::atomic<int> awaited_{1};
  std::mutex mutex_;
  absl::Status status_;  // the first that is not OK; under mutex_
};

absl::Status SetOutput(OpKernelContext* ctx, int output, Tensor tensor) {
  if (tensor.dtype() != ctx->expected_output_dtype(output)) {
    return absl::InternalError("tensor_fuse: a tensor of another type arrived");
  }
  ctx->set_output(output, std::move(tensor));
  return absl::OkStatus();
}

// Receives all its outputs as one fused tensor.
class FuseReceiveAllOp : public tensorflow::AsyncOpKernel {
 public:
  explicit FuseReceiveAllOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx), group_(ctx) {
    OP_REQUIRES(ctx, static_cast<size_t>(num_outputs()) == group_.parts(),
                absl::InvalidArgumentError("tensor_fuse: another number of tensors"));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    std::make_shared<Arrival>(
        ctx, &group_,
        [ctx, done = std::move(done)](const absl::Status& status, std::vector<FusedPart> parts) {
          OP_REQUIRES_OK_ASYNC(ctx, status, done);
          for (int i = 0; i < ctx->num_outputs(); ++i) {
            OP_REQUIRES_ASYNC(ctx, parts[i].way != FusedPart::Way::kDead,
                              absl::InternalError("tensor_fuse: a dead tensor arrived"), done);
            OP_REQUIRES_OK_ASYNC(ctx, SetOutput(ctx, i, std::move(parts[i].tensor)), done);
          }
          done();
        })
        ->Begin();
  }

 private:
  const Group group_;
};

// Receives what the last FuseSendOp sent, for the FusePartOps behind it.
class FuseReceiveOp : public tensorflow::AsyncOpKernel {
 public:
  explicit FuseReceiveOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx), group_(ctx) {}

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    std::make_shared<Arrival>(
        ctx, &group_,
        [this, ctx, done = std::move(done)](const absl::Status& status,
                                            std::vector<FusedPart> parts) {
          OP_REQUIRES_OK_ASYNC(ctx, status, done);
          OP_REQUIRES_OK_ASYNC(ctx,
                               FuseBoxes::Get().Add(ctx, group_.receiving_id(),
                                                    std::make_shared<FuseBox>(std::move(parts))),
                               done);
          ctx->set_output(0, Tensor(tensorflow::DT_UINT8, {0}));  // the parts are in the box
          done();
        })
        ->Begin();
  }

 private:
  const Group group_;
};

// Takes one part out of the box.
class FusePartOp : public tensorflow::OpKernel {
 public:
  explicit FusePartOp(OpKernelConstruction* ctx)
      : OpKernel(ctx), group_(ctx), index_(PartIndex(ctx, group_)) {}

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<FuseBox> box;
    OP_REQUIRES_OK(ctx, FuseBoxes::Get().Find(ctx, group_.receiving_id(), &box));
    FusedPart part = std::move(box->part(index_));
    if (box->IsLastOne()) FuseBoxes::Get().Remove(ctx, group_.receiving_id());
    if (part.way == FusedPart::Way::kDead) return;
    OP_REQUIRES_OK(ctx, SetOutput(ctx, 0, std::move(part.tensor)));
  }

 private:
  const Group group_;
  const int64_t index_;
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

REGISTER_KERNEL_BUILDER(Name(kFuseSendOp).Device(tensorflow::DEVICE_CPU), FuseSendAllOp);
REGISTER_KERNEL_BUILDER(Name(kFuseReceiveOp).Device(tensorflow::DEVICE_CPU), FuseReceiveAllOp);
REGISTER_KERNEL_BUILDER(Name("_Send").Device(tensorflow::DEVICE_CPU).Label(kFusePartLabel),
                        FuseSendOp);
REGISTER_KERNEL_BUILDER(Name("_Recv").Device(tensorflow::DEVICE_CPU).Label(kFuseReceiveLabel),
                        FuseReceiveOp);
REGISTER_KERNEL_BUILDER(Name("_Recv").Device(tensorflow::DEVICE_CPU).Label(kFusePartLabel),
                        FusePartOp);

}  // namespace
}  // namespace tensorwire::plugin
