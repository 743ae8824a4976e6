#pragma once

#include "absl/status/status.h"
#include "rewrite_pull.h"
#include "tensorflow/core/graph/graph.h"

namespace tensorwire::plugin {

// An operation of ours: sums of the rows of `values` that have equal `numbers`. It gets what
// numbers the ids of a pull (kUniqueIdsLabel), so a task need not number them a second time.
constexpr char kSumRowsOp[] = "TensorwireSumRows_import_tensorwire_tf_in_every_task";

// Moves the sums over equal ids that an optimizer makes of a sparse gradient, Unique and
// UnsortedSegmentSum, from the task of the variable to the task that the gradient is from. They are
// the same operations on the same tensors, so the sums are the same; what updates the variable
// stays where it is. A sum of gradients of rows that were `pulled` takes ids and numbers from
// there: ids cross once and are numbered once.
absl::Status PushSums(tensorflow::Graph* graph, const PulledIdsOf& pulled);

}  // namespace tensorwire::plugin
