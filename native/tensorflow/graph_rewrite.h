#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tensorflow/core/protobuf/rewriter_config.pb.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tensorwire::plugin {

// What all rewrites of a graph have in common. They run when every node has its device and before
// TensorFlow cuts the graph into parts: on the master for a session, in the calling task for a
// function of TF2. docs/decisions/rewrites.md.

// How a session and a process ask for a rewrite.
struct RewriteSwitch {
  // The name of a custom optimizer in a session's RewriterConfig. A TensorFlow that does not know
  // it passes over it.
  const char* optimizer;
  // An environment variable: in every session and function of this process.
  const char* variable;
};

// Asks for all rewrites that leave every result as it is, bit by bit.
constexpr RewriteSwitch kExactRewrites{"tensorwire_exact_rewrites", "TENSORWIRE_EXACT_REWRITES"};

// Whether `one`, or kExactRewrites, is switched on.
bool IsAskedFor(const RewriteSwitch& one, const tensorflow::GraphOptimizationPassOptions& options);

// The entry of a session's RewriterConfig that asks for `one`, or null.
const tensorflow::RewriterConfig::CustomGraphOptimizer* FindEntry(
    const RewriteSwitch& one, const tensorflow::GraphOptimizationPassOptions& options);

// Whether TensorFlow casts floats to bfloat16 wherever they cross from task to task.
bool CastsFloats(const tensorflow::GraphOptimizationPassOptions& options);

// Before the name of each node that needs a kernel of ours: a task without that kernel says which
// node it cannot run, so this is what a user reads.
constexpr char kNodePrefix[] = "import_tensorwire.tf_in_every_task/";

// `name` with a number that no other node of this process has. Nodes of two graphs need different
// names where TensorFlow keeps their kernels by session and name (stateful ones), and where the
// graphs are functions of one step, which share a rendezvous.
std::string ProcessWideName(std::string_view name);

// Which devices are of one task, and which have host memory; names are parsed once.
class DeviceNames {
 public:
  bool IsCpu(const std::string& name) { return Parse(name).type == "CPU"; }
  bool SameTask(const std::string& a, const std::string& b);

 private:
  const tensorflow::DeviceNameUtils::ParsedName& Parse(const std::string& name);
  std::unordered_map<std::string, tensorflow::DeviceNameUtils::ParsedName> parsed_;
};

// The edge by which a variable or a value comes to where it is passed on to `edge`.
const tensorflow::Edge* Origin(const tensorflow::Edge* edge);

// Whether `node` takes rows of a table, its first input.
bool IsLookup(const tensorflow::Node& node);

// The shape that the graph gives a variable, or of unknown rank.
tensorflow::PartialTensorShape VariableShape(const tensorflow::Node& variable);

// Adds a node on a device.
absl::Status AddNode(tensorflow::Graph* graph, const tensorflow::NodeBuilder& builder,
                     const std::string& device, tensorflow::Node** node);

// Lets what has `edge` as input have an output of `src` in its place.
void ReplaceInput(tensorflow::Graph* graph, const tensorflow::Edge* edge, tensorflow::Node* src,
                  int output);

// Removes a node that no operation uses.
void RemoveUnused(tensorflow::Graph* graph, tensorflow::Node* node);

// Puts the nodes of branches and loops where TensorFlow's partitioner is about to put them: on the
// device of what they pass on. Otherwise tensors would seem to cross to them that do not.
void PlaceControlFlow(tensorflow::Graph* graph);

}  // namespace tensorwire::plugin
