#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rewrites/rewrite_pass.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/algorithm.h"

namespace tensorwire::plugin {
namespace {

constexpr int kIdsOutput = 0;      // of Unique
constexpr int kNumbersOutput = 1;  // of Unique
constexpr int kValuesInput = 0;    // of UnsortedSegmentSum
constexpr int kNumbersInput = 1;
constexpr int kCountInput = 2;

// Whether `node` is a constant that waits for nothing; a copy of it may be on any device.
bool IsFreeConstant(const Node& node) {
  return node.IsConstant() && std::none_of(node.in_edges().begin(), node.in_edges().end(),
                                           [](const Edge* edge) { return edge->src()->IsOp(); });
}

bool IsSum(const Node& node) { return node.type_string() == "UnsortedSegmentSum"; }

// One Unique, the sums that use it, and the nodes that compute their number of rows from it.
class PushedSums {
 public:
  PushedSums(Node* unique, std::string to, DeviceNames* devices)
      : unique_(unique), to_(std::move(to)), devices_(devices) {}

  // Why they are not moved, or null.
  const char* WhyNot() {
    if (!devices_->IsCpu(to_) || !devices_->IsCpu(unique_->assigned_device_name())) {
      return "not on a CPU";
    }
    if (!FindSums()) return "no sum over equal ids of values from the same task";
    const std::set<Node*> sums = moved_;
    for (Node* sum : sums) {
      if (sum == unique_) continue;
      const Edge* count = nullptr;
      if (!sum->input_edge(kCountInput, &count).ok() || !FindCount(count->src())) {
        return "the number of sums depends on more than the ids";
      }
    }
    for (const Node* node : moved_) {
      for (const Edge* edge : node->in_edges()) {
        if (!MayCross(*edge)) return "it waits for what is on the other task";
      }
      for (const Edge* edge : node->out_edges()) {
        if (!MayCross(*edge)) return "what is not a sum would cross, too";
      }
    }
    return nullptr;
  }

  void Move(Graph* graph, std::map<std::pair<int, std::string>, Node*>* constants) {
    std::set<Node*> left;
    for (const Edge* edge : from_constants_) {
      left.insert(edge->src());
      Node*& copy = (*constants)[{edge->src()->id(), to_}];
      if (copy == nullptr) {
        copy = graph->CopyNode(edge->src());
        copy->set_name(graph->NewName(ProcessWideName(edge->src()->name())));
        copy->set_assigned_device_name(to_);
      }
      ReplaceInput(graph, edge, copy, 0);
    }
    for (Node* node : left) RemoveUnused(graph, node);
    for (Node* node : moved_) node->set_assigned_device_name(to_);
  }

  // The pulled ids that are the same as these ids, or null.
  const PulledIds* FindPulled(const Graph& graph, const PulledIdsOf& pulled) const {
    const Edge* ids = nullptr;
    if (!unique_->input_edge(0, &ids).ok()) return nullptr;
    for (; ids != nullptr; ids = BeforeReshape(*ids)) {
      const auto at = pulled.find({ids->src()->id(), ids->src_output()});
      if (at == pulled.end()) continue;
      for (const PulledIds& one : at->second) {
        if (WaitForLookup(graph, one)) return &one;
      }
    }
    return nullptr;
  }

  // Makes the update use the ids of a lookup, which are the same ones in the same order.
  absl::Status ShareIds(Graph* graph, Node* pulled_ids) const {
    int64_t rows = 0;
    TF_RETURN_IF_ERROR(GetNodeAttr(pulled_ids->attrs(), kTableRowsAttr, &rows));
    Node* unique = nullptr;
    TF_RETURN_IF_ERROR(NewNode(graph, "pulled_ids", kPulledIdsOp, unique_->assigned_device_name())
                           .Input(pulled_ids, kIdsOutput)
                           .Attr("rows", rows)
                           .Finalize(graph, &unique));
    const std::vector<const Edge*> edges(unique_->out_edges().begin(), unique_->out_edges().end());
    for (const Edge* edge : edges) {
      const bool is_taken = edge->src_output() == kIdsOutput && edge->dst()->IsOp();
      if (is_taken && !IsMoved(edge->dst())) ReplaceInput(graph, edge, unique, 0);
    }
    RemoveUnused(graph, unique);
    return absl::OkStatus();
  }

  // Whether SumByNumbers is possible: nothing else waits for the nodes that it removes.
  bool CanSumByNumbers() const {
    for (const Node* node : moved_) {
      if (IsSum(*node)) {
        const tensorflow::DataType type = node->output_type(0);
        if (type != tensorflow::DT_FLOAT && type != tensorflow::DT_DOUBLE) return false;
        continue;
      }
      for (const Edge* edge : node->out_edges()) {
        if (edge->IsControlEdge() && edge->dst()->IsOp() && !IsMoved(edge->dst())) return false;
      }
      for (const Edge* edge : node->in_edges()) {
        if (edge->IsControlEdge() && edge->src()->IsOp() && !IsMoved(edge->src())) return false;
      }
    }
    return true;
  }

