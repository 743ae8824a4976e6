#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "metrics/tensor_figures.h"
#include "rewrites/graph_order.h"
#include "rewrites/graph_rewrite.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/graph_to_functiondef.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/lib/random/random.h"

// Independent operations of one kind run as one: a ps with hundreds of tables has one lookup and
// one update per step, not one per table. A bundle is the call of a function with copies of these
// operations, so results are the same, bit by bit. Its arguments and results are the inputs and
// outputs of its members, one after the other.

namespace tensorwire::plugin {
namespace {

using tensorflow::DataType;
using tensorflow::FunctionLibraryDefinition;
using tensorflow::FunctionLibraryRuntime;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr RewriteSwitch kBundles{"tensorwire_bundles", "bundles"};
// The operation that calls a bundle's function.
constexpr char kBundleOp[] = "TensorwireBundle_import_tensorwire_tf_in_every_task";
// How the names of bundles' functions begin. The rest is a random number: tasks send functions to
// each other, and two of them must not use one name.
constexpr const char* kBundlePrefix = "TensorwireBundle_";
// Bundles of fewer members gain nothing.
constexpr size_t kLeastMembers = 4;

// Operations that take less time than the executor needs to start them one by one, and whose
// kernels do not block.
bool IsMember(const Node& node) {
  static const auto* const names = new OpNames(
      "Gather GatherV2 ReadVariableOp ResourceApplyAdagrad ResourceApplyAdagradV2 "
      "ResourceApplyAdam ResourceApplyFtrl ResourceApplyFtrlV2 ResourceApplyGradientDescent "
      "ResourceApplyKerasMomentum ResourceApplyMomentum ResourceGather ResourceScatterAdd "
      "ResourceSparseApplyAdagrad ResourceSparseApplyAdagradV2 ResourceSparseApplyFtrl "
      "ResourceSparseApplyFtrlV2 ResourceSparseApplyKerasMomentum ResourceSparseApplyMomentum "
      "Shape StridedSlice TensorwireListRows* TensorwireNarrow* TensorwirePulledIds* "
      "TensorwireSumRows* Unique UnsortedSegmentSum");
  // A user's own Cast may take long.
  const bool is_our_cast =
      node.type_string() == "Cast" && absl::StartsWith(node.name(), kNodePrefix);
  if ((!names->Have(node) && !is_our_cast) || !NeverWaits(node)) return false;
  const auto is_ref = [](DataType type) { return tensorflow::IsRefType(type); };
  return std::none_of(node.input_types().begin(), node.input_types().end(), is_ref) &&
         std::none_of(node.output_types().begin(), node.output_types().end(), is_ref);
}

// A small constant, or the handle of a variable. The bundle has a copy of it.
bool IsFixed(const Node& node) {
  constexpr size_t kMostBytes = 1024;
  return node.type_string() == "VarHandleOp" ||
         (node.IsConstant() && node.def().ByteSizeLong() <= kMostBytes);
}

// The body of a bundle's function, as it is being made.
class Body {
 public:
  Node* Copy(const Node& node) {
    Node* const copy = graph_.CopyNode(&node);
    copy->set_requested_device("");
    copy->set_assigned_device_name("");
    copy->ClearAttr(tensorflow::kColocationAttrName);  // names nodes outside of the function
    return copy;
  }
  absl::Status AddArgument(DataType type, Node** argument) {
    return Add(NodeBuilder(graph_.NewName("arg"), "_Arg").Attr("T", type), &arguments_, argument);
  }
  absl::Status AddResults(Node* of) {
    for (int i = 0; i < of->num_outputs(); ++i) {
      NodeBuilder builder(graph_.NewName("result"), "_Retval");
      TF_RETURN_IF_ERROR(Add(builder.Input(of, i), &results_, nullptr));
    }
    return absl::OkStatus();
  }
  void Connect(Node* src, int output, Node* dst, int input) {
    graph_.AddEdge(src, output, dst, input);
  }
  absl::Status ToFunction(const std::string& name, tensorflow::FunctionDef* function) {
    TF_RETURN_IF_ERROR(GraphToFunctionDef(graph_, name, function));
    function->mutable_signature()->set_is_stateful(true);  // as its members may be
    (*function->mutable_attr())["_noinline"].set_b(true);
    return absl::OkStatus();
  }

