#include "rewrites/graph_rewrite.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "metrics/tensor_figures.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::DeviceNameUtils;

// The device of the first node that `node` has a data edge to.
std::string FirstConsumersDevice(const Node& node) {
  for (const Edge* edge : node.out_edges()) {
    if (!edge->IsControlEdge()) return edge->dst()->assigned_device_name();
  }
  return node.assigned_device_name();
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

}  // namespace

bool MayRewrite(const GraphOptimizationPassOptions& options) {
  if (options.graph == nullptr || options.device_set == nullptr) return false;
  const auto nodes = (*options.graph)->op_nodes();
  return std::none_of(nodes.begin(), nodes.end(),
                      [](const Node* node) { return node->name() == kPartialRunNode; });
}

absl::Status RewriteGraph(const GraphOptimizationPassOptions& options,
                          const std::function<absl::Status(Graph*)>& rewrite) {
  Graph* const graph = options.graph->get();
  PlaceControlFlow(graph);
  TF_RETURN_IF_ERROR(rewrite(graph));
  tensorflow::FixupSourceAndSinkEdges(graph);
  return absl::OkStatus();
}

std::vector<std::string> RewritesOfProcess() {
  const char* const text = std::getenv("TENSORWIRE_REWRITES");
  return absl::StrSplit(text == nullptr ? "" : text, absl::ByAnyChar(", "), absl::SkipEmpty());
}

bool IsAskedFor(const RewriteSwitch& one, const GraphOptimizationPassOptions& options) {
  for (const RewriteSwitch& each : {one, kExactRewrites}) {
    const auto* const entry = FindEntry(each.optimizer, options);
    if (entry != nullptr) return entry->parameter_map().count("off") == 0;
  }
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

NodeBuilder NewNode(Graph* graph, std::string_view name, const char* op,
                    const std::string& device) {
  NodeBuilder builder(graph->NewName(kNodePrefix + ProcessWideName(name)), op);
  builder.AssignedDevice(device);
  return builder;
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

std::vector<Crossing> FindCrossings(const Graph& graph, DeviceNames* devices) {
  std::vector<Crossing> crossings;
  for (Node* node : graph.op_nodes()) {
    std::map<std::pair<int, std::string>, std::vector<const Edge*>> found;
    for (const Edge* edge : node->out_edges()) {
      if (edge->IsControlEdge() || !devices->Cross(*edge)) continue;
      const std::string& to = edge->dst()->assigned_device_name();
      found[{edge->src_output(), to}].push_back(edge);
    }
    for (auto& [key, edges] : found) {
      crossings.push_back({node, key.first, key.second, std::move(edges)});
    }
  }
  return crossings;
}

void ReplaceInput(Graph* graph, const Edge* edge, Node* src, int output) {
  Node* const dst = edge->dst();
  const int input = edge->dst_input();
  graph->RemoveEdge(edge);
  graph->AddEdge(src, output, dst, input);
}

void CopyControlInputs(Graph* graph, const Node& from, Node* to) {
  for (const Edge* edge : from.in_edges()) {
    if (edge->IsControlEdge() && edge->src()->IsOp()) graph->AddControlEdge(edge->src(), to);
  }
}

void MoveOutputs(Graph* graph, const Node& from, Node* to, int first_output) {
  const std::vector<const Edge*> edges(from.out_edges().begin(), from.out_edges().end());
  for (const Edge* edge : edges) {
    if (!edge->IsControlEdge()) {
      ReplaceInput(graph, edge, to, first_output + edge->src_output());
    } else if (edge->dst()->IsOp()) {
      graph->AddControlEdge(to, edge->dst());
    }
  }
}

void RemoveUnused(Graph* graph, Node* node) {
  const bool is_used = std::any_of(node->out_edges().begin(), node->out_edges().end(),
                                   [](const Edge* edge) { return edge->dst()->IsOp(); });
  if (!is_used) graph->RemoveNode(node);
}

OpNames::OpNames(const char* text) {
  for (absl::string_view name : absl::StrSplit(text, ' ')) {
    if (absl::ConsumeSuffix(&name, "*")) {
      prefixes_.emplace_back(name);
    } else {
      names_.emplace(name);
    }
  }
}

bool OpNames::Have(const Node& node) const {
  const std::string& type = node.type_string();
  return names_.count(type) != 0 ||
         std::any_of(prefixes_.begin(), prefixes_.end(),
                     [&](const std::string& prefix) { return absl::StartsWith(type, prefix); });
}

}  // namespace tensorwire::plugin
