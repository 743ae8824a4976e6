#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "metrics/single.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/protobuf/rewriter_config.pb.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tensorwire::plugin {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::GraphOptimizationPassOptions;
using tensorflow::Node;
using tensorflow::NodeBuilder;

// What all rewrites of a graph have in common. They run when every node has its device and before
// TensorFlow partitions the graph: on the master for a session, in the calling task for a TF2
// function. docs/decisions/rewrites.md.

// How a session and a process ask for a rewrite. A session comes first: one that switches a rewrite
// off does without it.
struct RewriteSwitch {
  // The name of a custom optimizer in a session's RewriterConfig. TensorFlow ignores names that it
  // does not know. The parameter "off" switches the rewrite off.
  const char* optimizer;
  // A word of TENSORWIRE_REWRITES, for sessions that do not choose, and functions.
  const char* word;
};

// Asks for all rewrites that leave every result as it is, bit by bit.
constexpr RewriteSwitch kExactRewrites{"tensorwire_exact_rewrites", "exact"};

// A session makes a node of this name a target of its partial runs. The feeds of such a run may
// depend on its earlier results, which its graph does not show.
constexpr char kPartialRunNode[] = "tensorwire_partial_run";

// Whether a graph is one that can be rewritten at all: it is whole, and not of a partial run.
bool MayRewrite(const GraphOptimizationPassOptions& options);

// Changes the graph by `rewrite`, which finds the nodes of branches and loops where TensorFlow's
// partitioner will place them: on the device of the value that they pass on. Otherwise tensors
// would seem to cross tasks that do not.
absl::Status RewriteGraph(const GraphOptimizationPassOptions& options,
                          const std::function<absl::Status(Graph*)>& rewrite);

// The words of TENSORWIRE_REWRITES, which tensorwire.plugin.rewrites has checked.
std::vector<std::string> RewritesOfProcess();

// Whether `one`, or kExactRewrites, is switched on.
bool IsAskedFor(const RewriteSwitch& one, const GraphOptimizationPassOptions& options);

// The custom optimizer of this name in a session's RewriterConfig, or null.
const tensorflow::RewriterConfig::CustomGraphOptimizer* FindEntry(
    std::string_view optimizer, const GraphOptimizationPassOptions& options);

// Whether TensorFlow casts floats to bfloat16 wherever they cross from task to task.
bool CastsFloats(const GraphOptimizationPassOptions& options);

// `name` with a number that is unique in this process. Nodes of two graphs need different names:
// TensorFlow keeps stateful kernels by session and name, and functions of one step share a
// rendezvous.
std::string ProcessWideName(std::string_view name);

// A node of our own on `device`: its name says what a task without our kernel needs.
NodeBuilder NewNode(Graph* graph, std::string_view name, const char* op, const std::string& device);

// Tells which devices belong to one task, and which are CPUs. Parses each name only once.
class DeviceNames {
 public:
  bool IsCpu(const std::string& name) { return Parse(name).type == "CPU"; }
  bool SameTask(const std::string& a, const std::string& b);
  // Whether an edge goes from task to task.
  bool Cross(const Edge& edge) {
    return edge.src()->IsOp() && edge.dst()->IsOp() &&
           !SameTask(edge.src()->assigned_device_name(), edge.dst()->assigned_device_name());
  }

 private:
  const tensorflow::DeviceNameUtils::ParsedName& Parse(const std::string& name);
  std::unordered_map<std::string, tensorflow::DeviceNameUtils::ParsedName> parsed_;
};

// Follows `edge` back through nodes that only pass a variable or a value on. Returns the edge from
// its origin.
const Edge* Origin(const Edge* edge);

// Whether `node` takes rows of a table, which is its first input.
bool IsLookup(const Node& node);

bool IsVariable(const Node& node);

// The shape of a variable in the graph; of unknown rank if the graph does not say.
tensorflow::PartialTensorShape VariableShape(const Node& variable);

// A tensor, and the edges by which it goes to a device of another task.
struct Crossing {
  Node* src = nullptr;
  int output = 0;
  std::string to;
  std::vector<const Edge*> edges;
};
// Sorted, so that a graph is always rewritten in the same way.
std::vector<Crossing> FindCrossings(const Graph& graph, DeviceNames* devices);

// Connects the input at the end of `edge` to an output of `src` instead.
void ReplaceInput(Graph* graph, const Edge* edge, Node* src, int output);

// Makes `to` wait for all operations that `from` waits for by a control edge.
void CopyControlInputs(Graph* graph, const Node& from, Node* to);

// Gives what uses the outputs of `from` those of `to`, from `first_output` on. What waits for
// `from` waits for `to`.
void MoveOutputs(Graph* graph, const Node& from, Node* to, int first_output = 0);

// Removes `node` if no operation uses it.
void RemoveUnused(Graph* graph, Node* node);

// Kinds of operations: a text of their names. A name that ends in * stands for all that begin so.
class OpNames {
 public:
  explicit OpNames(const char* text);
  bool Have(const Node& node) const;

 private:
  std::set<std::string> names_;
  std::vector<std::string> prefixes_;
};

// Why a whole graph is not rewritten.
constexpr char kNoOrder[] = "a cycle that is no loop: nothing is known of the graph's order";

// What rewrites have done to graphs of this process. Thread-safe.
class RewriteCounts {
 public:
  static constexpr const char* kApplied = "applied";
  // How often each rewrite was applied, and why it was not. Counts places in graphs.
  using Counts = std::map<std::pair<std::string, std::string>, uint64_t>;
  // A tensor that crosses in 16 bits, or that does not because its variable is excluded: its name
  // in the graph ("embedding_lookup:0"); the variables that it is read from or updates, with ", "
  // between them; "pull" or "push"; "bfloat16", "float16" or, if excluded, "float32".
  using Narrowed = std::tuple<std::string, std::string, std::string, std::string>;

  static RewriteCounts& Get() { return Single<RewriteCounts>(); }

  // `why_not`: null if it was applied.
  void Count(const RewriteSwitch& rewrite, const char* why_not = nullptr) {
    std::lock_guard lock(mutex_);
    ++counts_[{rewrite.word, why_not == nullptr ? kApplied : why_not}];
  }
  void Add(Narrowed narrowed) {
    std::lock_guard lock(mutex_);
    narrowed_.insert(std::move(narrowed));
  }
  Counts counts() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }
  std::set<Narrowed> narrowed() const {
    std::lock_guard lock(mutex_);
    return narrowed_;
  }

 private:
  mutable std::mutex mutex_;
  Counts counts_;
  std::set<Narrowed> narrowed_;
};

}  // namespace tensorwire::plugin
