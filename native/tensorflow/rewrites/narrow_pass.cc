#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rewrites/graph_rewrite.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/lib/random/philox_random.h"
#include "tensorflow/core/lib/random/random.h"
#include "tensorflow/core/util/work_sharder.h"

// Halves the bytes of a training step: the floats of pulled variables and the pushed gradients are
// sent between tasks in 16 bits. Results change, so it is not one of kExactRewrites.
// docs/decisions/rewrites.md.

namespace tensorwire::plugin {
namespace {

using Eigen::numext::bit_cast;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// The name of a custom optimizer in a session's RewriterConfig. Its parameters are `dtype`,
// "bfloat16" or "float16", or "float32" for none; and `exclude`: shell patterns of names, separated
// by commas. TENSORWIRE_REWRITES has the dtype as a word, and float32=PATTERN for each pattern.
constexpr RewriteSwitch kWireDtype{"tensorwire_wire_dtype", "wire_dtype"};

// Our own operation converts gradients to its attribute T, bfloat16 or half. It rounds up or down
// by chance, so that the mean of many is the float; a finite value stays finite in bfloat16. All
// other conversions are TensorFlow's own (Cast), which round to the nearest value, to even if
// halfway.
constexpr char kNarrowOp[] = "TensorwireNarrow_import_tensorwire_tf_in_every_task";

// For a whole variable with fewer floats, the conversions cost more than the saved bytes.
constexpr int64_t kLeastFloats = 256;
constexpr char kAllBits[] = "float32";
constexpr char kPattern[] = "float32=";  // begins a word of TENSORWIRE_REWRITES

struct WireDtype {
  std::string name;
  tensorflow::DataType type = tensorflow::DT_INVALID;
  std::vector<std::string> exclude;  // patterns
};

// What a session or this process asks for; DT_INVALID: nothing.
absl::Status FindWireDtype(const GraphOptimizationPassOptions& options, WireDtype* found) {
  if (const auto* entry = FindEntry(kWireDtype.optimizer, options); entry != nullptr) {
    const auto& parameters = entry->parameter_map();
    if (const auto at = parameters.find("dtype"); at != parameters.end()) {
      found->name = at->second.s();
    }
    if (const auto at = parameters.find("exclude"); at != parameters.end()) {
      found->exclude = absl::StrSplit(at->second.s(), ',', absl::SkipWhitespace());
    }
    if (found->name == kAllBits) return absl::OkStatus();
  } else {
    for (const std::string& word : RewritesOfProcess()) {
      if (word == "bfloat16" || word == "float16") found->name = word;
      if (word.rfind(kPattern, 0) == 0) found->exclude.push_back(word.substr(sizeof(kPattern) - 1));
    }
    if (found->name.empty()) return absl::OkStatus();
  }
  if (found->name == "bfloat16") {
    found->type = tensorflow::DT_BFLOAT16;
  } else if (found->name == "float16") {
    found->type = tensorflow::DT_HALF;
  } else {
    return absl::InvalidArgumentError("wire_dtype takes bfloat16, float16 or float32, and not \"" +
                                      found->name + "\"");
  }
  return absl::OkStatus();
}

// The index of the input of an optimizer's operation that is a gradient; -1 if there is none.
int GradientInput(const Node& node) {
  static const auto* const optimizers =
      new OpNames("Apply* ResourceApply* ResourceSparseApply* SparseApply*");
  const std::string& operation = node.type_string();
  const bool updates = optimizers->Have(node);
  const char* gradient = "grad";
  if (operation == "AccumulatorApplyGradient" || operation == "ResourceAccumulatorApplyGradient") {
    gradient = "gradient";
  } else if (operation == "SparseAccumulatorApplyGradient") {
    gradient = "gradient_values";
  } else if (!updates) {
    return -1;
  }
  const auto& inputs = node.op_def().input_arg();
  for (int i = 0; i < inputs.size(); ++i) {
    if (inputs[i].name() == gradient || (updates && inputs[i].name() == "delta")) return i;
  }
  return -1;
}

// Whether an operation adds to a variable. SGD and Adam train the rows of a table in this way, and
// users count in this way.
bool AddsToVariable(const Node& node) {
  static const auto* const names = new OpNames(
      "AssignAdd AssignAddVariableOp AssignSub AssignSubVariableOp ResourceScatterAdd "
      "ResourceScatterSub ScatterAdd ScatterSub");
  return names->Have(node);
}

// The node of the variable, or accumulator, that an optimizer's operation updates.
const Node* UpdatedBy(const Node& update) {
  const Edge* variable = nullptr;
  return update.input_edge(0, &variable).ok() ? Origin(variable)->src() : nullptr;
}

// Whether an operation passes on elements of its inputs and computes nothing from them.
bool PassesOn(const Node& node) {
  static const auto* const names = new OpNames(
      "Cast Concat ConcatV2 DynamicPartition DynamicStitch ExpandDims Gather GatherV2 Identity "
      "IdentityN Pack ParallelDynamicStitch PreventGradient Reshape Slice Snapshot Split SplitV "
      "Squeeze StopGradient StridedSlice Transpose Unpack");
  return node.IsControlFlow() || names->Have(node);
}

// Whether an operation's output is a gradient if its input is one.
bool PassesGradientOn(const Node& node, int input) {
  static const auto* const of_the_first =
      new OpNames("ExpandDims Identity Reshape TensorwireSumRows* UnsortedSegmentSum");
  if (node.type_string() == "AddN" || node.IsMerge()) return true;
  return input == 0 && (node.IsControlFlow() || of_the_first->Have(node));
}

// Sorts nodes by name, so that a list of them is always the same.
struct ByName {
  bool operator()(const Node* a, const Node* b) const { return a->name() < b->name(); }
};
using NodesByName = std::set<const Node*, ByName>;

// The node that a tensor or its rows are read from. It may be a variable.
const Node* ReadFrom(const Crossing& crossing) {
  const Node* source = Origin(crossing.edges.front())->src();
  while (IsLookup(*source)) {
    const Edge* table = nullptr;
    if (!source->input_edge(0, &table).ok()) return nullptr;
    source = Origin(table)->src();
  }
  return source;
}

// Whether the value of an edge is used as a gradient, and as nothing else. Adds the operations that
// take it to `updates`.
bool IsGradient(const Edge& edge, std::vector<bool>* seen, NodesByName* updates) {
  const Node& dst = *edge.dst();
  if (GradientInput(dst) == edge.dst_input()) {
    updates->insert(&dst);
    return UpdatedBy(dst) != nullptr;
  }
  if (!PassesGradientOn(dst, edge.dst_input())) return false;
  if ((*seen)[dst.id()]) return true;
  (*seen)[dst.id()] = true;
  bool goes_on = false;
  for (const Edge* next : dst.out_edges()) {
    if (next->IsControlEdge()) continue;
    if (!IsGradient(*next, seen, updates)) return false;
    goes_on = true;
  }
  return goes_on;
}

// Whether the value of an edge leaves the step unchanged: it is saved, assigned, fetched or the
// like.
bool IsKept(const Edge& edge, std::vector<bool>* seen) {
  const Node& dst = *edge.dst();
  if (!PassesOn(dst)) {
    return dst.op_def().is_stateful() || dst.IsFunctionCall() || dst.IsIfNode() ||
           dst.IsWhileNode() || tensorflow::IsRefType(dst.input_type(0));
  }
  if ((*seen)[dst.id()]) return false;
  (*seen)[dst.id()] = true;
  return std::any_of(dst.out_edges().begin(), dst.out_edges().end(), [&](const Edge* next) {
    return !next->IsControlEdge() && IsKept(*next, seen);
  });
}

bool IsSmall(const Node& variable) {
  const int64_t floats = VariableShape(variable).num_elements();
  return floats >= 0 && floats < kLeastFloats;
}

class Narrower {
 public:
  Narrower(Graph* graph, const WireDtype& wire) : graph_(graph), wire_(wire) {
    for (const Node* node : graph->op_nodes()) {
      if (GradientInput(*node) < 0) continue;
      if (const Node* variable = UpdatedBy(*node); variable != nullptr) trained_.insert(variable);
    }
  }

