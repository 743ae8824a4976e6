#pragma once

#include <map>
#include <utility>
#include <vector>

#include "rewrites/graph_rewrite.h"

namespace tensorwire::plugin {

// Rewrites that send less between tasks. None of them moves or copies an operation that reads or
// writes a variable, or changes what it waits for, and all leave results as they are, bit by bit.
// docs/decisions/rewrites.md.

// Repeated ids are sent once, and their rows come back once.
constexpr RewriteSwitch kUniquePull{"tensorwire_unique_pull", "unique_pull"};
// Gradients of equal ids are summed before they are sent.
constexpr RewriteSwitch kSummedPush{"tensorwire_summed_push", "summed_push"};

// The label of the kernel (attribute "_kernel" of a node of operation Unique) that takes the ids of
// a lookup, of any shape. Output 0 has each id once, in order of first occurrence. Output 1 has the
// shape of the ids and says which element of output 0 each of them is. If an id is no row that the
// graph declares, output 0 has the ids unchanged, in their shape, so that the lookup's error tells
// the user which one it is; it is none if the variable has grown.
constexpr char kUniqueIdsLabel[] = "tensorwire_unique_ids";
constexpr char kTableRowsAttr[] = "_tensorwire_table_rows";

// Our own operation: the rows that were looked up by output 0 of the above, in one dimension.
constexpr char kListRowsOp[] = "TensorwireListRows_import_tensorwire_tf_in_every_task";

// Ids that are sent once each.
struct PulledIds {
  Node* unique = nullptr;
  std::vector<Node*> lookups;  // that use these ids
};
// By the node and the output that the ids are from.
using PulledIdsOf = std::map<std::pair<int, int>, std::vector<PulledIds>>;

// If the source of `edge` only passes on or reshapes its input, the edge of that input; otherwise
// null.
const Edge* BeforeReshape(const Edge& edge);

// Rewrites each lookup in a table of another task whose rows go back to the task that the ids are
// from. The lookup itself stays where it is, with its control edges.
absl::Status PullUniqueRows(Graph* graph, PulledIdsOf* pulled);

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
