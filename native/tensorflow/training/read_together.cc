#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kCopiedAtOnceBytes = int64_t{1} << 20;

struct CopiedPiece {
  const char* from;  // null: the memory is only touched
  char* to;
  int64_t bytes;
};

void AddPieces(const Tensor* from, const Tensor& to, std::vector<CopiedPiece>* pieces) {
  const auto* const source = from == nullptr ? nullptr : static_cast<const char*>(from->data());
  const auto bytes = static_cast<int64_t>(to.TotalBytes());
  for (int64_t at = 0; at < bytes; at += kCopiedAtOnceBytes) {
    pieces->push_back({source == nullptr ? nullptr : source + at,
                       static_cast<char*>(to.data()) + at,
                       std::min(kCopiedAtOnceBytes, bytes - at)});
  }
}

void CopyPieces(OpKernelContext* ctx, const std::vector<CopiedPiece>& pieces) {
  const auto copy = [&pieces](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const CopiedPiece& piece = pieces[i];
      if (piece.from != nullptr) std::memcpy(piece.to, piece.from, piece.bytes);
      for (int64_t at = 0; piece.from == nullptr && at < piece.bytes; at += kPageBytes) {
        piece.to[at] = 0;
      }
    }
  };
  const auto& threads = *ctx->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(threads.num_threads, threads.workers, static_cast<int64_t>(pieces.size()),
                    kCopiedAtOnceBytes, copy);
}

// The values that variables of one device have at one moment: no kernel that updates one of them
// is half done then. A variable that was only used as a whole is lent: its next update makes a copy
// of its own. One that was used by rows is copied here, and its updates and lookups wait meanwhile.
class ReadTogetherOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const int count = num_inputs();
    OP_REQUIRES(ctx, num_outputs() == count, absl::InvalidArgumentError("one dtype a variable"));
    std::vector<tensorflow::core::RefCountPtr<Var>> variables(count);
    std::vector<Tensor> values(count);
    std::vector<CopiedPiece> touched;
    for (int i = 0; i < count; ++i) {
      const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(ctx, i);
      OP_REQUIRES(ctx, LookupResource(ctx, handle, &variables[i]).ok(), NoValue(handle));
      // New memory costs more than the copy, so it is touched before others wait.
      const tensorflow::tf_shared_lock lock(*variables[i]->mu());
      if (IsCopied(*variables[i])) {
        const Tensor& value = *variables[i]->tensor();
        OP_REQUIRES_OK(ctx, ctx->allocate_temp(value.dtype(), value.shape(), &values[i]));
        AddPieces(nullptr, values[i], &touched);
      }
    }
    CopyPieces(ctx, touched);
    // In the order of addresses, as in TensorFlow's own kernels that lock several variables.
    std::set<tensorflow::mutex*> mutexes;
    for (const auto& variable : variables) mutexes.insert(variable->mu());
    std::vector<tensorflow::mutex_lock> locks;
    locks.reserve(mutexes.size());
    for (tensorflow::mutex* mutex : mutexes) locks.emplace_back(*mutex);

    std::vector<CopiedPiece> copied;
    for (int i = 0; i < count; ++i) {
      const Tensor& value = *variables[i]->tensor();
      const bool fits = value.dtype() == ctx->expected_output_dtype(i);
      OP_REQUIRES(ctx, fits && variables[i]->is_initialized,
                  NoValue(tensorflow::HandleFromInput(ctx, i)));
      if (!IsCopied(*variables[i])) {
        values[i] = variables[i]->copy_on_read_mode ? tensorflow::tensor::DeepCopy(value) : value;
        continue;
      }
      if (!values[i].IsInitialized() || values[i].shape() != value.shape()) {
        OP_REQUIRES_OK(ctx, ctx->allocate_temp(value.dtype(), value.shape(), &values[i]));
      }
      AddPieces(&value, values[i], &copied);
    }
    CopyPieces(ctx, copied);
    for (int i = 0; i < count; ++i) ctx->set_output(i, values[i]);
  }

 private:
  static bool IsCopied(Var& variable) {
    return variable.copy_on_read_mode && DataTypeCanUseMemcpy(variable.tensor()->dtype());
  }

  static absl::Status NoValue(const tensorflow::ResourceHandle& handle) {
    return absl::FailedPreconditionError("variable " + handle.name() + " has no value");
  }
};

REGISTER_OP("TensorwireReadTogether")
    .Input("variables: N * resource")
    .Output("values: dtypes")
    .Attr("N: int >= 1")
    .Attr("dtypes: list(type) >= 1")
    .SetIsStateful()  // or two of them might become one
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);
REGISTER_KERNEL_BUILDER(Name("TensorwireReadTogether").Device(tensorflow::DEVICE_CPU),
                        ReadTogetherOp);

}  // namespace
}  // namespace tensorwire::plugin
