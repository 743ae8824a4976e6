#include "bundle_pass.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "graph_order.h"
#include "narrow_pass.h"
#include "rewrite_pass.h"
#include "rewrite_push.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

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
      kNarrowOp,
      kSumRowsOp,
      kWidenOp,
  };
  if (kinds->count(node.type_string()) == 0 || !NeverWaits(node)) return false;
  const auto is_ref = [](tensorflow::DataType type) { return tensorflow::IsRefType(type); };
  return std::none_of(node.input_types().begin(), node.input_types().end(), is_ref) &&
         std::none_of(node.output_types().begin(), node.output_types().end(), is_ref);
}

// A small constant, or the handle of a variable. The bundle keeps its value, and its attributes
// have a copy of the node.
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

// Replaces the members of one bundle.
class Bundler {
 public:
  Bundler(Graph* graph, bool is_function) : graph_(graph), is_function_(is_function) {}

  absl::Status Replace(const std::vector<Node*>& members);

 private:
  Graph* const graph_;
  const bool is_function_;
};

absl::Status Bundler::Replace(const std::vector<Node*>& members) {
  std::vector<Node*> fixed;
  std::map<int, size_t> fixed_at;  // by the node's id
  std::vector<NodeBuilder::NodeOut> inputs;
  std::vector<tensorflow::DataType> input_types;
  std::vector<tensorflow::DataType> output_types;
  std::set<Node*> before;
  std::set<Node*> after;
  std::vector<tensorflow::NodeDef> member_defs;
  for (Node* member : members) {
    tensorflow::NodeDef def = member->def();
    def.clear_input();
    for (int i = 0; i < member->num_inputs(); ++i) {
      const Edge* edge = nullptr;
      if (absl::Status s = member->input_edge(i, &edge); !s.ok()) return s;
      Node* const src = edge->src();
      if (IsFixed(*src) && src->assigned_device_name() == member->assigned_device_name()) {
        const auto [at, is_new] = fixed_at.try_emplace(src->id(), fixed.size());
        if (is_new) {
          fixed.push_back(src);
          AddControlInputs(*src, &before);
        }
        def.add_input(std::to_string(at->second));
        continue;
      }
      def.add_input(":" + std::to_string(inputs.size()));
      inputs.emplace_back(src, edge->src_output());
      // TensorFlow passes the value of a reference, as it does to the member.
      input_types.push_back(tensorflow::BaseType(src->output_type(edge->src_output())));
    }
    for (const tensorflow::DataType type : member->output_types()) output_types.push_back(type);
    AddControlInputs(*member, &before);
    for (const Edge* edge : member->out_edges()) {
      if (edge->IsControlEdge() && edge->dst()->IsOp()) after.insert(edge->dst());
    }
    member_defs.push_back(std::move(def));
  }
  std::vector<std::string> nodes;
  for (const Node* node : fixed) {
    tensorflow::NodeDef def = node->def();
    def.clear_input();  // drops control inputs; the bundle has them now
    nodes.push_back(def.SerializeAsString());
  }
  for (const tensorflow::NodeDef& def : member_defs) nodes.push_back(def.SerializeAsString());

  const std::string device = members.front()->assigned_device_name();
  NodeBuilder builder(
      graph_->NewName(kNodePrefix + ProcessWideName("bundle_" + members.front()->type_string())),
      kBundleOp);
  builder.Input(inputs)
      .Attr("Tin", input_types)
      .Attr("Tout", output_types)
      .Attr(kBundleNodesAttr, nodes)
      .Attr(kBundleFixedAttr, static_cast<int64_t>(fixed.size()));
  Node* bundle = nullptr;
  if (absl::Status s = AddNode(graph_, builder, device, &bundle); !s.ok()) return s;
  for (Node* node : before) graph_->AddControlEdge(node, bundle);
  for (Node* node : after) graph_->AddControlEdge(bundle, node);
  int output = 0;
  for (Node* member : members) {
    const std::vector<const Edge*> leaving(member->out_edges().begin(), member->out_edges().end());
    for (const Edge* edge : leaving) {
      if (!edge->IsControlEdge()) ReplaceInput(graph_, edge, bundle, output + edge->src_output());
    }
    output += member->num_outputs();
    const std::string name = member->name();
    const bool is_stateful = member->op_def().is_stateful();
    graph_->RemoveNode(member);
    if (!is_function_ || !is_stateful) continue;
    // A function refers by name to the operations that it waits for.
    Node* done = nullptr;
    NodeBuilder stand_in(name, "NoOp");
    stand_in.ControlInput(bundle);
    if (absl::Status s = AddNode(graph_, stand_in, device, &done); !s.ok()) return s;
  }
  for (Node* node : fixed) RemoveUnused(graph_, node);
  RewriteCounts::Get().Count(kBundle, RewriteCounts::kApplied);
  return absl::OkStatus();
}

// After the rewrites that send less, and before tensor fusion.
class BundlePass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (!MayRewrite(options) || !IsAskedFor(kBundles, options)) return absl::OkStatus();
    Graph* const graph = options.graph->get();
    PlaceControlFlow(graph);
    DeviceNames devices;
    GraphOrder crossings(*graph);  // a lookup must not wait for tensors that arrive later
    GraphOrder members(*graph);    // nor for itself
    bool usable = false;
    if (absl::Status s =
            crossings.Compute([&](const Edge& edge) { return devices.Cross(edge); }, &usable);
        !s.ok()) {
      return s;
    }
    if (absl::Status s =
            members.Compute([](const Edge& edge) { return IsMember(*edge.src()); }, &usable);
        !s.ok()) {
      return s;
    }
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
    Bundler bundler(graph, options.session_options == nullptr || options.is_function_graph);
    for (const auto& [key, group] : found) {
      if (group.size() < kLeastMembers) continue;
      if (absl::Status s = bundler.Replace(group); !s.ok()) return s;
    }
    tensorflow::FixupSourceAndSinkEdges(graph);
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 75, BundlePass);

}  // namespace
}  // namespace tensorwire::plugin
