#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "metrics/counters.h"
#include "metrics/tensor_figures.h"
#include "rewrites/graph_order.h"
#include "rewrites/graph_rewrite.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensors/fused_tensor.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr RewriteSwitch kTensorFuse{"tensorwire_fuse", "tensor_fuse"};

// The operations at the two ends of a group of tensors: the first one makes one tensor of them
// (fused_tensor.h), the second one takes it apart. TensorFlow sends the one tensor.
constexpr char kFuseOp[] = "TensorwireFuse_import_tensorwire_tf_in_every_task";
constexpr char kSplitOp[] = "TensorwireSplit_import_tensorwire_tf_in_every_task";

// The devices at both ends, the depth and gates of the producers, and the conditions under which
// the tensors have values: all of them, or none.
using GroupKey = std::tuple<std::string, std::string, int, int, int>;
// Ordered, so that a graph is always rewritten in the same way.
using Groups = std::map<GroupKey, std::vector<Crossing>>;

// Finds the tensors that can be fused: those in host memory that go from one task to another,
// outside of loops. `keep_floats`: tensors of type float are not fused.
absl::Status FindGroups(const Graph& graph, bool keep_floats, Groups* groups) {
  DeviceNames devices;
  GraphOrder order(graph);
  bool usable = false;
  TF_RETURN_IF_ERROR(order.Compute([&](const Edge& edge) { return devices.Cross(edge); }, &usable));
  if (!usable) RewriteCounts::Get().Count(kTensorFuse, kNoOrder);
  if (!usable) return absl::OkStatus();
  for (Crossing& crossing : FindCrossings(graph, &devices)) {
    const Node& src = *crossing.src;
    const tensorflow::DataType dtype = src.output_type(crossing.output);
    if (tensorflow::IsRefType(dtype) || (keep_floats && dtype == tensorflow::DT_FLOAT)) continue;
    const std::string& from = src.assigned_device_name();
    if (!devices.IsCpu(from) || !devices.IsCpu(crossing.to)) continue;
    std::vector<const Edge*>& edges = crossing.edges;
    edges.erase(std::remove_if(edges.begin(), edges.end(),
                               [&](const Edge* edge) { return !order.OutsideLoops(*edge); }),
                edges.end());
    if (edges.empty()) continue;
    (*groups)[{from, crossing.to, order.DepthOf(src), order.GatesOf(src),
               order.ConditionsOf(*edges.front())}]
        .push_back(std::move(crossing));
  }
  return absl::OkStatus();
}

// Lets the tensors of one group cross as one.
absl::Status FuseGroup(Graph* graph, const std::vector<Crossing>& crossings) {
  std::vector<NodeBuilder::NodeOut> sent;
  std::vector<tensorflow::DataType> types;
  for (const Crossing& crossing : crossings) {
    sent.emplace_back(crossing.src, crossing.output);
    types.push_back(crossing.src->output_type(crossing.output));
  }
  const std::string from = crossings.front().src->assigned_device_name();
  const std::string& to = crossings.front().to;
  Node* fuse = nullptr;
  TF_RETURN_IF_ERROR(NewNode(graph, "tensor_fuse/fuse", kFuseOp, from)
                         .Input(sent)
                         .Attr("source", from)
                         .Attr("target", to)
                         .Finalize(graph, &fuse));
  Node* split = nullptr;
  TF_RETURN_IF_ERROR(NewNode(graph, "tensor_fuse/split", kSplitOp, to)
                         .Input(fuse)
                         .Attr("types", types)
                         .Finalize(graph, &split));
  int index = 0;
  for (const Crossing& crossing : crossings) {
    for (const Edge* edge : crossing.edges) ReplaceInput(graph, edge, split, index);
    ++index;
  }
  RewriteCounts::Get().Count(kTensorFuse);
  return absl::OkStatus();
}

// Runs on the master for each graph that is executed, and for functions whose nodes are on several
// devices. Runs when every node has its device, and before the graph is partitioned.
class TensorFusePass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (!MayRewrite(options) || !IsAskedFor(kTensorFuse, options)) return absl::OkStatus();
    return RewriteGraph(options, [&options](Graph* graph) {
      Groups groups;
      TF_RETURN_IF_ERROR(FindGroups(*graph, CastsFloats(options), &groups));
      for (const auto& [key, crossings] : groups) {
        if (crossings.size() < 2) continue;
        TF_RETURN_IF_ERROR(FuseGroup(graph, crossings));
      }
      return absl::OkStatus();
    });
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 100,
                      TensorFusePass);

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