  absl::Status Run() {
    // WhyNot must see the graph as it was, so all tensors are examined before any is changed.
    std::vector<std::pair<Crossing, bool>> chosen;
    for (Crossing& crossing : FindCrossings(*graph_, &devices_)) {
      if (crossing.src->output_type(crossing.output) != tensorflow::DT_FLOAT) continue;
      bool is_push = false;
      NodesByName variables;
      const char* const why_not = WhyNot(crossing, &is_push, &variables);
      RewriteCounts::Get().Count(kWireDtype, why_not);
      const bool is_excluded = why_not != nullptr && std::string_view(why_not) == "excluded";
      if (why_not != nullptr && !is_excluded) continue;
      RewriteCounts::Get().Add(
          {crossing.src->name() + ":" + std::to_string(crossing.output),
           absl::StrJoin(variables, ", ",
                         [](std::string* to, const Node* node) { to->append(node->name()); }),
           is_push ? "push" : "pull", is_excluded ? kAllBits : wire_.name});
      if (!is_excluded) chosen.emplace_back(std::move(crossing), is_push);
    }
    for (const auto& [crossing, is_push] : chosen) {
      TF_RETURN_IF_ERROR(Narrow(crossing, is_push));
    }
    return absl::OkStatus();
  }

 private:
  // Whether the step updates `variable` by an optimizer's operation, or adds a value to it that is
  // computed from what was pulled of it. A counter is not trained: the added value does not depend
  // on it.
  bool IsTrained(const Node* variable, const Crossing& pulled) const {
    if (trained_.count(variable) != 0) return true;
    std::vector<const Node*> consumers;
    consumers.reserve(pulled.edges.size());
    for (const Edge* edge : pulled.edges) consumers.push_back(edge->dst());
    bool found = false;
    const auto look = [&](const Node* node) {
      found = found || (AddsToVariable(*node) && UpdatedBy(*node) == variable);
    };
    const auto follow = [&found](const Edge& edge) { return !found && !edge.IsControlEdge(); };
    tensorflow::DFSFrom(*graph_, consumers, look, nullptr, {}, follow);
    return found;
  }

