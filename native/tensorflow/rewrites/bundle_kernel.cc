#include <mutex>
#include <unordered_map>
#include <vector>

#include "rewrites/bundle_pass.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::FunctionLibraryRuntime;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Calls a bundle's function in the executor's thread. TensorFlow's own operations that call a
// function are asynchronous, so the executor puts each node that follows one into its pool on its
// own.
class BundleOp : public tensorflow::OpKernel {
 public:
  explicit BundleOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("f", &function_));
  }

  void Compute(OpKernelContext* ctx) override {
    FunctionLibraryRuntime* const library = ctx->function_library();
    FunctionLibraryRuntime::Handle handle = 0;
    OP_REQUIRES_OK(ctx, Instantiate(library, &handle));
    FunctionLibraryRuntime::Options options(ctx->step_id());
    options.rendezvous = ctx->rendezvous();
    options.cancellation_manager = ctx->cancellation_manager();
    options.step_container = ctx->step_container();
    options.stats_collector = ctx->stats_collector();
    options.runner = ctx->runner();
    std::vector<Tensor> arguments;
    arguments.reserve(static_cast<size_t>(ctx->num_inputs()));
    for (int i = 0; i < ctx->num_inputs(); ++i) arguments.push_back(ctx->input(i));
    std::vector<Tensor> results;
    OP_REQUIRES_OK(ctx, library->RunSync(options, handle, arguments, &results));
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      ctx->set_output(i, results[static_cast<size_t>(i)]);
    }
  }

 private:
  absl::Status Instantiate(FunctionLibraryRuntime* library,
                           FunctionLibraryRuntime::Handle* handle) {
    std::lock_guard lock(mutex_);
    const auto [at, is_new] = handles_.try_emplace(library, 0);
    if (is_new) {
      FunctionLibraryRuntime::InstantiateOptions options;
      options.executor_type = "SINGLE_THREADED_EXECUTOR";  // starts a member in the shortest time
      const absl::Status status = library->Instantiate(
          function_.name(), tensorflow::AttrSlice(&function_.attr()), options, &at->second);
      if (!status.ok()) {
        handles_.erase(at);
        return status;
      }
    }
    *handle = at->second;
    return absl::OkStatus();
  }

  tensorflow::NameAttrList function_;
  std::mutex mutex_;
  // TensorFlow keeps a stateful kernel for all graphs of a session.
  std::unordered_map<FunctionLibraryRuntime*, FunctionLibraryRuntime::Handle> handles_;
};

// Stateful, as its members may be.
REGISTER_OP(kBundleOp)
    .Input("arguments: Tin")
    .Output("results: Tout")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 0")
    .Attr("f: func")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_KERNEL_BUILDER(Name(kBundleOp).Device(tensorflow::DEVICE_CPU), BundleOp);

}  // namespace
}  // namespace tensorwire::plugin
