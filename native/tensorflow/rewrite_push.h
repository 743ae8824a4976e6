#pragma once

#include "absl/status/status.h"
#include "rewrite_pull.h"
#include "tensorflow/core/graph/graph.h"

namespace tensorwire::plugin {

// Moves the sums over equal ids that an optimizer makes of a sparse gradient, Unique and
// UnsortedSegmentSum, from the task of the variable to the task that the gradient is from. They are
// the same operations on the same tensors, so the sums are the same; what updates the variable
// stays where it is. An update of rows that were `pulled` gets their ids from there: they cross
// once.
absl::Status PushSums(tensorflow::Graph* graph, const PulledIdsOf& pulled);

}  // namespace tensorwire::plugin
