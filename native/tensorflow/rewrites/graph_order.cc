#include "rewrites/graph_order.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <unordered_map>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/logging.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::DataType;

// Operations with state, or with the handle of one, whose kernels only hold a lock while they
// compute: they read, write or make variables, tables, lists and random numbers. Of
// tensorflow-recommenders-addons (TFRA) the tables in memory; those in Redis wait for the network.
bool IsKnownNotToWait(const Node& node) {
  static const auto* const names = new OpNames(
      "Assert AssignAddVariableOp AssignSubVariableOp AssignVariableOp "
      "FixedUnigramCandidateSampler HashTableV2 LogUniformCandidateSampler LookupTableFind* "
      "LookupTableInsert* LookupTableSize* Multinomial MutableDenseHashTableV2 "
      "MutableHashTableOfTensorsV2 MutableHashTableV2 ParameterizedTruncatedNormal Placeholder "
      "PlaceholderV2 RandomGamma* RandomPoisson* RandomShuffle* RandomStandardNormal* "
      "RandomUniform* ReadVariableOp ResourceApply* ResourceGather* ResourceScatter* "
      "ResourceSparseApply* TFRA>CuckooHashTableAccum TFRA>CuckooHashTableFind "
      "TFRA>CuckooHashTableFindWithExists TFRA>CuckooHashTableInsert "
      "TFRA>CuckooHashTableOfTensors TFRA>CuckooHashTableRemove TFRA>CuckooHashTableSize "
      "TensorArray* TensorList* TensorwireBundle_import* TruncatedNormal UniformCandidateSampler "
      "VarHandleOp VarIsInitializedOp Variable VariableShape VariableV2");
  return names->Have(node);
}

// Whether a tensor of this type can be a handle of something outside of the tensor that an
// operation could wait for. A reference to a string is how queues and the like were passed once.
bool IsHandle(DataType type) {
  return tensorflow::BaseType(type) == tensorflow::DT_RESOURCE ||
         tensorflow::BaseType(type) == tensorflow::DT_VARIANT || type == tensorflow::DT_STRING_REF;
}

bool HasFunction(const tensorflow::OpDef& op) {
  return std::any_of(op.attr().begin(), op.attr().end(), [](const auto& attr) {
    return attr.type() == "func" || attr.type() == "list(func)";
  });
}

bool IsSwitch(const Node& node) { return node.IsSwitch() || node.type_string() == "_SwitchN"; }

// The value of an edge: what is behind Identities.
std::pair<int, int> ValueOf(const Edge* edge) {
  while (edge->src()->IsIdentity()) {
    const Edge* before = nullptr;
    if (!edge->src()->input_edge(0, &before).ok()) break;
    edge = before;
  }
  return {edge->src()->id(), edge->src_output()};
}

}  // namespace

bool NeverWaits(const Node& node) {
  if (!node.IsOp() || node.IsControlFlow() || IsSwitch(node) || node.IsArg() || node.IsRetval() ||
      node.IsIdentity() || node.type_string() == "IdentityN") {
    return true;
  }
  if (node.IsSend() || node.IsRecv()) {  // what the client feeds is there when the step begins
    bool is_clients = false;
    return GetNodeAttr(node.attrs(), "client_terminated", &is_clients).ok() && is_clients;
  }
  if (IsKnownNotToWait(node)) return true;
  // What has no state has nothing but its inputs to wait for. Two operations of TensorFlow are
  // declared so and reach outside.
  return !node.op_def().is_stateful() && !node.IsFunctionCall() && !HasFunction(node.op_def()) &&
         node.type_string() != "PyFuncStateless" && node.type_string() != "ReadFile" &&
         std::none_of(node.input_types().begin(), node.input_types().end(), IsHandle) &&
         std::none_of(node.output_types().begin(), node.output_types().end(), IsHandle);
}

int NumberSets::IdOf(std::vector<int> sorted) {
  const auto [at, is_new] = ids_.try_emplace(std::move(sorted), static_cast<int>(sets_.size()));
  if (is_new) sets_.push_back(at->first);
  return at->second;
}

int NumberSets::Union(int a, int b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  const std::pair<int, int> pair = std::minmax(a, b);
  if (const auto known = unions_.find(pair); known != unions_.end()) return known->second;
  std::vector<int> both;
  std::set_union(sets_[a].begin(), sets_[a].end(), sets_[b].begin(), sets_[b].end(),
                 std::back_inserter(both));
  return unions_[pair] = IdOf(std::move(both));
}

std::string GraphOrder::OutermostLoop(const Node& node) const {
  const Node* outermost = nullptr;
  const Node* frame = info_[node.id()].frame;
  while (frame != nullptr && !frame->IsSource()) {
    outermost = frame;
    frame = info_[frame->id()].parent_frame;
  }
  return outermost == nullptr ? std::string() : info_[outermost->id()].frame_name;
}

void GraphOrder::NumberUnits() {
  unit_.assign(graph_.num_node_ids(), 0);
  std::unordered_map<std::string, size_t> loops;
  for (const Node* node : graph_.nodes()) {
    const std::string loop = OutermostLoop(*node);
    const size_t unit =
        loop.empty() ? units_.size() : loops.try_emplace(loop, units_.size()).first->second;
    if (unit == units_.size()) units_.emplace_back();
    units_[unit].push_back(node);
    unit_[node->id()] = static_cast<int>(unit);
  }
}

