#include "rewrites/graph_rewrite.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "absl/strings/str_split.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::DeviceNameUtils;

// What a session says of `one`; nothing if it has no entry for it.
std::optional<bool> SessionsChoice(const RewriteSwitch& one,
                                   const GraphOptimizationPassOptions& options) {
  const auto* const entry = FindEntry(one.optimizer, options);
  if (entry == nullptr) return std::nullopt;
  return entry->parameter_map().count("off") == 0;
}

// The device of the first node that `node` has a data edge to.
std::string FirstConsumersDevice(const Node& node) {
  for (const Edge* edge : node.out_edges()) {
    if (!edge->IsControlEdge()) return edge->dst()->assigned_device_name();
  }
  return node.assigned_device_name();
}

}  // namespace

bool MayRewrite(const GraphOptimizationPassOptions& options) {
  if (options.graph == nullptr || options.device_set == nullptr) return false;
  const auto nodes = (*options.graph)->op_nodes();
  return std::none_of(nodes.begin(), nodes.end(),
                      [](const Node* node) { return node->name() == kPartialRunNode; });
}

std::vector<std::string> RewritesOfProcess() {
  const char* const text = std::getenv("TENSORWIRE_REWRITES");
  return absl::StrSplit(text == nullptr ? "" : text, absl::ByAnyChar(", "), absl::SkipEmpty());
}

bool IsAskedFor(const RewriteSwitch& one, const GraphOptimizationPassOptions& options) {
  if (const auto chosen = SessionsChoice(one, options)) return *chosen;
  if (const auto chosen = SessionsChoice(kExactRewrites, options)) return *chosen;
  const std::vector<std::string> words = RewritesOfProcess();
  return std::any_of(words.begin(), words.end(), [&one](const std::string& word) {
    return word == one.word || word == kExactRewrites.word;
  });
}

const tensorflow::RewriterConfig::CustomGraphOptimizer* FindEntry(
    std::string_view optimizer, const GraphOptimizationPassOptions& options) {
  if (options.session_options == nullptr) return nullptr;
  const auto& rewrite = options.session_options->config.graph_options().rewrite_options();
  for (const auto& each : rewrite.custom_optimizers()) {
    if (each.name() == optimizer) return &each;
  }
  return nullptr;
}

bool CastsFloats(const GraphOptimizationPassOptions& options) {
  return options.session_options != nullptr &&
         options.session_options->config.graph_options().enable_bfloat16_sendrecv();
}

std::string ProcessWideName(std::string_view name) {
  static std::atomic<uint64_t> next{0};
  return std::string(name) + "_" + std::to_string(next.fetch_add(1, std::memory_order_relaxed));
}

std::string NewNodeName(Graph* graph, std::string_view name) {
  return graph->NewName(kNodePrefix + ProcessWideName(name));
}

bool DeviceNames::SameTask(const std::string& a, const std::string& b) {
  return a == b || DeviceNameUtils::IsSameAddressSpace(Parse(a), Parse(b));
}

const DeviceNameUtils::ParsedName& DeviceNames::Parse(const std::string& name) {
  auto [at, is_new] = parsed_.try_emplace(name);
  if (is_new) DeviceNameUtils::ParseFullName(name, &at->second);
  return at->second;
}

const Edge* Origin(const Edge* edge) {
  while (edge->src()->IsIdentity() || edge->src()->IsEnter() || edge->src()->IsSwitch() ||
         edge->src()->type_string() == "ReadVariableOp") {
    const Edge* before = nullptr;
    if (!edge->src()->input_edge(0, &before).ok()) break;
    edge = before;
  }
  return edge;
}

bool IsLookup(const Node& node) {
  return node.type_string() == "ResourceGather" || node.type_string() == "GatherV2" ||
         node.type_string() == "Gather";
}

bool IsVariable(const Node& node) {
  return node.IsVariable() || node.type_string() == "VarHandleOp";
}

tensorflow::PartialTensorShape VariableShape(const Node& variable) {
  if (variable.IsArg()) {  // of a function: the caller has added the variable's shape
    std::vector<tensorflow::PartialTensorShape> shapes;
    if (!GetNodeAttr(variable.attrs(), "_handle_shapes", &shapes).ok() || shapes.empty()) return {};
    return shapes.front();
  }
  tensorflow::PartialTensorShape shape;
  if (!IsVariable(variable)) return {};
  return GetNodeAttr(variable.attrs(), "shape", &shape).ok() ? shape
                                                             : tensorflow::PartialTensorShape();
}

void ReplaceInput(Graph* graph, const Edge* edge, Node* src, int output) {
  Node* const dst = edge->dst();
  const int input = edge->dst_input();
  graph->RemoveEdge(edge);
  graph->AddEdge(src, output, dst, input);
}

void RemoveUnused(Graph* graph, Node* node) {
  const bool is_used = std::any_of(node->out_edges().begin(), node->out_edges().end(),
                                   [](const Edge* edge) { return edge->dst()->IsOp(); });
  if (!is_used) graph->RemoveNode(node);
}

void PlaceControlFlow(Graph* graph) {
  std::vector<Node*> inputs_first;
  tensorflow::GetReversePostOrder(*graph, &inputs_first);
  for (Node* node : inputs_first) {
    if (node->IsSwitch() || node->IsExit()) {
      const Edge* data = nullptr;
      if (node->input_edge(0, &data).ok()) {
        node->set_assigned_device_name(data->src()->assigned_device_name());
      }
    } else if ((node->IsEnter() && !tensorflow::IsRefType(node->input_type(0))) ||
               node->IsNextIteration()) {
      node->set_assigned_device_name(FirstConsumersDevice(*node));
    }
  }
}

}  // namespace tensorwire::plugin
