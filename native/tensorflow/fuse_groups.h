#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/graph/graph.h"

namespace tensorwire::plugin {

// An output of a node that nodes on another device want.
struct Crossing {
  tensorflow::Node* src = nullptr;
  int output = 0;
  std::vector<const tensorflow::Edge*> edges;  // to them
};

// Tensors that can travel as one.
struct FuseGroup {
  std::string src_device;
  std::string dst_device;
  std::vector<Crossing> crossings;
  bool may_be_dead = false;  // one of them, because of a branch
};

// The groups of two and more tensors of a graph whose nodes have their devices.
//
// What travels as one must not wait for itself: no consumer of one tensor may lead to the producer
// of another. So a group has the tensors whose producers are of equal depth (Depths): a consumer is
// deeper than the producer, and nothing that follows is less deep.
//
// Only tensors in host memory that go from one task to another, outside of loops. `keep_floats`:
// leave those of type float alone.
absl::Status FindFuseGroups(const tensorflow::Graph& graph, bool keep_floats,
                            std::vector<FuseGroup>* groups);

}  // namespace tensorwire::plugin
