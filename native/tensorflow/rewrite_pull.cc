#include "rewrite_pull.h"

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rewrite_pass.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

constexpr char kPull[] = "unique_pull";
constexpr int kTableInput = 0;
constexpr int kIdsInput = 1;
constexpr int kAxisInput = 2;

// What passes on its first input, which may have another shape.
bool PassesOn(const Node& node, bool reshaped) {
  return node.IsIdentity() || node.IsEnter() || node.type_string() == "ReadVariableOp" ||
         (reshaped && (node.type_string() == "Reshape" || node.type_string() == "ExpandDims"));
}

// Where a tensor is from: the edge by which a node of another kind passes it on.
const Edge* Origin(const Edge* edge, bool reshaped) {
  while (PassesOn(*edge->src(), reshaped)) {
    const Edge* before = nullptr;
    if (!edge->src()->input_edge(0, &before).ok()) break;
    edge = before;
  }
  return edge;
}

int64_t FirstDimension(const tensorflow::PartialTensorShape& shape) {
  return shape.dims() > 0 ? shape.dim_size(0) : -1;
}

// Rows of the table that an edge brings, or the variable that has it; -1 where the graph does not
// say.
int64_t TableRows(const Edge* edge) {
  const Node& source = *Origin(edge, /*reshaped=*/false)->src();
  if (source.IsConstant()) {
    const tensorflow::TensorProto* value = nullptr;
    if (!GetNodeAttr(source.attrs(), "value", &value).ok()) return -1;
    return FirstDimension(tensorflow::PartialTensorShape(value->tensor_shape()));
  }
  if (source.IsArg()) {  // what a function was given: its caller has added the shape of a variable
    std::vector<tensorflow::PartialTensorShape> shapes;
    if (!GetNodeAttr(source.attrs(), "_handle_shapes", &shapes).ok() || shapes.empty()) return -1;
    return FirstDimension(shapes.front());
  }
  tensorflow::PartialTensorShape shape;
  if (!source.IsVariable() && source.type_string() != "VarHandleOp") return -1;
  return GetNodeAttr(source.attrs(), "shape", &shape).ok() ? FirstDimension(shape) : -1;
}

bool IsZero(const Node& node) {
  const tensorflow::TensorProto* proto = nullptr;
  tensorflow::Tensor value;
  if (!node.IsConstant() || !GetNodeAttr(node.attrs(), "value", &proto).ok() ||
      !value.FromProto(*proto) || value.NumElements() != 1) {
    return false;
  }
  if (value.dtype() == tensorflow::DT_INT32) return value.flat<int32_t>()(0) == 0;
  return value.dtype() == tensorflow::DT_INT64 && value.flat<int64_t>()(0) == 0;
}

bool IsLookup(const Node& node) {
  return node.type_string() == "ResourceGather" || node.type_string() == "GatherV2" ||
         node.type_string() == "Gather";
}

// Whether `lookup` takes whole rows of the table's first dimension.
bool TakesRows(const Node& lookup) {
  int64_t batch_dims = 0;
  if (GetNodeAttr(lookup.attrs(), "batch_dims", &batch_dims).ok() && batch_dims != 0) return false;
  if (lookup.type_string() != "GatherV2") return true;
  const Node* axis = nullptr;
  return lookup.input_node(kAxisInput, &axis).ok() && IsZero(*axis);
}

class Puller {
 public:
  explicit Puller(Graph* graph) : graph_(graph) {}

  absl::Status Rewrite(Node* lookup);

 private:
  // The edges by which the rows leave the task of the lookup. False where they are wanted anywhere
  // else than on `device`.
  static bool FindLeaving(const Node& from, const std::string& device,
                          std::vector<const Edge*>* leaving);
  // Why a lookup stays as it is, or null. `leaving`: as FindLeaving has it.
  const char* WhyNot(const Node& lookup, const Edge& ids, int64_t rows,
                     std::vector<const Edge*>* leaving);
  absl::Status UniqueIds(const Edge& ids, int64_t rows, Node** unique);
  absl::Status Expand(const Edge& leaving, Node* unique, Node** expanded);
  std::string NodeName(const char* name) const {
    return graph_->NewName(kNodePrefix + ProcessWideName(name));
  }

  Graph* const graph_;
  DeviceNames devices_;
  // By the node and the output that the ids are from, and the rows of the table.
  std::map<std::tuple<int, int, int64_t>, Node*> unique_;
  std::map<std::pair<int, int>, Node*> expanded_;  // by what yields the rows, and which output
};

