#include "rewrites/bundle_pass.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rewrites/graph_order.h"
#include "rewrites/narrow_pass.h"
#include "rewrites/rewrite_pass.h"
#include "rewrites/rewrite_push.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/graph_to_functiondef.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/lib/random/random.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::DataType;
using tensorflow::FunctionLibraryDefinition;

constexpr char kBundle[] = "bundles";
// Bundles of fewer members gain nothing.
constexpr size_t kLeastMembers = 4;

// Operations that take less time than the executor needs to start them one by one, and whose
// kernels do not block.
bool IsMember(const Node& node) {
  static const std::set<std::string>* const kinds = new std::set<std::string>{
      "Gather",
      "GatherV2",
      "ReadVariableOp",
      "ResourceApplyAdagrad",
      "ResourceApplyAdagradV2",
      "ResourceApplyAdam",
      "ResourceApplyFtrl",
      "ResourceApplyFtrlV2",
      "ResourceApplyGradientDescent",
      "ResourceApplyKerasMomentum",
      "ResourceApplyMomentum",
      "ResourceGather",
      "ResourceScatterAdd",
      "ResourceSparseApplyAdagrad",
      "ResourceSparseApplyAdagradV2",
      "ResourceSparseApplyFtrl",
      "ResourceSparseApplyFtrlV2",
      "ResourceSparseApplyKerasMomentum",
      "ResourceSparseApplyMomentum",
      "Shape",
      "StridedSlice",
      "Unique",
      "UnsortedSegmentSum",
      kListRowsOp,
      kNarrowOp,
      kPulledIdsOp,
      kSumRowsOp,
      kWidenOp,
  };
  if (kinds->count(node.type_string()) == 0 || !NeverWaits(node)) return false;
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

// Adds the operations at a node's incoming control edges.
void AddControlInputs(const Node& node, std::set<Node*>* before) {
  for (const Edge* edge : node.in_edges()) {
    if (edge->IsControlEdge() && edge->src()->IsOp()) before->insert(edge->src());
  }
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
  std::set<Node*> before;
  std::set<Node*> after;
  for (Node* member : members) {
    Node* const copy = body.Copy(*member);
    for (int i = 0; i < member->num_inputs(); ++i) {
      const Edge* edge = nullptr;
      TF_RETURN_IF_ERROR(member->input_edge(i, &edge));
      Node* const src = edge->src();
      if (IsFixed(*src) && src->assigned_device_name() == member->assigned_device_name()) {
        const auto [at, is_new] = fixed.try_emplace(src, nullptr);
        if (is_new) {
          at->second = body.Copy(*src);
          AddControlInputs(*src, &before);
        }
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
    AddControlInputs(*member, &before);
    for (const Edge* edge : member->out_edges()) {
      if (edge->IsControlEdge() && edge->dst()->IsOp()) after.insert(edge->dst());
    }
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
  TF_RETURN_IF_ERROR(
      NodeBuilder(NewNodeName(graph, "bundle/" + members.front()->type_string()), kBundleOp)
          .Input(inputs)
          .Attr("Tout", results)
          .Attr("f", called)
          .AssignedDevice(device)
          .Finalize(graph, &bundle));
  for (Node* node : before) graph->AddControlEdge(node, bundle);
  for (Node* node : after) graph->AddControlEdge(bundle, node);
  int output = 0;
  for (Node* member : members) {
    const std::vector<const Edge*> leaving(member->out_edges().begin(), member->out_edges().end());
    for (const Edge* edge : leaving) {
      if (!edge->IsControlEdge()) ReplaceInput(graph, edge, bundle, output + edge->src_output());
    }
    output += member->num_outputs();
    const std::string name = member->name();
    const bool is_stateful = member->op_def().is_stateful();
    graph->RemoveNode(member);
    if (!is_function || !is_stateful) continue;
    // A function refers by name to the operations that it waits for.
    Node* done = nullptr;
    NodeBuilder builder(name, "NoOp");
    builder.ControlInput(bundle).AssignedDevice(device);
    TF_RETURN_IF_ERROR(builder.Finalize(graph, &done));
  }
  for (const auto& [node, copy] : fixed) RemoveUnused(graph, node);
  RewriteCounts::Get().Count(kBundle, RewriteCounts::kApplied);
  return absl::OkStatus();
}

// After the rewrites that send less, and before tensor fusion.
class BundlePass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (!MayRewrite(options) || !IsAskedFor(kBundles, options)) return absl::OkStatus();
    Graph* const graph = options.graph->get();
    PlaceControlFlow(graph);
    DeviceNames devices;
    GraphOrder crossings(*graph);  // a lookup must not wait for tensors that arrive later
    GraphOrder members(*graph);    // nor for itself
    bool usable = false;
    TF_RETURN_IF_ERROR(
        crossings.Compute([&](const Edge& edge) { return devices.Cross(edge); }, &usable));
    TF_RETURN_IF_ERROR(
        members.Compute([](const Edge& edge) { return IsMember(*edge.src()); }, &usable));
    if (!usable) RewriteCounts::Get().Count(kBundle, kNoOrder);
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
    tensorflow::FixupSourceAndSinkEdges(graph);
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 75, BundlePass);

}  // namespace
}  // namespace tensorwire::plugin