int GraphOrder::ConditionsOf(const Edge& edge) {
  const Node& src = *edge.src();
  const int of_src = conditions_[src.id()];
  const Edge* predicate = nullptr;
  if (edge.IsControlEdge() || !IsSwitch(src) || !src.input_edge(1, &predicate).ok()) return of_src;
  Condition condition{ValueOf(predicate), edge.src_output(), src.num_outputs()};
  const auto [at, is_new] = condition_numbers_.try_emplace({condition.predicate, condition.output},
                                                           known_conditions_.size());
  if (is_new) known_conditions_.push_back(condition);
  return sets_.Union(of_src, sets_.Of(at->second));
}

// A Merge has a value if one of its inputs has. If these differ in one condition, and one of them
// holds whatever the predicate is, what is left is what they have in common.
int GraphOrder::ConditionsOfMerge(const Node& merge) {
  std::vector<std::vector<int>> each;
  int of_control = 0;
  for (const Edge* edge : merge.in_edges()) {
    const int conditions = ConditionsOf(*edge);
    if (edge->IsControlEdge()) {
      of_control = sets_.Union(of_control, conditions);
      continue;
    }
    each.push_back(sets_[conditions]);
  }
  std::vector<int> common = each.front();
  for (const std::vector<int>& one : each) {
    std::vector<int> still;
    std::set_intersection(common.begin(), common.end(), one.begin(), one.end(),
                          std::back_inserter(still));
    common = std::move(still);
  }
  const int in_common = sets_.Union(of_control, sets_.IdOf(common));
  std::set<int> outputs;
  const Condition* first = nullptr;
  for (const std::vector<int>& one : each) {
    if (one.size() == common.size()) return in_common;
    std::vector<int> rest;
    std::set_difference(one.begin(), one.end(), common.begin(), common.end(),
                        std::back_inserter(rest));
    const Condition& condition = known_conditions_[rest.front()];
    if (first == nullptr) first = &condition;
    if (rest.size() == 1 && condition.predicate == first->predicate) {
      outputs.insert(condition.output);
    }
  }
  if (first != nullptr && static_cast<int>(outputs.size()) == first->outputs) return in_common;
  // One of its own, which nothing lifts.
  known_conditions_.push_back({{merge.id(), -1}, 0, 0});
  return sets_.Union(in_common, sets_.Of(static_cast<int>(known_conditions_.size()) - 1));
}

void GraphOrder::Visit(const Node& node) {
  bool differ = false;
  int gates = -1;
  int conditions = 0;
  for (const Edge* edge : node.in_edges()) {
    const int before = gates_[edge->src()->id()];
    differ = differ || (gates >= 0 && gates != before);
    gates = gates < 0 ? before : sets_.Union(gates, before);
    if (!node.IsMerge()) conditions = sets_.Union(conditions, ConditionsOf(*edge));
  }
  // A Merge runs as soon as one of its inputs has a value.
  const bool is_gate = !NeverWaits(node) || (node.IsMerge() && differ);
  gates_[node.id()] = is_gate ? sets_.Of(node.id()) : std::max(gates, 0);
  conditions_[node.id()] = node.IsMerge() ? ConditionsOfMerge(node) : conditions;
}

// A loop that has no gate in it or before it does not wait. Of any other one each Exit is a gate,
// because not all that enters the loop need have come before a value leaves it.
void GraphOrder::VisitLoop(const std::vector<const Node*>& nodes) {
  int gates = 0;
  int conditions = 0;
  for (const Node* node : nodes) {
    if (!NeverWaits(*node)) gates = sets_.Union(gates, sets_.Of(node->id()));
    for (const Edge* edge : node->in_edges()) {
      if (unit_[edge->src()->id()] == unit_[node->id()]) continue;
      gates = sets_.Union(gates, gates_[edge->src()->id()]);
      conditions = sets_.Union(conditions, ConditionsOf(*edge));
    }
  }
  for (const Node* node : nodes) {
    gates_[node->id()] = gates == 0 ? 0 : sets_.Of(node->id());
    conditions_[node->id()] = conditions;
  }
}

absl::Status GraphOrder::Compute(const Counts& counts, bool* usable) {
  std::vector<std::string> unreachable;
  *usable = false;
  TF_RETURN_IF_ERROR(BuildControlFlowInfo(&graph_, &info_, &unreachable));
  NumberUnits();
  depth_.assign(units_.size(), 0);
  gates_.assign(graph_.num_node_ids(), 0);
  conditions_.assign(graph_.num_node_ids(), 0);
  std::vector<std::vector<const Edge*>> leaving(units_.size());
  std::vector<int> missing(units_.size(), 0);
  for (const Edge* edge : graph_.edges()) {
    const int from = unit_[edge->src()->id()];
    const int to = unit_[edge->dst()->id()];
    if (from == to) continue;
    leaving[from].push_back(edge);
    ++missing[to];
  }
  std::vector<int> ready;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (missing[unit] == 0) ready.push_back(static_cast<int>(unit));
  }
  size_t done = 0;
  for (; !ready.empty(); ++done) {
    const int unit = ready.back();
    ready.pop_back();
    const std::vector<const Node*>& nodes = units_[unit];
    if (OutermostLoop(*nodes.front()).empty()) {
      Visit(*nodes.front());
    } else {
      VisitLoop(nodes);
    }
    for (const Edge* edge : leaving[unit]) {
      const int to = unit_[edge->dst()->id()];
      depth_[to] = std::max(depth_[to], depth_[unit] + (counts(*edge) ? 1 : 0));
      if (--missing[to] == 0) ready.push_back(to);
    }
  }
  *usable = done == units_.size();
  if (!*usable) {
    LOG(WARNING) << "a graph in which two loops have the same name is not rewritten";
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
