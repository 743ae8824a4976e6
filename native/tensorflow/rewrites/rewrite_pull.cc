#include <cstdint>
#include <string>

#include "rewrites/rewrite_pass.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tensorwire::plugin {
namespace {

constexpr int kTableInput = 0;
constexpr int kIdsInput = 1;
constexpr int kAxisInput = 2;

bool AreUnique(const Edge& ids) {
  const Edge* from = &ids;
  while (const Edge* before = BeforeReshape(*from)) from = before;
  // Unique, UniqueV2, UniqueWithCounts, …
  return from->src_output() == 0 && from->src()->type_string().rfind("Unique", 0) == 0;
}

int64_t FirstDimension(const tensorflow::PartialTensorShape& shape) {
  return shape.dims() > 0 ? shape.dim_size(0) : -1;
}

// The number of rows of the table, or of its variable, at the origin of `edge`; -1 if the graph
// does not say.
int64_t TableRows(const Edge* edge) {
  const Node& source = *Origin(edge)->src();
  if (source.IsConstant()) {
    const tensorflow::TensorProto* value = nullptr;
    if (!GetNodeAttr(source.attrs(), "value", &value).ok()) return -1;
    return FirstDimension(tensorflow::PartialTensorShape(value->tensor_shape()));
  }
  return FirstDimension(VariableShape(source));
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
  Puller(Graph* graph, PulledIdsOf* pulled) : graph_(graph), pulled_(pulled) {}

  absl::Status Rewrite(Node* lookup) {
    const Edge* ids = nullptr;
    const Edge* table = nullptr;
    TF_RETURN_IF_ERROR(lookup->input_edge(kIdsInput, &ids));
    TF_RETURN_IF_ERROR(lookup->input_edge(kTableInput, &table));
    if (devices_.SameTask(ids->src()->assigned_device_name(), lookup->assigned_device_name())) {
      return absl::OkStatus();
    }
    const int64_t rows = TableRows(table);
    std::vector<const Edge*> leaving;
    const char* const why_not = WhyNot(*lookup, *ids, rows, &leaving);
    RewriteCounts::Get().Count(kUniquePull, why_not);
    if (why_not != nullptr) return absl::OkStatus();

    PulledIds* pulled = nullptr;
    TF_RETURN_IF_ERROR(UniqueIds(*ids, rows, &pulled));
    ReplaceInput(graph_, ids, pulled->unique, 0);
    pulled->lookups.push_back(lookup);
    for (const Edge* edge : leaving) {
      Node* expanded = nullptr;
      TF_RETURN_IF_ERROR(Expand(*edge, pulled->unique, &expanded));
      ReplaceInput(graph_, edge, expanded, 0);
    }
    return absl::OkStatus();
  }

 private:
  // Finds the edges by which the rows leave the task of the lookup. False if rows are consumed
  // anywhere but on `device`.
  static bool FindLeaving(const Node& from, const std::string& device,
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

  // Why a lookup is not rewritten, or null. `leaving`: as in FindLeaving.
  const char* WhyNot(const Node& lookup, const Edge& ids, int64_t rows,
                     std::vector<const Edge*>* leaving) {
    const std::string& device = ids.src()->assigned_device_name();
    if (!devices_.IsCpu(device) || !devices_.IsCpu(lookup.assigned_device_name())) {
      return "not on a CPU";
    }
    const tensorflow::DataType type = ids.src()->output_type(ids.src_output());
    if (type != tensorflow::DT_INT32 && type != tensorflow::DT_INT64) {
      return "ids of another type than int32 and int64";
    }
    if (!TakesRows(lookup)) return "not whole rows of the first dimension";
    if (rows < 0) return "the number of rows is not known";
    if (AreUnique(ids)) return "the ids are unique already";
    if (!FindLeaving(lookup, device, leaving)) return "rows are wanted elsewhere, too";
    if (leaving->empty()) return "no rows are wanted where the ids are from";
    return nullptr;
  }

  absl::Status UniqueIds(const Edge& ids, int64_t rows, PulledIds** pulled) {
    std::vector<PulledIds>& of_ids = (*pulled_)[{ids.src()->id(), ids.src_output()}];
    for (PulledIds& one : of_ids) {
      int64_t its_rows = 0;
      TF_RETURN_IF_ERROR(GetNodeAttr(one.unique->attrs(), kTableRowsAttr, &its_rows));
      if (its_rows != rows) continue;
      *pulled = &one;
      return absl::OkStatus();
    }
    *pulled = &of_ids.emplace_back();
    return NewNode(graph_, "unique_ids", "Unique", ids.src()->assigned_device_name())
        .Input(ids.src(), ids.src_output())
        .Attr("out_idx", tensorflow::DT_INT32)
        .Attr("_kernel", kUniqueIdsLabel)
        .Attr(kTableRowsAttr, rows)
        .Finalize(graph_, &(*pulled)->unique);
  }

  absl::Status Expand(const Edge& leaving, Node* unique, Node** expanded) {
    Node*& made = expanded_[{leaving.src()->id(), leaving.src_output()}];
    if (made == nullptr) {
      const std::string& device = unique->assigned_device_name();
      Node* list = nullptr;
      TF_RETURN_IF_ERROR(NewNode(graph_, "list_rows", kListRowsOp, device)
                             .Input(leaving.src(), leaving.src_output())
                             .Input(unique, 0)
                             .Finalize(graph_, &list));
      TF_RETURN_IF_ERROR(NewNode(graph_, "expand_rows", "Gather", device)
                             .Input(list, 0)
                             .Input(unique, 1)
                             .Finalize(graph_, &made));
    }
    *expanded = made;
    return absl::OkStatus();
  }

  Graph* const graph_;
  PulledIdsOf* const pulled_;
  DeviceNames devices_;
  std::map<std::pair<int, int>, Node*> expanded_;  // by node and output of the rows
};

}  // namespace

const Edge* BeforeReshape(const Edge& edge) {
  const std::string& operation = edge.src()->type_string();
  if (!edge.src()->IsIdentity() && operation != "Reshape" && operation != "ExpandDims") {
    return nullptr;
  }
  const Edge* before = nullptr;
  return edge.src()->input_edge(0, &before).ok() ? before : nullptr;
}

absl::Status PullUniqueRows(Graph* graph, PulledIdsOf* pulled) {
  std::vector<Node*> lookups;
  for (Node* node : graph->op_nodes()) {
    if (IsLookup(*node)) lookups.push_back(node);
  }
  Puller puller(graph, pulled);
  for (Node* lookup : lookups) {
    TF_RETURN_IF_ERROR(puller.Rewrite(lookup));
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
