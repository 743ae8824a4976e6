#pragma once

#include <map>
#include <utility>
#include <vector>

#include "rewrites/graph_rewrite.h"

namespace tensorwire::plugin {

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

}  // namespace tensorwire::plugin
