#include "fuse_pass.h"

#include <cstdint>
#include <string>
#include <vector>

#include "fuse_groups.h"
#include "graph_rewrite.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::GraphOptimizationPassOptions;
using tensorflow::Node;
using tensorflow::NodeBuilder;

// Replaces the crossing edges of one group by nodes that send and receive them as one.
class GroupRewriter {
 public:
  GroupRewriter(Graph* graph, const FuseGroup& group, int64_t incarnation)
      : graph_(graph),
        group_(group),
        incarnation_(incarnation),
        name_(graph->NewName(ProcessWideName("tensor_fuse"))),
        // With the producer's name, as in TensorFlow's partitioner: the functions of one step share
        // a rendezvous.
        tensor_name_(name_ + "_" + group.crossings.front().src->name()) {}

  absl::Status Rewrite();

 private:
  std::string NodeName(const std::string& name) const { return kNodePrefix + name_ + "/" + name; }
  NodeBuilder Builder(const std::string& name, const char* op) const {
    NodeBuilder builder(NodeName(name), op);
    builder.Attr("tensor_name", tensor_name_)
        .Attr("send_device", group_.src_device)
        .Attr("send_device_incarnation", incarnation_)
        .Attr("recv_device", group_.dst_device)
        .Attr(kFusePartsAttr, static_cast<int64_t>(group_.crossings.size()));
    return builder;
  }
  // A node of TensorFlow's own operation with our kernel.
  NodeBuilder Builder(const std::string& name, const char* op, const char* label) const {
    NodeBuilder builder = Builder(name, op);
    builder.Attr("_kernel", label).Attr("client_terminated", false);
    return builder;
  }
  // If no tensor can be dead: one node at each end.
  absl::Status ReplaceAll();
  // Adds the receiving node, and `*arrived`, after which the parts can be taken.
  absl::Status AddReceive(Node** arrived);
  absl::Status Replace(int64_t index, const Crossing& crossing, Node* arrived);

  Graph* const graph_;
  const FuseGroup& group_;
  const int64_t incarnation_;
  const std::string name_;
  const std::string tensor_name_;
};

absl::Status GroupRewriter::Rewrite() {
  if (!group_.may_be_dead) return ReplaceAll();
  Node* arrived = nullptr;
  if (absl::Status s = AddReceive(&arrived); !s.ok()) return s;
  int64_t index = 0;
  for (const Crossing& crossing : group_.crossings) {
    if (absl::Status s = Replace(index++, crossing, arrived); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status GroupRewriter::ReplaceAll() {
  std::vector<NodeBuilder::NodeOut> sent;
  std::vector<tensorflow::DataType> types;
  for (const Crossing& crossing : group_.crossings) {
    sent.emplace_back(crossing.src, crossing.output);
    types.push_back(crossing.src->output_type(crossing.output));
  }
  Node* send = nullptr;
  NodeBuilder sender = Builder("send", kFuseSendOp);
  sender.Input(sent);
  if (absl::Status s = AddNode(graph_, sender, group_.src_device, &send); !s.ok()) return s;
  Node* receive = nullptr;
  NodeBuilder receiver = Builder("receive", kFuseReceiveOp);
  receiver.Attr("types", types);
  if (absl::Status s = AddNode(graph_, receiver, group_.dst_device, &receive); !s.ok()) return s;
  int index = 0;
  for (const Crossing& crossing : group_.crossings) {
    for (const Edge* edge : crossing.edges) ReplaceInput(graph_, edge, receive, index);
    ++index;
  }
  return absl::OkStatus();
}

absl::Status GroupRewriter::AddReceive(Node** arrived) {
  Node* receive = nullptr;
  NodeBuilder receiver = Builder("receive", "_Recv", kFuseReceiveLabel);
  receiver.Attr("tensor_type", tensorflow::DT_UINT8);
  if (absl::Status s = AddNode(graph_, receiver, group_.dst_device, &receive); !s.ok()) return s;
  // The executor puts each node that follows an asynchronous kernel into the pool on its own. Nodes
  // that follow this NoOp run in the NoOp's thread, so all parts are handed out at once.
  NodeBuilder barrier(NodeName("arrived"), "NoOp");
  barrier.ControlInput(receive);
  return AddNode(graph_, barrier, group_.dst_device, arrived);
}

absl::Status GroupRewriter::Replace(int64_t index, const Crossing& crossing, Node* arrived) {
  const std::string number = std::to_string(index);
  Node* send = nullptr;
  NodeBuilder sender = Builder("send_" + number, "_Send", kFusePartLabel);
  sender.Input(crossing.src, crossing.output).Attr(kFusePartAttr, index);
  if (absl::Status s = AddNode(graph_, sender, group_.src_device, &send); !s.ok()) return s;

  Node* part = nullptr;
  NodeBuilder taker = Builder("part_" + number, "_Recv", kFusePartLabel);
  taker.ControlInput(arrived)
      .Attr("tensor_type", crossing.src->output_type(crossing.output))
      .Attr(kFusePartAttr, index);
  if (absl::Status s = AddNode(graph_, taker, group_.dst_device, &part); !s.ok()) return s;

  for (const Edge* edge : crossing.edges) ReplaceInput(graph_, edge, part, 0);
  return absl::OkStatus();
}

// Runs on the master for each graph that is executed, and for functions whose nodes are on several
// devices. Runs when every node has its device, and before the graph is partitioned.
class TensorFusePass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || options.device_set == nullptr ||
        !IsAskedFor(kTensorFuse, options)) {
      return absl::OkStatus();
    }
    Graph* const graph = options.graph->get();
    PlaceControlFlow(graph);
    std::vector<FuseGroup> groups;
    if (absl::Status s = FindFuseGroups(*graph, CastsFloats(options), &groups); !s.ok()) return s;
    for (const FuseGroup& group : groups) {
      const auto* device = options.device_set->FindDeviceByName(group.src_device);
      if (device == nullptr) continue;
      const auto incarnation = static_cast<int64_t>(device->attributes().incarnation());
      if (absl::Status s = GroupRewriter(graph, group, incarnation).Rewrite(); !s.ok()) return s;
    }
    if (!groups.empty()) tensorflow::FixupSourceAndSinkEdges(graph);
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 100,
                      TensorFusePass);

}  // namespace
}  // namespace tensorwire::plugin
