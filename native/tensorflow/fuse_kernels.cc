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
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/rendezvous.h"

// The two ends of tensors that travel as one. The sending nodes of a group put their tensors into a
// box, and the last of them sends what is in it. On the other device one node receives, and puts
// the parts into a box from which each of the receiving nodes takes its own (fuse_boxes.h).

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
    FusedPart& part = box->part(index_);
    if (!ctx->is_input_dead()) {
      part.tensor = ctx->input(0);
      part.way = WayOf(part.tensor);
      counters_->Count(part.tensor.TotalBytes());
    }
    if (part.way == FusedPart::Way::kApart) {
      Rendezvous::ParsedKey key;
      OP_REQUIRES_OK(ctx, group_.ApartKey(index_, &key));
      OP_REQUIRES_OK(ctx, Send(ctx, key, part.tensor));
    }
    if (!box->IsLastOne()) return;
    Tensor fused;
    OP_REQUIRES_OK(ctx, Fuse(box->parts(), &fused));
    FuseBoxes::Get().Remove(ctx, group_.sending_id());
    Counters().fused_messages.fetch_add(1, std::memory_order_relaxed);
    Counters().fused_tensors.fetch_add(group_.parts(), std::memory_order_relaxed);
    OP_REQUIRES_OK(ctx, Send(ctx, group_.key(), fused));
  }

 private:
  // `input` is as a NodeDef has it: the node, and which of its outputs.
  static TensorCounters* CountersFor(const Group& group, const std::string& input) {
    const auto key = group.key().FullKey();
    return TensorFigures::Get().OfPart({key.data(), key.size()}, input.substr(0, input.find(':')));
  }
  static absl::Status Send(OpKernelContext* ctx, const Rendezvous::ParsedKey& key,
                           const Tensor& tensor) {
    Rendezvous::Args args;
    args.device_context = ctx->op_device_context();
    args.alloc_attrs = ctx->input_alloc_attr(0);
    return ctx->rendezvous()->Send(key, args, tensor, /*is_dead=*/false);
  }

  const Group group_;
  const int64_t index_;
  TensorCounters* const counters_;
};

// Receives what the last FuseSendOp sent, and those parts that come on their own.
class FuseReceiveOp : public tensorflow::AsyncOpKernel {
 public:
  explicit FuseReceiveOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx), group_(ctx) {}

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    Receive(ctx, group_.key(),
            [this, ctx, done = std::move(done)](const absl::Status& status, const Tensor& fused) {
              OP_REQUIRES_OK_ASYNC(ctx, status, done);
              // This may be a reactor.
              if (ctx->runner() != nullptr && IsLongToSplit(fused)) {
                (*ctx->runner())([this, ctx, done, fused] { SplitAll(ctx, done, fused); });
              } else {
                SplitAll(ctx, done, fused);
              }
            });
  }

 private:
  struct Arrival {
    Arrival(OpKernelContext* c, DoneCallback d) : ctx(c), done(std::move(d)) {}
    OpKernelContext* const ctx;
    const DoneCallback done;
    std::vector<FusedPart> parts;
    std::atomic<int> awaited{1};
    std::mutex mutex;
    absl::Status status;  // the first that is not OK; under mutex
  };
  using Received = std::function<void(const absl::Status&, const Tensor&)>;

  static void Receive(OpKernelContext* ctx, const Rendezvous::ParsedKey& key, Received received) {
    Rendezvous::Args args;
    args.device_context = ctx->op_device_context();
    args.alloc_attrs = ctx->output_alloc_attr(0);
    // No cancellation manager: a step that fails aborts its rendezvous.
    ctx->rendezvous()->RecvAsync(
        key, args,
        [received = std::move(received)](const absl::Status& status, const Rendezvous::Args&,
                                         const Rendezvous::Args&, const Tensor& tensor,
                                         bool /*is_dead*/) { received(status, tensor); });
  }

  void SplitAll(OpKernelContext* ctx, const DoneCallback& done, const Tensor& fused) {
    auto arrival = std::make_shared<Arrival>(ctx, done);
    OP_REQUIRES_OK_ASYNC(ctx, Split(fused, group_.parts(), ctx->device(), &arrival->parts), done);
    ReceiveApart(arrival);
  }

  // Each of them was sent before the fused tensor, so that waiting for it here is no risk.
  void ReceiveApart(const std::shared_ptr<Arrival>& arrival) {
    for (size_t i = 0; i < arrival->parts.size(); ++i) {
      FusedPart& part = arrival->parts[i];
      if (part.way != FusedPart::Way::kApart) continue;
      arrival->awaited.fetch_add(1);
      Rendezvous::ParsedKey key;
      if (absl::Status s = group_.ApartKey(static_cast<int64_t>(i), &key); !s.ok()) {
        Arrived(arrival, s);
        continue;
      }
      Receive(arrival->ctx, key,
              [this, arrival, &part](const absl::Status& status, const Tensor& tensor) {
                part.tensor = tensor;
                Arrived(arrival, status);
              });
    }
    Arrived(arrival, absl::OkStatus());
  }

  void Arrived(const std::shared_ptr<Arrival>& arrival, const absl::Status& status) {
    if (!status.ok()) {
      std::lock_guard lock(arrival->mutex);
      if (arrival->status.ok()) arrival->status = status;
    }
    if (arrival->awaited.fetch_sub(1) != 1) return;
    OpKernelContext* const ctx = arrival->ctx;
    absl::Status all;
    {
      std::lock_guard lock(arrival->mutex);
      all = arrival->status;
    }
    OP_REQUIRES_OK_ASYNC(ctx, all, arrival->done);
    OP_REQUIRES_OK_ASYNC(ctx,
                         FuseBoxes::Get().Add(ctx, group_.receiving_id(),
                                              std::make_shared<FuseBox>(std::move(arrival->parts))),
                         arrival->done);
    ctx->set_output(0, Tensor(tensorflow::DT_UINT8, {0}));  // the parts are had from the box
    arrival->done();
  }

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
    OP_REQUIRES(ctx, part.tensor.dtype() == ctx->expected_output_dtype(0),
                absl::InternalError("tensor_fuse: a tensor of another type arrived"));
    ctx->set_output(0, std::move(part.tensor));
  }

 private:
  const Group group_;
  const int64_t index_;
};

REGISTER_KERNEL_BUILDER(Name("_Send").Device(tensorflow::DEVICE_CPU).Label(kFusePartLabel),
                        FuseSendOp);
REGISTER_KERNEL_BUILDER(Name("_Recv").Device(tensorflow::DEVICE_CPU).Label(kFuseReceiveLabel),
                        FuseReceiveOp);
REGISTER_KERNEL_BUILDER(Name("_Recv").Device(tensorflow::DEVICE_CPU).Label(kFusePartLabel),
                        FusePartOp);

}  // namespace
}  // namespace tensorwire::plugin
