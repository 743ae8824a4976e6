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
};

// The groups of two and more tensors of a graph whose nodes have their devices.
//
// What travels as one must not wait for itself: no consumer of one tensor may lead to the producer
// of another. So a group has the tensors whose producers are of equal *depth*: the largest number
// of edges from task to task on any way to a node. A consumer is deeper than the producer, and
// nothing that follows is less deep. All nodes of a loop are of one depth, because what leaves a
// loop may have to wait for everything that enters it. What an operation waits for outside of the
// graph, an element of a queue or the like, another part of the same step may bring: such an
// operation is one deeper than its inputs. A graph with collective operations has no groups: each
// of them waits for others that no edge leads from.
//
// Only tensors in host memory that go from one task to another, outside of loops. `keep_floats`:
// leave those of type float alone.
absl::Status FindFuseGroups(const tensorflow::Graph& graph, bool keep_floats,
                            std::vector<FuseGroup>* groups);

}  // namespace tensorwire::plugin
