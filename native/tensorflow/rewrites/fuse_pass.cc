#include "rewrites/fuse_pass.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rewrites/graph_order.h"
#include "rewrites/rewrite_pass.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/algorithm.h"

namespace tensorwire::plugin {
namespace {

constexpr char kFuse[] = "tensor_fuse";

// An output of a node that nodes on another device consume.
struct FusedOutput {
  Node* src = nullptr;
  int output = 0;
  std::vector<const Edge*> edges;  // to the consumers
};

// The devices at both ends, the depth and gates of the producers, and the conditions under which
// the tensors have values: all of them, or none.
using GroupKey = std::tuple<std::string, std::string, int, int, int>;
// Ordered, so that a graph is always rewritten in the same way.
using Groups = std::map<GroupKey, std::map<std::pair<int, int>, FusedOutput>>;

// Finds the tensors that can be fused: those in host memory that go from one task to another,
// outside of loops. `keep_floats`: tensors of type float are not fused.
absl::Status FindGroups(const Graph& graph, bool keep_floats, Groups* groups) {
  DeviceNames devices;
  GraphOrder order(graph);
  const auto crosses = [&devices](const Edge& edge) { return devices.Cross(edge); };
  bool usable = false;
  TF_RETURN_IF_ERROR(order.Compute(crosses, &usable));
  if (!usable) RewriteCounts::Get().Count(kFuse, kNoOrder);
  if (!usable) return absl::OkStatus();
  for (const Edge* edge : graph.edges()) {
    if (edge->IsControlEdge() || !crosses(*edge) || !order.OutsideLoops(*edge)) continue;
    Node* const src = edge->src();
    const tensorflow::DataType dtype = src->output_type(edge->src_output());
    if (tensorflow::IsRefType(dtype) || (keep_floats && dtype == tensorflow::DT_FLOAT)) continue;
    const std::string& from = src->assigned_device_name();
    const std::string& to = edge->dst()->assigned_device_name();
    if (!devices.IsCpu(from) || !devices.IsCpu(to)) continue;
    FusedOutput& crossing = (*groups)[{from, to, order.DepthOf(*src), order.GatesOf(*src),
                                       order.ConditionsOf(*edge)}][{src->id(), edge->src_output()}];
    crossing.src = src;
    crossing.output = edge->src_output();
    crossing.edges.push_back(edge);
  }
  return absl::OkStatus();
}

// Lets the tensors of one group cross as one.
absl::Status FuseGroup(Graph* graph, const std::string& from, const std::string& to,
                       const std::map<std::pair<int, int>, FusedOutput>& crossings) {
  std::vector<NodeBuilder::NodeOut> sent;
  std::vector<tensorflow::DataType> types;
  for (const auto& [output, crossing] : crossings) {
    sent.emplace_back(crossing.src, crossing.output);
    types.push_back(crossing.src->output_type(crossing.output));
  }
  const std::string name = kNodePrefix + graph->NewName(ProcessWideName(kFuse));
  Node* fuse = nullptr;
  NodeBuilder fuser(name + "/fuse", kFuseOp);
  fuser.Input(sent).Attr("source", from).Attr("target", to).AssignedDevice(from);
  TF_RETURN_IF_ERROR(fuser.Finalize(graph, &fuse));
  Node* split = nullptr;
  NodeBuilder splitter(name + "/split", kSplitOp);
  splitter.Input(fuse).Attr("types", types).AssignedDevice(to);
  TF_RETURN_IF_ERROR(splitter.Finalize(graph, &split));
  int index = 0;
  for (const auto& [output, crossing] : crossings) {
    for (const Edge* edge : crossing.edges) ReplaceInput(graph, edge, split, index);
    ++index;
  }
  RewriteCounts::Get().Count(kFuse, RewriteCounts::kApplied);
  return absl::OkStatus();
}

// Runs on the master for each graph that is executed, and for functions whose nodes are on several
// devices. Runs when every node has its device, and before the graph is partitioned.
class TensorFusePass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (!MayRewrite(options) || !IsAskedFor(kTensorFuse, options)) return absl::OkStatus();
    Graph* const graph = options.graph->get();
    PlaceControlFlow(graph);
    Groups groups;
    TF_RETURN_IF_ERROR(FindGroups(*graph, CastsFloats(options), &groups));
    for (const auto& [key, crossings] : groups) {
      if (crossings.size() < 2) continue;
      const auto& [from, to, depth, gates, conditions] = key;
      TF_RETURN_IF_ERROR(FuseGroup(graph, from, to, crossings));
    }
    tensorflow::FixupSourceAndSinkEdges(graph);
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 100,
                      TensorFusePass);

}  // namespace
}  // namespace tensorwire::plugin