  // Why a tensor is not narrowed, or null. `variables`: those that it is read from or updates.
  const char* WhyNot(const Crossing& crossing, bool* is_push, NodesByName* variables) {
    if (!devices_.IsCpu(crossing.src->assigned_device_name()) || !devices_.IsCpu(crossing.to)) {
      return "not on a CPU";
    }
    std::vector<bool> seen(graph_->num_node_ids());
    NodesByName updates;
    *is_push = std::all_of(crossing.edges.begin(), crossing.edges.end(),
                           [&](const Edge* edge) { return IsGradient(*edge, &seen, &updates); });
    bool has_rows = false;  // the rows of a variable, any number of them
    if (*is_push) {
      for (const Node* update : updates) {
        variables->insert(UpdatedBy(*update));
        has_rows = has_rows || update->type_string().find("Sparse") != std::string::npos;
      }
    } else {
      const Node* const variable = ReadFrom(crossing);
      if (variable == nullptr || !IsTrained(variable, crossing)) {
        return "neither a variable that the step trains nor a gradient alone";
      }
      variables->insert(variable);
      has_rows = IsLookup(*Origin(crossing.edges.front())->src());
      seen.assign(seen.size(), false);
      if (std::any_of(crossing.edges.begin(), crossing.edges.end(),
                      [&](const Edge* edge) { return IsKept(*edge, &seen); })) {
        return "saved, assigned, fetched or given to a function";
      }
    }
    if (!has_rows && std::all_of(variables->begin(), variables->end(),
                                 [](const Node* variable) { return IsSmall(*variable); })) {
      return "a variable of fewer than 256 floats";
    }
    return IsExcluded(*variables) ? "excluded" : nullptr;
  }

  bool IsExcluded(const NodesByName& variables) const {
    return std::any_of(variables.begin(), variables.end(), [this](const Node* variable) {
      return std::any_of(wire_.exclude.begin(), wire_.exclude.end(),
                         [&](const std::string& pattern) {
                           return fnmatch(pattern.c_str(), variable->name().c_str(), 0) == 0;
                         });
    });
  }

  absl::Status Narrow(const Crossing& crossing, bool by_chance) {
    Node*& narrow = narrowed_[{crossing.src->id(), crossing.output, by_chance}];
    if (narrow == nullptr) {
      NodeBuilder builder = NewNode(graph_, "narrow", by_chance ? kNarrowOp : "Cast",
                                    crossing.src->assigned_device_name());
      builder.Input(crossing.src, crossing.output).Attr(by_chance ? "T" : "DstT", wire_.type);
      TF_RETURN_IF_ERROR(builder.Finalize(graph_, &narrow));
    }
    Node* wide = nullptr;
    TF_RETURN_IF_ERROR(NewNode(graph_, "widen", "Cast", crossing.to)
                           .Input(narrow, 0)
                           .Attr("DstT", tensorflow::DT_FLOAT)
                           .Finalize(graph_, &wide));
    for (const Edge* edge : crossing.edges) ReplaceInput(graph_, edge, wide, 0);
    return absl::OkStatus();
  }

