#include "rewrites/session_graphs.h"

#include <string_view>
#include <utility>
#include <vector>

#include "metrics/tables.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::DeviceNameUtils;

constexpr size_t kFarthest = 256;  // nodes between a variable and what is sent of it

// "/job:ps/replica:0/task:0"
std::string_view TaskOf(const Node& node) {
  const std::string_view device = node.assigned_device_name();
  return device.substr(0, device.find("/device:"));
}

bool IsHeld(const Node& node) { return IsVariable(node) || IsTable(node.def()); }

// 0 for a table, whose size the task that holds it tells.
uint64_t VariableBytes(const Node& variable) {
  const tensorflow::PartialTensorShape shape = VariableShape(variable);
  tensorflow::DataType type = tensorflow::DT_INVALID;
  if (!GetNodeAttr(variable.attrs(), "dtype", &type).ok() || !shape.IsFullyDefined()) return 0;
  return static_cast<uint64_t>(shape.num_elements()) *
         static_cast<uint64_t>(tensorflow::DataTypeSize(type));
}

// Visits the nodes of one task that are reached by data edges from those in `seen`: back from
// consumers to producers, or forth. Does not go on from a node for which `visit` returns false.
// Returns false if the way is too far.
template <typename Visit>
bool Walk(std::set<const Node*> seen, bool back, Visit visit) {
  std::vector<const Node*> waiting(seen.begin(), seen.end());
  while (!waiting.empty()) {
    const Node* const one = waiting.back();
    waiting.pop_back();
    if (!visit(*one)) continue;
    for (const Edge* edge : back ? one->in_edges() : one->out_edges()) {
      const Node* const next = back ? edge->src() : edge->dst();
      if (edge->IsControlEdge() || TaskOf(*next) != TaskOf(*one)) continue;
      if (seen.insert(next).second) waiting.push_back(next);
    }
    if (seen.size() > kFarthest) return false;
  }
  return true;
}

// The variable or table of the node's own task that its value is computed from, if it is exactly
// one.
const Node* MadeOf(const Node* node) {
  std::set<const Node*> variables;
  const auto visit = [&](const Node& one) {
    if (IsHeld(one)) variables.insert(&one);
    return variables.size() < 2;
  };
  return Walk({node}, /*back=*/true, visit) && variables.size() == 1 ? *variables.begin() : nullptr;
}

// The variable or table of another task that is updated or looked up with a value that is computed
// there from the node, if it is exactly one, not counting an optimizer's slots. Such an operation
// has the variable as its first input.
const Node* IsFor(const Node& node) {
  std::set<const Node*> consumers;
  for (const Edge* edge : node.out_edges()) {
    if (!edge->IsControlEdge() && TaskOf(*edge->dst()) != TaskOf(node)) {
      consumers.insert(edge->dst());
    }
  }
  std::set<const Node*> variables;
  const auto visit = [&](const Node& one) {
    const Edge* first = nullptr;
    const bool uses_variable =
        one.num_inputs() > 1 && one.input_edge(0, &first).ok() && IsHeld(*first->src());
    if (uses_variable) variables.insert(first->src());
    return !uses_variable;
  };
  if (!Walk(std::move(consumers), /*back=*/false, visit)) return nullptr;
  const Node* found = nullptr;
  for (const Node* each : variables) {
    if (found == nullptr || each->name().size() < found->name().size()) found = each;
  }
  for (const Node* each : variables) {  // "embedding/Adam" is a slot of "embedding"
    if (each != found && each->name().rfind(found->name() + "/", 0) != 0) return nullptr;
  }
  return found;
}

bool IsWorker(const std::string& job) { return job == "worker" || job == "chief"; }

// A session that names no device_filters has the devices of all tasks, and needs them all alive.
bool HasOtherWorkers(const tensorflow::DeviceSet& devices) {
  if (devices.client_device() == nullptr) return false;
  const DeviceNameUtils::ParsedName& own = devices.client_device()->parsed_name();
  if (!IsWorker(own.job)) return false;
  for (const tensorflow::Device* device : devices.devices()) {
    const DeviceNameUtils::ParsedName& name = device->parsed_name();
    if (IsWorker(name.job) && (name.job != own.job || name.task != own.task)) return true;
  }
  return false;
}

// Changes nothing. It records a session's graph and its devices, before tensors are fused.
class SessionGraphsPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    // A TF2 function has its variables elsewhere, and has the devices of all tasks on purpose.
    if (options.graph != nullptr && options.device_set != nullptr && !options.is_function_graph) {
      SessionGraphs::Get().Add(**options.graph, HasOtherWorkers(*options.device_set));
    }
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 99,
                      SessionGraphsPass);

}  // namespace

void SessionGraphs::Add(const Graph& graph, bool is_unfiltered) {
  std::lock_guard lock(mutex_);
  ++graphs_;
  if (is_unfiltered) ++unfiltered_graphs_;
  for (const Node* node : graph.op_nodes()) {
    if (IsHeld(*node) && variables_.size() < kMostVariables) {
      Variable& variable = variables_[node->name()];
      variable.task = TaskOf(*node);
      variable.bytes = VariableBytes(*node);
    }
  }
  DeviceNames devices;
  const Node* node = nullptr;
  for (const Crossing& crossing : FindCrossings(graph, &devices)) {
    if (crossing.src == node) continue;  // to another device
    node = crossing.src;
    const Node* variable = MadeOf(node);
    if (variable == nullptr) variable = IsFor(*node);
    if (variable == nullptr) continue;
    const auto found = variables_.find(variable->name());
    if (found == variables_.end() || found->second.tensors.size() >= kMostTensors) continue;
    found->second.tensors.insert(node->name());
  }
}

void SessionGraphs::ForEach(
    const std::function<void(const std::string&, const Variable&)>& visit) const {
  std::lock_guard lock(mutex_);
  for (const auto& [name, variable] : variables_) visit(name, variable);
}

}  // namespace tensorwire::plugin
