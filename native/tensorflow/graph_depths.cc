#include "graph_depths.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "tensorflow/core/platform/logging.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::ControlFlowInfo;
using tensorflow::Edge;
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

}  // namespace

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

// Marks every node after a Switch. A Merge after it is usually alive again, but not if the branch
// itself lies in a branch that is not taken.
void Depths::FindDead() {
  may_be_dead_.assign(graph_.num_node_ids(), false);
  std::vector<const Node*> dead;
  for (const Node* node : graph_.op_nodes()) {
    if (node->IsSwitch()) dead.push_back(node);
  }
  while (!dead.empty()) {
    const Node* const node = dead.back();
    dead.pop_back();
    if (may_be_dead_[node->id()]) continue;
    may_be_dead_[node->id()] = true;
    for (const Edge* edge : node->out_edges()) {
      if (edge->dst()->IsOp()) dead.push_back(edge->dst());
    }
  }
}

absl::Status Depths::Compute(bool* usable) {
  *usable = false;
  for (const Node* node : graph_.op_nodes()) {
    if (NameHas(*node, "Collective")) return absl::OkStatus();
  }
  std::vector<std::string> unreachable;
  if (absl::Status s = BuildControlFlowInfo(&graph_, &info_, &unreachable); !s.ok()) return s;
  NumberUnits();
  FindDead();
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
  if (done != units_) {
    LOG(WARNING) << "a graph in which two loops have the same name is not rewritten";
  }
  *usable = done == units_;
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
