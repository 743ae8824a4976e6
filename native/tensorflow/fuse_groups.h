#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/graph/graph.h"

namespace tensorwire::plugin {

// An output of a node that nodes on another device consume.
struct Crossing {
  tensorflow::Node* src = nullptr;
  int output = 0;
  std::vector<const tensorflow::Edge*> edges;  // to the consumers
};

// Tensors that can be fused.
struct FuseGroup {
  std::string src_device;
  std::string dst_device;
  std::vector<Crossing> crossings;
  bool may_be_dead = false;  // one of them, because of a branch
};

// Finds the groups of two and more tensors in a graph whose nodes have their devices.
//
// A fused tensor must not wait for itself: no path may lead from a consumer of one tensor to the
// producer of another. So a group has tensors whose producers are of equal depth (Depths). A
// consumer is deeper than its producer, and no node after it is less deep.
//
// Only tensors in host memory that go from one task to another, outside of loops. `keep_floats`:
// tensors of type float are not fused.
absl::Status FindFuseGroups(const tensorflow::Graph& graph, bool keep_floats,
                            std::vector<FuseGroup>* groups);

}  // namespace tensorwire::plugin