bool Puller::FindLeaving(const Node& from, const std::string& device,
                         std::vector<const Edge*>* leaving) {
  for (const Edge* edge : from.out_edges()) {
    if (edge->IsControlEdge()) continue;
    const Node& to = *edge->dst();
    if (to.assigned_device_name() == device) {
      leaving->push_back(edge);
    } else if (!to.IsIdentity() || to.assigned_device_name() != from.assigned_device_name() ||
               !FindLeaving(to, device, leaving)) {
      return false;
    }
  }
  return true;
}

const char* Puller::WhyNot(const Node& lookup, const Edge& ids, int64_t rows,
                           std::vector<const Edge*>* leaving) {
  const std::string& device = ids.src()->assigned_device_name();
  if (!devices_.IsCpu(device) || !devices_.IsCpu(lookup.assigned_device_name())) {
    return "not on a CPU";
  }
  if (!TakesRows(lookup)) return "not whole rows of the first dimension";
  if (rows < 0) return "the number of rows is not known";
  const Node& source = *Origin(&ids, /*reshaped=*/true)->src();
  if (source.type_string() == "Unique" || source.type_string() == "UniqueV2") {
    return "the ids are unique already";
  }
  if (!FindLeaving(lookup, device, leaving)) return "rows are wanted elsewhere, too";
  if (leaving->empty()) return "no rows are wanted where the ids are from";
  return nullptr;
}

absl::Status Puller::Rewrite(Node* lookup) {
  const Edge* ids = nullptr;
  const Edge* table = nullptr;
  if (absl::Status s = lookup->input_edge(kIdsInput, &ids); !s.ok()) return s;
  if (absl::Status s = lookup->input_edge(kTableInput, &table); !s.ok()) return s;
  if (devices_.SameTask(ids->src()->assigned_device_name(), lookup->assigned_device_name())) {
    return absl::OkStatus();
  }
  const int64_t rows = TableRows(table);
  std::vector<const Edge*> leaving;
  const char* const why_not = WhyNot(*lookup, *ids, rows, &leaving);
  RewriteCounts::Get().Count(kPull, why_not == nullptr ? RewriteCounts::kApplied : why_not);
  if (why_not != nullptr) return absl::OkStatus();

  Node* unique = nullptr;
  if (absl::Status s = UniqueIds(*ids, rows, &unique); !s.ok()) return s;
  graph_->RemoveEdge(ids);
  graph_->AddEdge(unique, 0, lookup, kIdsInput);
  for (const Edge* edge : leaving) {
    Node* expanded = nullptr;
    if (absl::Status s = Expand(*edge, unique, &expanded); !s.ok()) return s;
    Node* const dst = edge->dst();
    const int input = edge->dst_input();
    graph_->RemoveEdge(edge);
    graph_->AddEdge(expanded, 0, dst, input);
  }
  return absl::OkStatus();
}

absl::Status Puller::UniqueIds(const Edge& ids, int64_t rows, Node** unique) {
  Node*& made = unique_[{ids.src()->id(), ids.src_output(), rows}];
  if (made == nullptr) {
    NodeBuilder builder(NodeName("unique_ids"), "Unique");
    builder.Input(ids.src(), ids.src_output())
        .Attr("out_idx", tensorflow::DT_INT32)
        .Attr("_kernel", kUniqueIdsLabel)
        .Attr(kTableRowsAttr, rows);
    if (absl::Status s = builder.Finalize(graph_, &made); !s.ok()) return s;
    made->set_assigned_device_name(ids.src()->assigned_device_name());
  }
  *unique = made;
  return absl::OkStatus();
}

absl::Status Puller::Expand(const Edge& leaving, Node* unique, Node** expanded) {
  Node*& made = expanded_[{leaving.src()->id(), leaving.src_output()}];
  if (made == nullptr) {
    NodeBuilder builder(NodeName("expand_rows"), "Gather");
    builder.Input(leaving.src(), leaving.src_output()).Input(unique, 1);
    if (absl::Status s = builder.Finalize(graph_, &made); !s.ok()) return s;
    made->set_assigned_device_name(unique->assigned_device_name());
  }
  *expanded = made;
  return absl::OkStatus();
}

}  // namespace

absl::Status PullUniqueRows(Graph* graph) {
  std::vector<Node*> lookups;
  for (Node* node : graph->op_nodes()) {
    if (IsLookup(*node)) lookups.push_back(node);
  }
  Puller puller(graph);
  for (Node* lookup : lookups) {
    if (absl::Status s = puller.Rewrite(lookup); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
