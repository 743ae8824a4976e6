#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rewrites/graph_rewrite.h"
#include "tensorflow/core/graph/control_flow.h"

namespace tensorwire::plugin {

// Whether it is known that an operation, once its inputs are there, ends without waiting for
// anything else: for another operation, another step or the world outside. False for everything
// that is not known.
bool NeverWaits(const Node& node);

// Sorted sets of numbers. Equal sets have equal ids, and the empty set is 0.
class NumberSets {
 public:
  NumberSets() : sets_(1), ids_{{{}, 0}} {}
  int Of(int number) { return IdOf({number}); }
  int Union(int a, int b);
  int IdOf(std::vector<int> sorted);
  const std::vector<int>& operator[](int id) const { return sets_[id]; }

 private:
  std::vector<std::vector<int>> sets_;
  std::map<std::vector<int>, int> ids_;
  std::map<std::pair<int, int>, int> unions_;
};

// What may wait for what in a graph: the one analysis from which all rewrites take their order.
// docs/decisions/rewrites.md has the definitions and why they suffice.
//
// A *gate* may wait for something that no edge shows. Each node outside of loops has *gates*: those
// from which a path without another gate leads to it. Nodes may be made to wait for each other's
// inputs if they have the same gates and the same depth.
//
// The *depth* of a node is the largest number of counted edges on any path to it. All nodes of a
// loop have the same one, because a value that leaves a loop may have to wait for everything that
// enters it.
class GraphOrder {
 public:
  using Counts = std::function<bool(const Edge&)>;

  explicit GraphOrder(const Graph& graph) : graph_(graph) {}

  // `usable`: false for a graph with a cycle that is no loop, of which nothing is known.
  absl::Status Compute(const Counts& counts, bool* usable);

  bool OutsideLoops(const Edge& edge) const {
    const Node* from = FrameOf(edge.src(), /*outer=*/edge.src()->IsExit());
    const Node* to = FrameOf(edge.dst(), /*outer=*/edge.dst()->IsEnter());
    return from != nullptr && to != nullptr && from->IsSource() && to->IsSource();
  }
  bool OutsideLoops(const Node& node) const {
    return info_[node.id()].frame != nullptr && info_[node.id()].frame->IsSource();
  }
  // For nodes outside of loops, and the Exits of outermost loops.
  int DepthOf(const Node& node) const { return depth_[unit_[node.id()]]; }
  int GatesOf(const Node& node) const { return gates_[node.id()]; }
  // Whether a branch that is not taken leaves all of a node's outputs without a value.
  bool MayBeDead(const Node& node) const { return conditions_[node.id()] != 0; }
  // The conditions under which an edge has a value, all of which have to hold: a number that is the
  // same for the same conditions, and 0 for none.
  int ConditionsOf(const Edge& edge);

 private:
  // That a Switch takes one of its outputs.
  struct Condition {
    std::pair<int, int> predicate;  // node id and output
    int output = 0;
    int outputs = 0;  // of the Switch
  };

  const Node* FrameOf(const Node* node, bool outer) const {
    const tensorflow::ControlFlowInfo& info = info_[node->id()];
    return outer ? info.parent_frame : info.frame;
  }
  // The name of the outermost loop that a node is part of, or nothing.
  std::string OutermostLoop(const Node& node) const;
  void NumberUnits();
  // Each fills in the unit's nodes from their inputs.
  void Visit(const Node& node);
  void VisitLoop(const std::vector<const Node*>& nodes);
  int ConditionsOfMerge(const Node& merge);

  const Graph& graph_;
  std::vector<tensorflow::ControlFlowInfo> info_;
  std::vector<int> unit_;  // by node id: the node itself, or its loop
  std::vector<std::vector<const Node*>> units_;
  std::vector<int> depth_;  // by unit
  NumberSets sets_;
  std::vector<int> gates_;       // by node id: a set of node ids
  std::vector<int> conditions_;  // by node id: a set of numbers of `known_conditions_`
  std::vector<Condition> known_conditions_;
  std::map<std::pair<std::pair<int, int>, int>, int> condition_numbers_;
};

}  // namespace tensorwire::plugin