  // Called instead of Move, after ShareIds: makes sums that use the numbers of a pull and need no
  // Unique.
  absl::Status SumByNumbers(Graph* graph, Node* pulled_ids) {
    for (Node* sum : moved_) {
      if (!IsSum(*sum)) continue;
      const Edge* values = nullptr;
      TF_RETURN_IF_ERROR(sum->input_edge(kValuesInput, &values));
      Node* by_numbers = nullptr;
      TF_RETURN_IF_ERROR(NewNode(graph, "sum_rows", kSumRowsOp, to_)
                             .Input(values->src(), values->src_output())
                             .Input(pulled_ids, kNumbersOutput)
                             .Finalize(graph, &by_numbers));
      CopyControlInputs(graph, *sum, by_numbers);
      MoveOutputs(graph, *sum, by_numbers);
    }
    std::set<Node*> left;
    for (const Edge* edge : from_constants_) left.insert(edge->src());
    for (Node* node : moved_) graph->RemoveNode(node);
    for (Node* node : left) RemoveUnused(graph, node);
    return absl::OkStatus();
  }

 private:
  bool FindSums() {
    moved_.insert(unique_);
    bool found = false;
    for (const Edge* edge : unique_->out_edges()) {
      if (edge->IsControlEdge() || edge->src_output() != kNumbersOutput) continue;
      Node* const sum = edge->dst();
      const Edge* values = nullptr;
      if (!IsSum(*sum) || edge->dst_input() != kNumbersInput ||
          sum->assigned_device_name() != unique_->assigned_device_name() ||
          !sum->input_edge(kValuesInput, &values).ok() ||
          values->src()->assigned_device_name() != to_) {
        return false;
      }
      moved_.insert(sum);
      found = true;
    }
    return found;
  }

  // Adds the nodes that compute the number of rows; false if it depends on anything but the ids.
  bool FindCount(Node* node) {
    if (IsMoved(node)) return true;
    if (node->op_def().is_stateful() || node->IsArg() ||
        node->assigned_device_name() != unique_->assigned_device_name()) {
      return false;
    }
    bool depends = false;
    moved_.insert(node);
    for (const Edge* edge : node->in_edges()) {
      if (edge->IsControlEdge()) continue;
      if (IsFreeConstant(*edge->src())) {
        from_constants_.insert(edge);
      } else if (!FindCount(edge->src())) {
        return false;
      }
      depends = depends || !edge->src()->IsConstant();
    }
    return depends;
  }

  // Whether each sum waits for a lookup of `pulled`. If an id is no row, its lookup fails and there
  // is no update, so it does not matter that the ids differ then.
  bool WaitForLookup(const Graph& graph, const PulledIds& pulled) const {
    const std::set<const Node*> lookups(pulled.lookups.begin(), pulled.lookups.end());
    for (const Node* sum : moved_) {
      if (!IsSum(*sum)) continue;
      bool found = false;
      // A Merge runs as soon as one of its inputs has arrived.
      const auto waits = [&found](const Edge& edge) { return !found && !edge.dst()->IsMerge(); };
      const auto look = [&](const Node* node) { found = found || lookups.count(node) != 0; };
      tensorflow::ReverseDFSFrom(graph, absl::Span<const Node* const>({sum}), look, nullptr, {},
                                 waits);
      if (!found) return false;
    }
    return true;
  }

  bool IsMoved(Node* node) const { return moved_.count(node) != 0; }

  // Whether an edge at a moved node stays within a task, or may cross.
  bool MayCross(const Edge& edge) const {
    Node* const other = IsMoved(edge.src()) ? edge.dst() : edge.src();
    if (!other->IsOp() || IsMoved(other)) return true;
    if (edge.IsControlEdge()) return other->assigned_device_name() == to_;
    if (IsMoved(edge.dst())) {
      return other->assigned_device_name() == to_ || from_constants_.count(&edge) != 0;
    }
    // What the update takes: the sums and their ids.
    return IsSum(*edge.src()) || (edge.src() == unique_ && edge.src_output() == kIdsOutput);
  }

  Node* const unique_;
  const std::string to_;
  DeviceNames* const devices_;
  std::set<Node*> moved_;
  std::set<const Edge*> from_constants_;
};

}  // namespace

absl::Status PushSums(Graph* graph, const PulledIdsOf& pulled) {
  std::vector<Node*> uniques;
  for (Node* node : graph->op_nodes()) {
    if (node->type_string() == "Unique") uniques.push_back(node);
  }
  DeviceNames devices;
  std::map<std::pair<int, std::string>, Node*> constants;  // copies, by original and device
  for (Node* unique : uniques) {
    const Edge* ids = nullptr;
    TF_RETURN_IF_ERROR(unique->input_edge(0, &ids));
    const std::string& from = ids->src()->assigned_device_name();
    if (devices.SameTask(from, unique->assigned_device_name())) continue;
    PushedSums sums(unique, from, &devices);
    const char* const why_not = sums.WhyNot();
    RewriteCounts::Get().Count(kSummedPush, why_not);
    if (why_not != nullptr) continue;
    const PulledIds* const shared = sums.FindPulled(*graph, pulled);
    if (shared != nullptr) {
      TF_RETURN_IF_ERROR(sums.ShareIds(graph, shared->unique));
    }
    if (shared != nullptr && sums.CanSumByNumbers()) {
      TF_RETURN_IF_ERROR(sums.SumByNumbers(graph, shared->unique));
    } else {
      sums.Move(graph, &constants);
    }
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