  Graph* const graph_;
  const WireDtype& wire_;
  DeviceNames devices_;
  std::set<const Node*> trained_;                         // by operations of an optimizer
  std::map<std::tuple<int, int, bool>, Node*> narrowed_;  // by the node's id, output, by_chance
};

// Runs after the rewrites that send less, so that a sum is rounded, and not its summands. Runs
// before bundles and fusion, which include the conversions.
class NarrowPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || options.device_set == nullptr) return absl::OkStatus();
    WireDtype wire;
    TF_RETURN_IF_ERROR(FindWireDtype(options, &wire));
    if (wire.type == tensorflow::DT_INVALID) return absl::OkStatus();
    return RewriteGraph(options, [&wire](Graph* graph) { return Narrower(graph, wire).Run(); });
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 60, NarrowPass);

// Rounds `value` up if the cut-off rest, as a fraction of a step of 16 bits, is more than 1 -
// `chance` / 2^16.
void RoundByChance(float value, uint32_t chance, Eigen::bfloat16* to) {
  const auto bits = bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + chance;
  // Infinities and NaNs stay, and no finite number becomes infinite.
  const bool stays = (rounded & 0x7F800000) == 0x7F800000;
  if (!std::isfinite(value)) {
    *to = static_cast<Eigen::bfloat16>(value);
  } else {
    *to = bit_cast<Eigen::bfloat16>(static_cast<uint16_t>((stays ? bits : rounded) >> 16));
  }
}

void RoundByChance(float value, uint32_t chance, Eigen::half* to) {
  constexpr float kLargest = 65504.0F;
  constexpr float kSmallestNormal = 0x1p-14F;
  constexpr float kStepsBelow = 0x1p24F;  // steps of a subnormal half in 1
  const float magnitude = std::fabs(value);
  if (!(magnitude < kLargest)) {
    *to = static_cast<Eigen::half>(value);
  } else if (magnitude >= kSmallestNormal) {
    constexpr uint32_t kCutOff = 0x1FFF;  // the bits that a half does not have
    const uint32_t rounded = bit_cast<uint32_t>(value) + (chance & kCutOff);
    *to = static_cast<Eigen::half>(bit_cast<float>(rounded & ~kCutOff));
  } else {
    const float steps = std::floor(magnitude * kStepsBelow + static_cast<float>(chance) * 0x1p-16F);
    *to = static_cast<Eigen::half>(std::copysign(steps / kStepsBelow, value));
  }
}

// See kNarrowOp.
template <typename Narrow>
class NarrowOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    constexpr int64_t kCyclesForEach = 2 * kEach;
    const Tensor& wide = ctx->input(0);
    Tensor* narrow = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, wide.shape(), &narrow));
    const float* const from = wide.flat<float>().data();
    Narrow* const to = narrow->flat<Narrow>().data();
    const int64_t elements = wide.NumElements();
    const uint64_t call = calls_.fetch_add(1, std::memory_order_relaxed);
    const auto convert = [this, call, from, to, elements](int64_t first, int64_t last) {
      PhiloxRandom random(seed_, call);
      random.Skip(static_cast<uint64_t>(first));
      for (int64_t i = first * kEach; i < std::min(last * kEach, elements); i += kEach) {
        const PhiloxRandom::ResultType drawn = random();
        for (int64_t k = 0; k < std::min(kEach, elements - i); ++k) {
          const uint32_t bits = drawn[static_cast<int>(k / 2)];
          RoundByChance(from[i + k], k % 2 == 0 ? bits & 0xFFFF : bits >> 16, &to[i + k]);
        }
      }
    };
    const auto& threads = *ctx->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(threads.num_threads, threads.workers, (elements + kEach - 1) / kEach,
                      kCyclesForEach, convert);
  }

 private:
  using PhiloxRandom = tensorflow::random::PhiloxRandom;
  // What one draw is for: 16 bits each.
  static constexpr int64_t kEach = int64_t{2} * PhiloxRandom::kResultElementCount;

  const uint64_t seed_ = tensorflow::random::New64();
  std::atomic<uint64_t> calls_{0};
};

REGISTER_OP(kNarrowOp)
    .Input("wide: float")
    .Output("narrow: T")
    .Attr("T: {bfloat16, half}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);
REGISTER_KERNEL_BUILDER(
    Name(kNarrowOp).Device(tensorflow::DEVICE_CPU).TypeConstraint<Eigen::bfloat16>("T"),
    NarrowOp<Eigen::bfloat16>);
REGISTER_KERNEL_BUILDER(
    Name(kNarrowOp).Device(tensorflow::DEVICE_CPU).TypeConstraint<Eigen::half>("T"),
    NarrowOp<Eigen::half>);

}  // namespace
}  // namespace tensorwire::plugin
