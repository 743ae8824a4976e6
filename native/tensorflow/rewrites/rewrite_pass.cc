#include "rewrites/rewrite_pass.h"

#include "rewrites/rewrite_pull.h"
#include "rewrites/rewrite_push.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"

namespace tensorwire::plugin {

RewriteCounts& RewriteCounts::Get() {
  static RewriteCounts* counts = new RewriteCounts;  // threads may outlive static destruction
  return *counts;
}

void RewriteCounts::Count(const char* rewrite, const char* outcome) {
  std::lock_guard lock(mutex_);
  ++counts_[{rewrite, outcome}];
}

RewriteCounts::Counts RewriteCounts::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

namespace {

// Before tensor fusion, which then sees the tensors that still cross.
class SendLessPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (!MayRewrite(options)) return absl::OkStatus();
    const bool pull = IsAskedFor(kUniquePull, options);
    // A sum of rounded values is not the rounded sum of values.
    const bool push = IsAskedFor(kSummedPush, options) && !CastsFloats(options);
    if (!pull && !push) return absl::OkStatus();
    tensorflow::Graph* const graph = options.graph->get();
    PlaceControlFlow(graph);
    PulledIdsOf pulled;
    if (pull) {
      if (absl::Status s = PullUniqueRows(graph, &pulled); !s.ok()) return s;
    }
    if (push) {
      if (absl::Status s = PushSums(graph, pulled); !s.ok()) return s;
    }
    tensorflow::FixupSourceAndSinkEdges(graph);
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 50,
                      SendLessPass);

}  // namespace
}  // namespace tensorwire::plugin
