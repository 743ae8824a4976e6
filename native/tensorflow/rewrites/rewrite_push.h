#pragma once

#include "rewrites/rewrite_pull.h"

namespace tensorwire::plugin {

// Our own operation: sums the rows of `values` that have equal `numbers`. It takes the numbers of a
// pull (kUniqueIdsLabel), so a task need not number the ids a second time.
constexpr char kSumRowsOp[] = "TensorwireSumRows_import_tensorwire_tf_in_every_task";

// Our own operation: has each of the ids that were pulled once, in order of first occurrence. They
// have been sent so, unless one is no row that the graph declares.
constexpr char kPulledIdsOp[] = "TensorwirePulledIds_import_tensorwire_tf_in_every_task";

// An optimizer sums the rows of a sparse gradient over equal ids (Unique and UnsortedSegmentSum).
// This moves the sums from the task of the variable to the task of the gradient. They are the same
// operations on the same tensors, so the sums are the same. The update of the variable stays where
// it is. A sum of gradients of rows that were `pulled` uses the ids and numbers of the pull, so ids
// cross once and are numbered once.
absl::Status PushSums(Graph* graph, const PulledIdsOf& pulled);

}  // namespace tensorwire::plugin
