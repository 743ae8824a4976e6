#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/graph/graph.h"

namespace tensorwire::plugin {

// The label of the kernel (attribute "_kernel" of a node of operation Unique) that takes the ids of
// a lookup, of any shape: output 0 has each of them once, in order of first occurrence, and output
// 1, shaped as the ids, says which of these each was. If an id is no row of the table, output 0 has
// the ids as they are: the lookup's error then tells the user where it is.
constexpr char kUniqueIdsLabel[] = "tensorwire_unique_ids";
constexpr char kTableRowsAttr[] = "_tensorwire_table_rows";

// Ids that cross once each.
struct PulledIds {
  tensorflow::Node* unique = nullptr;
  std::vector<tensorflow::Node*> lookups;  // that get them
};
// By the node and the output that the ids are from.
using PulledIdsOf = std::map<std::pair<int, int>, std::vector<PulledIds>>;

// What brings the tensor of `edge` to it, whose elements it may only have reshaped: null where that
// is another operation.
const tensorflow::Edge* BeforeReshape(const tensorflow::Edge& edge);

// Rewrites each lookup in a table of another task whose rows go back to the task that the ids are
// from. The lookup itself stays where it is, with its control edges.
absl::Status PullUniqueRows(tensorflow::Graph* graph, PulledIdsOf* pulled);

}  // namespace tensorwire::plugin