 private:
  absl::Status Add(NodeBuilder& builder, int* index, Node** node) {
    return builder.Attr("index", (*index)++).Finalize(&graph_, node);
  }

  Graph graph_{tensorflow::OpRegistry::Global()};
  int arguments_ = 0;
  int results_ = 0;
};

// Replaces the members of one bundle by the call of a function, which is added to the library.
// `is_function`: of the graph.
absl::Status Bundle(Graph* graph, FunctionLibraryDefinition* known, bool is_function,
                    const std::vector<Node*>& members) {
  Body body;
  std::map<Node*, Node*, tensorflow::NodeComparatorID> fixed;  // and their copies
  std::vector<NodeBuilder::NodeOut> inputs;
  std::vector<DataType> results;
  for (Node* member : members) {
    Node* const copy = body.Copy(*member);
    for (int i = 0; i < member->num_inputs(); ++i) {
      const Edge* edge = nullptr;
      TF_RETURN_IF_ERROR(member->input_edge(i, &edge));
      Node* const src = edge->src();
      if (IsFixed(*src) && src->assigned_device_name() == member->assigned_device_name()) {
        const auto [at, is_new] = fixed.try_emplace(src, nullptr);
        if (is_new) at->second = body.Copy(*src);
        body.Connect(at->second, 0, copy, i);
        continue;
      }
      Node* argument = nullptr;
      // TensorFlow passes the value of a reference, as it does to the member.
      const DataType type = tensorflow::BaseType(src->output_type(edge->src_output()));
      TF_RETURN_IF_ERROR(body.AddArgument(type, &argument));
      body.Connect(argument, 0, copy, i);
      inputs.emplace_back(src, edge->src_output());
    }
    TF_RETURN_IF_ERROR(body.AddResults(copy));
    results.insert(results.end(), copy->output_types().begin(), copy->output_types().end());
  }
  tensorflow::FunctionDefLibrary library;
  const std::string function =
      absl::StrCat(kBundlePrefix, absl::Hex(tensorflow::random::New64(), absl::kZeroPad16));
  TF_RETURN_IF_ERROR(body.ToFunction(function, library.add_function()));
  TF_RETURN_IF_ERROR(known->AddLibrary(library));

  const std::string device = members.front()->assigned_device_name();
  tensorflow::NameAttrList called;
  called.set_name(function);
  Node* bundle = nullptr;
  TF_RETURN_IF_ERROR(NewNode(graph, "bundle/" + members.front()->type_string(), kBundleOp, device)
                         .Input(inputs)
                         .Attr("Tout", results)
                         .Attr("f", called)
                         .Finalize(graph, &bundle));
  int output = 0;
  for (Node* member : members) {
    CopyControlInputs(graph, *member, bundle);
    MoveOutputs(graph, *member, bundle, output);
    output += member->num_outputs();
    const std::string name = member->name();
    const bool is_stateful = member->op_def().is_stateful();
    graph->RemoveNode(member);
    if (!is_function || !is_stateful) continue;
    // A function refers by name to the operations that it waits for.
    Node* done = nullptr;
    TF_RETURN_IF_ERROR(NodeBuilder(name, "NoOp")
                           .ControlInput(bundle)
                           .AssignedDevice(device)
                           .Finalize(graph, &done));
  }
  for (const auto& [node, copy] : fixed) {
    CopyControlInputs(graph, *node, bundle);
    RemoveUnused(graph, node);
  }
  RewriteCounts::Get().Count(kBundles);
  return absl::OkStatus();
}

// Bundles the members of a graph that have the same device, kind, gates and depths.
absl::Status BundleAll(const GraphOptimizationPassOptions& options, Graph* graph) {
  DeviceNames devices;
  GraphOrder crossings(*graph);  // a lookup must not wait for tensors that arrive later
  GraphOrder members(*graph);    // nor for itself
  bool usable = false;
  TF_RETURN_IF_ERROR(
      crossings.Compute([&](const Edge& edge) { return devices.Cross(edge); }, &usable));
  TF_RETURN_IF_ERROR(
      members.Compute([](const Edge& edge) { return IsMember(*edge.src()); }, &usable));
  if (!usable) RewriteCounts::Get().Count(kBundles, kNoOrder);
  if (!usable) return absl::OkStatus();
  // Ordered, so that a graph is always rewritten in the same way.
  std::map<std::tuple<std::string, int, int, int, std::string>, std::vector<Node*>> found;
  for (Node* node : graph->op_nodes()) {
    if (!IsMember(*node) || members.MayBeDead(*node) || !members.OutsideLoops(*node) ||
        !devices.IsCpu(node->assigned_device_name())) {
      continue;
    }
    found[{node->assigned_device_name(), crossings.DepthOf(*node), members.DepthOf(*node),
           members.GatesOf(*node), node->type_string()}]
        .push_back(node);
  }
  const bool is_function = options.session_options == nullptr || options.is_function_graph;
  for (const auto& [key, group] : found) {
    if (group.size() < kLeastMembers) continue;
    TF_RETURN_IF_ERROR(Bundle(graph, options.flib_def, is_function, group));
  }
  return absl::OkStatus();
}

// After the rewrites that send less, and before tensor fusion.
class BundlePass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (!MayRewrite(options) || !IsAskedFor(kBundles, options)) return absl::OkStatus();
    return RewriteGraph(options, [&options](Graph* graph) { return BundleAll(options, graph); });
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 75, BundlePass);

// Calls a bundle's function in the executor's thread. TensorFlow's own operations that call a
// function are asynchronous, so the executor puts each node that follows one into its pool on its
// own.
class BundleOp : public tensorflow::OpKernel {
 public:
  explicit BundleOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("f", &function_));
  }

  void Compute(OpKernelContext* ctx) override {
    FunctionLibraryRuntime* const library = ctx->function_library();
    FunctionLibraryRuntime::Handle handle = 0;
    OP_REQUIRES_OK(ctx, Instantiate(library, &handle));
    FunctionLibraryRuntime::Options options(ctx->step_id());
    options.rendezvous = ctx->rendezvous();
    options.cancellation_manager = ctx->cancellation_manager();
    options.step_container = ctx->step_container();
    options.stats_collector = ctx->stats_collector();
    options.runner = ctx->runner();
    std::vector<Tensor> arguments;
    arguments.reserve(static_cast<size_t>(ctx->num_inputs()));
    for (int i = 0; i < ctx->num_inputs(); ++i) arguments.push_back(ctx->input(i));
    std::vector<Tensor> results;
    OP_REQUIRES_OK(ctx, library->RunSync(options, handle, arguments, &results));
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      ctx->set_output(i, results[static_cast<size_t>(i)]);
    }
  }

 private:
  absl::Status Instantiate(FunctionLibraryRuntime* library,
                           FunctionLibraryRuntime::Handle* handle) {
    std::lock_guard lock(mutex_);
    const auto [at, is_new] = handles_.try_emplace(library, 0);
    if (is_new) {
      FunctionLibraryRuntime::InstantiateOptions options;
      options.executor_type = "SINGLE_THREADED_EXECUTOR";  // starts a member in the shortest time
      const absl::Status status = library->Instantiate(
          function_.name(), tensorflow::AttrSlice(&function_.attr()), options, &at->second);
      if (!status.ok()) {
        handles_.erase(at);
        return status;
      }
    }
    *handle = at->second;
    return absl::OkStatus();
  }

  tensorflow::NameAttrList function_;
  std::mutex mutex_;
  // TensorFlow keeps a stateful kernel for all graphs of a session.
  std::unordered_map<FunctionLibraryRuntime*, FunctionLibraryRuntime::Handle> handles_;
};

// Stateful, as its members may be.
REGISTER_OP(kBundleOp)
    .Input("arguments: Tin")
    .Output("results: Tout")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 0")
    .Attr("f: func")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_KERNEL_BUILDER(Name(kBundleOp).Device(tensorflow::DEVICE_CPU), BundleOp);

}  // namespace
}  // namespace tensorwire::plugin
