#include <string>
#include <utility>
#include <vector>

#include "metrics/counters.h"
#include "metrics/tensor_figures.h"
#include "rewrites/fuse_pass.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensors/fused_tensor.h"

// The kernels at the two ends of a fused tensor.

namespace tensorwire::plugin {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class FuseOp : public tensorflow::OpKernel {
 public:
  explicit FuseOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string from;
    std::string to;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("source", &from));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("target", &to));
    for (int i = 0; i < num_inputs(); ++i) {
      // A NodeDef's input is "node:output".
      const std::string& input = requested_input(i);
      counters_.push_back(TensorFigures::Get().OfPart(from, to, input.substr(0, input.find(':'))));
    }
  }

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* ctx) override {
    FusedTensors fused;
    fused.tensors.reserve(counters_.size());
    for (TensorCounters* const counters : counters_) {
      fused.tensors.push_back(ctx->input(static_cast<int>(fused.tensors.size())));
      counters->Count(fused.tensors.back().TotalBytes());
    }
    Counters().fused_messages.fetch_add(1, std::memory_order_relaxed);
    Counters().fused_tensors.fetch_add(counters_.size(), std::memory_order_relaxed);
    ctx->set_output(0, MakeFused(std::move(fused)));
  }

 private:
  std::vector<TensorCounters*> counters_;
};

class SplitOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* ctx) override {
    const FusedTensors* const fused = FusedIn(ctx->input(0));
    OP_REQUIRES(ctx,
                fused != nullptr && static_cast<int>(fused->tensors.size()) == ctx->num_outputs(),
                absl::InternalError("tensor_fuse: another number of tensors arrived"));
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      const Tensor& tensor = fused->tensors[static_cast<size_t>(i)];
      OP_REQUIRES(ctx, tensor.dtype() == ctx->expected_output_dtype(i),
                  absl::InternalError("tensor_fuse: a tensor of another type arrived"));
      ctx->set_output(i, tensor);
    }
  }
};

// Stateful, so that TensorFlow computes neither in advance.
REGISTER_OP(kFuseOp)
    .Input("tensors: types")
    .Output("fused: variant")
    .Attr("types: list(type)")
    .Attr("source: string")
    .Attr("target: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);
REGISTER_OP(kSplitOp)
    .Input("fused: variant")
    .Output("tensors: types")
    .Attr("types: list(type)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_KERNEL_BUILDER(Name(kFuseOp).Device(tensorflow::DEVICE_CPU), FuseOp);
REGISTER_KERNEL_BUILDER(Name(kSplitOp).Device(tensorflow::DEVICE_CPU), SplitOp);

}  // namespace
}  // namespace tensorwire::plugin
