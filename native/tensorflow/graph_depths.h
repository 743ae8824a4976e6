#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "graph_rewrite.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"

namespace tensorwire::plugin {

// The *depth* of a node: the largest number of edges from task to task on any path to it. All nodes
// of a loop have the same depth, because a value that leaves a loop may have to wait for everything
// that enters it. An operation may wait for something outside of the graph, such as an element of a
// queue, that another part of the same step brings. Such an operation is one deeper than its
// inputs.
class Depths {
 public:
  Depths(const tensorflow::Graph& graph, DeviceNames* devices) : graph_(graph), devices_(devices) {}

  // `usable`: false for a graph with collective operations, which wait for each other without
  // edges, and for one with a cycle that is no loop.
  absl::Status Compute(bool* usable);

  bool OutsideLoops(const tensorflow::Edge& edge) const {
    const tensorflow::Node* from = FrameOf(edge.src(), /*outer=*/edge.src()->IsExit());
    const tensorflow::Node* to = FrameOf(edge.dst(), /*outer=*/edge.dst()->IsEnter());
    return from != nullptr && to != nullptr && from->IsSource() && to->IsSource();
  }
  bool OutsideLoops(const tensorflow::Node& node) const {
    return info_[node.id()].frame != nullptr && info_[node.id()].frame->IsSource();
  }
  int Of(const tensorflow::Node& node) const { return depth_[unit_[node.id()]]; }
  // True if a branch that is not taken leaves the node without a value.
  bool MayBeDead(const tensorflow::Node& node) const { return may_be_dead_[node.id()]; }
  bool CrossesTasks(const tensorflow::Edge& edge) const {
    return edge.src()->IsOp() && edge.dst()->IsOp() &&
           !devices_->SameTask(edge.src()->assigned_device_name(),
                               edge.dst()->assigned_device_name());
  }

 private:
  const tensorflow::Node* FrameOf(const tensorflow::Node* node, bool outer) const {
    const tensorflow::ControlFlowInfo& info = info_[node->id()];
    return outer ? info.parent_frame : info.frame;
  }
  // The name of the outermost loop that a node is part of, or nothing.
  std::string OutermostLoop(const tensorflow::Node& node) const;
  void NumberUnits();
  void FindDead();

  const tensorflow::Graph& graph_;
  DeviceNames* const devices_;
  std::vector<tensorflow::ControlFlowInfo> info_;
  std::vector<int> unit_;  // by node id: the node itself, or its loop
  int units_ = 0;
  std::vector<int> depth_;  // by unit
  std::vector<bool> may_be_dead_;
};

}  // namespace tensorwire::plugin
