#include "fuse_groups.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "graph_rewrite.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/platform/logging.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::ControlFlowInfo;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

bool NameHas(const Node& node, const char* part) {
  return node.type_string().find(part) != std::string::npos;
}

// True if an operation waits for something that no edge of the graph brings.
bool WaitsOutside(const Node& node) {
  for (const char* part : {"Dequeue", "TakeGradient", "TakeMany", "Unstage", "Peek"}) {
    if (NameHas(node, part)) return true;
  }
  return false;
}

class Depths {
 public:
  Depths(const Graph& graph, DeviceNames* devices) : graph_(graph), devices_(devices) {}

  // False where the graph has a cycle that is no loop.
  absl::Status Compute(bool* acyclic);

  bool OutsideLoops(const Edge& edge) const {
    const Node* from = FrameOf(edge.src(), /*outer=*/edge.src()->IsExit());
    const Node* to = FrameOf(edge.dst(), /*outer=*/edge.dst()->IsEnter());
    return from != nullptr && to != nullptr && from->IsSource() && to->IsSource();
  }
  int Of(const Node& node) const { return depth_[unit_[node.id()]]; }
  bool CrossesTasks(const Edge& edge) const {
    return edge.src()->IsOp() && edge.dst()->IsOp() &&
           !devices_->SameTask(edge.src()->assigned_device_name(),
                               edge.dst()->assigned_device_name());
  }

 private:
  const Node* FrameOf(const Node* node, bool outer) const {
    const ControlFlowInfo& info = info_[node->id()];
    return outer ? info.parent_frame : info.frame;
  }
  // The name of the outermost loop that a node is part of, or nothing.
  std::string OutermostLoop(const Node& node) const;
  void NumberUnits();

  const Graph& graph_;
  DeviceNames* const devices_;
  std::vector<ControlFlowInfo> info_;
  std::vector<int> unit_;  // of a node's id: the node itself, or its loop
  int units_ = 0;
  std::vector<int> depth_;  // of a unit
};

std::string Depths::OutermostLoop(const Node& node) const {
  const Node* outermost = nullptr;
  const Node* frame = info_[node.id()].frame;
  while (frame != nullptr && !frame->IsSource()) {
    outermost = frame;
    frame = info_[frame->id()].parent_frame;
  }
  return outermost == nullptr ? std::string() : info_[outermost->id()].frame_name;
}

void Depths::NumberUnits() {
  unit_.assign(graph_.num_node_ids(), 0);
  std::unordered_map<std::string, int> loops;
  for (const Node* node : graph_.nodes()) {
    const std::string loop = OutermostLoop(*node);
    if (loop.empty()) {
      unit_[node->id()] = units_++;
      continue;
    }
    const auto [at, is_new] = loops.try_emplace(loop, units_);
    if (is_new) ++units_;
    unit_[node->id()] = at->second;
  }
}

absl::Status Depths::Compute(bool* acyclic) {
  std::vector<std::string> unreachable;
  if (absl::Status s = BuildControlFlowInfo(&graph_, &info_, &unreachable); !s.ok()) return s;
  NumberUnits();
  depth_.assign(units_, 0);
  std::vector<std::vector<const Edge*>> leaving(units_);
  std::vector<int> missing(units_, 0);
  for (const Edge* edge : graph_.edges()) {
    const int from = unit_[edge->src()->id()];
    const int to = unit_[edge->dst()->id()];
    if (from == to) continue;
    leaving[from].push_back(edge);
    ++missing[to];
  }
  std::vector<int> ready;
  for (int unit = 0; unit < units_; ++unit) {
    if (missing[unit] == 0) ready.push_back(unit);
  }
  int done = 0;
  while (!ready.empty()) {
    const int unit = ready.back();
    ready.pop_back();
    ++done;
    for (const Edge* edge : leaving[unit]) {
      const int to = unit_[edge->dst()->id()];
      const int deeper = (CrossesTasks(*edge) ? 1 : 0) + (WaitsOutside(*edge->dst()) ? 1 : 0);
      depth_[to] = std::max(depth_[to], depth_[unit] + deeper);
      if (--missing[to] == 0) ready.push_back(to);
    }
  }
  *acyclic = done == units_;
  return absl::OkStatus();
}

}  // namespace

absl::Status FindFuseGroups(const Graph& graph, bool keep_floats, std::vector<FuseGroup>* groups) {
  for (const Node* node : graph.op_nodes()) {
    if (NameHas(*node, "Collective")) return absl::OkStatus();
  }
  DeviceNames devices;
  Depths depths(graph, &devices);
  bool acyclic = false;
  if (absl::Status s = depths.Compute(&acyclic); !s.ok()) return s;
  if (!acyclic) {
    LOG(WARNING) << "tensor_fuse is not applied to a graph in which two loops have one name";
    return absl::OkStatus();
  }
  // Ordered, so that a graph is always rewritten in the same way.
  using GroupKey = std::tuple<std::string, std::string, int>;
  std::map<GroupKey, std::map<std::pair<int, int>, Crossing>> found;
  for (const Edge* edge : graph.edges()) {
    if (edge->IsControlEdge() || !depths.CrossesTasks(*edge) || !depths.OutsideLoops(*edge)) {
      continue;
    }
    Node* const src = edge->src();
    const tensorflow::DataType dtype = src->output_type(edge->src_output());
    if (tensorflow::IsRefType(dtype) || (keep_floats && dtype == tensorflow::DT_FLOAT)) continue;
    const std::string& from = src->assigned_device_name();
    const std::string& to = edge->dst()->assigned_device_name();
    if (!devices.IsCpu(from) || !devices.IsCpu(to)) continue;
    Crossing& crossing = found[{from, to, depths.Of(*src)}][{src->id(), edge->src_output()}];
    crossing.src = src;
    crossing.output = edge->src_output();
    crossing.edges.push_back(edge);
  }
  for (auto& [key, crossings] : found) {
    if (crossings.size() < 2) continue;
    FuseGroup group{std::get<0>(key), std::get<1>(key), {}};
    for (auto& [output, crossing] : crossings) group.crossings.push_back(std::move(crossing));
    groups->push_back(std::move(group));
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
