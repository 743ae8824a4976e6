#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "bundle_pass.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorValue;

// Where a kernel of a bundle gets an input from.
struct Source {
  bool is_fixed = false;  // a constant or handle in the bundle, not an input of the bundle
  int index = 0;
};

// One node of a bundle.
struct Part {
  std::unique_ptr<OpKernel> kernel;
  std::vector<Source> inputs;
  int first_output = 0;  // of the bundle
};

absl::Status MakePart(OpKernelConstruction* ctx, const std::string& bytes, Part* part) {
  tensorflow::NodeDef def;
  if (!def.ParseFromString(bytes)) return absl::InvalidArgumentError("malformed node in a bundle");
  for (const std::string& input : def.input()) {
    Source source;
    source.is_fixed = input.rfind(':', 0) != 0;
    if (!absl::SimpleAtoi(source.is_fixed ? input : input.substr(1), &source.index)) {
      return absl::InvalidArgumentError("invalid input in a bundle");
    }
    part->inputs.push_back(source);
  }
  std::shared_ptr<const tensorflow::NodeProperties> properties;
  if (absl::Status s = tensorflow::NodeProperties::CreateFromNodeDef(
          std::move(def), tensorflow::OpRegistry::Global(), &properties);
      !s.ok()) {
    return s;
  }
  OpKernel* kernel = nullptr;
  absl::Status status = CreateOpKernel(
      ctx->device_type(), ctx->device(), ctx->device()->GetAllocator({}), ctx->function_library(),
      ctx->resource_manager(), properties, ctx->graph_def_version(), &kernel);
  if (!status.ok()) return status;
  part->kernel.reset(kernel);
  if (kernel->AsAsync() != nullptr) return absl::InvalidArgumentError("async kernel in a bundle");
  return absl::OkStatus();
}

// Runs the kernels of its members; see bundle_pass.h.
class BundleOp : public OpKernel {
 public:
  explicit BundleOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<std::string> nodes;
    int64_t fixed = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kBundleNodesAttr, &nodes));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kBundleFixedAttr, &fixed));
    int outputs = 0;
    for (const std::string& bytes : nodes) {
      Part part;
      OP_REQUIRES_OK(ctx, MakePart(ctx, bytes, &part));
      if (fixed_.size() < static_cast<size_t>(fixed)) {
        OP_REQUIRES(ctx, part.inputs.empty() && part.kernel->num_outputs() == 1,
                    absl::InvalidArgumentError("invalid constant in a bundle"));
        fixed_.push_back(std::move(part));
        continue;
      }
      part.first_output = outputs;
      outputs += part.kernel->num_outputs();
      for (const Source& source : part.inputs) {
        const int count = source.is_fixed ? static_cast<int>(fixed) : num_inputs();
        OP_REQUIRES(ctx, source.index >= 0 && source.index < count,
                    absl::InvalidArgumentError("invalid input in a bundle"));
      }
      members_.push_back(std::move(part));
    }
    OP_REQUIRES(ctx, outputs == num_outputs(),
                absl::InvalidArgumentError("wrong number of outputs in a bundle"));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ComputeFixed(ctx));
    // One after the other: a kernel shares its work among the threads of a pool. If two members ran
    // in that pool, they would wait for each other.
    Scratch scratch;
    for (const Part& part : members_) {
      OP_REQUIRES_OK(ctx, RunKernel(ctx, part, &scratch));
      for (size_t i = 0; i < scratch.outputs.size(); ++i) {
        ctx->set_output(part.first_output + static_cast<int>(i), std::move(*scratch.outputs[i]));
      }
    }
  }

 private:
  // Buffers that all kernels use in turn.
  struct Scratch {
    std::vector<Tensor> fixed;  // copies, so that no kernel reuses their memory and writes there
    std::vector<TensorValue> inputs;
    std::vector<tensorflow::AllocatorAttributes> attributes;  // all alike: of host memory
    std::vector<std::unique_ptr<Tensor>> outputs;
  };

  absl::Status ComputeFixed(OpKernelContext* ctx) {
    std::lock_guard lock(mutex_);
    if (!values_.empty() || fixed_.empty()) return absl::OkStatus();
    std::vector<Tensor> values;
    Scratch scratch;
    for (const Part& part : fixed_) {
      if (absl::Status s = RunKernel(ctx, part, &scratch); !s.ok()) return s;
      values.push_back(std::move(*scratch.outputs.front()));
    }
    values_ = std::move(values);
    return absl::OkStatus();
  }

  // Leaves the outputs in `scratch`.
  absl::Status RunKernel(OpKernelContext* ctx, const Part& part, Scratch* scratch) {
    scratch->fixed.clear();
    scratch->fixed.reserve(part.inputs.size());
    scratch->inputs.clear();
    for (const Source& source : part.inputs) {
      if (source.is_fixed) {
        scratch->inputs.emplace_back(&scratch->fixed.emplace_back(values_[source.index]));
      } else {
        // A kernel writes to an input only if nothing else refers to its memory. A tensor that two
        // members use is two inputs of the bundle, so no kernel writes to it.
        scratch->inputs.emplace_back(const_cast<Tensor*>(&ctx->input(source.index)));
      }
    }
    const size_t outputs = static_cast<size_t>(part.kernel->num_outputs());
    scratch->attributes.resize(
        std::max({scratch->attributes.size(), scratch->inputs.size(), outputs}));
    OpKernelContext::Params params;
    params.step_id = ctx->step_id();
    params.op_kernel = part.kernel.get();
    params.device = ctx->device();
    params.output_attr_array = scratch->attributes.data();
    params.resource_manager = ctx->resource_manager();
    params.step_container = ctx->step_container();
    params.rendezvous = ctx->rendezvous();
    params.session_state = ctx->session_state();
    params.session_metadata = ctx->session_metadata();
    params.cancellation_manager = ctx->cancellation_manager();
    params.inputs = scratch->inputs;
    params.input_alloc_attrs = {scratch->attributes.data(), scratch->inputs.size()};
    params.op_device_context = ctx->op_device_context();
    params.frame_iter = ctx->frame_iter();
    params.function_library = ctx->function_library();
    params.runner = ctx->runner();
    OpKernelContext own(&params);
    part.kernel->Compute(&own);
    if (!own.status().ok()) return tensorflow::AttachDef(own.status(), part.kernel->def());
    scratch->outputs.clear();
    for (size_t i = 0; i < outputs; ++i) {
      scratch->outputs.emplace_back(own.release_output(static_cast<int>(i)).tensor);
      if (scratch->outputs.back() == nullptr) {
        return absl::InternalError("missing output in a bundle");
      }
    }
    return absl::OkStatus();
  }

  std::vector<Part> fixed_;
  std::vector<Part> members_;
  std::mutex mutex_;
  std::vector<Tensor> values_;  // of fixed_; written once, under mutex_
};

// Stateful, as its members may be.
REGISTER_OP(kBundleOp)
    .Input("in: Tin")
    .Output("out: Tout")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 0")
    .Attr("nodes: list(string)")
    .Attr("fixed: int")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_KERNEL_BUILDER(Name(kBundleOp).Device(tensorflow::DEVICE_CPU), BundleOp);

}  // namespace
}  // namespace tensorwire::plugin
