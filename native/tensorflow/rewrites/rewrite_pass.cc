#include "rewrites/rewrite_pass.h"

namespace tensorwire::plugin {
namespace {

// Before tensor fusion, which then sees the tensors that still cross.
class SendLessPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (!MayRewrite(options)) return absl::OkStatus();
    const bool pull = IsAskedFor(kUniquePull, options);
    // A sum of rounded values is not the rounded sum of values.
    const bool push = IsAskedFor(kSummedPush, options) && !CastsFloats(options);
    if (!pull && !push) return absl::OkStatus();
    return RewriteGraph(options, [pull, push](Graph* graph) {
      PulledIdsOf pulled;
      if (pull) {
        TF_RETURN_IF_ERROR(PullUniqueRows(graph, &pulled));
      }
      return push ? PushSums(graph, pulled) : absl::OkStatus();
    });
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 50,
                      SendLessPass);

}  // namespace
}  // namespace tensorwire::plugin
