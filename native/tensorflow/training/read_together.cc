#include <algorithm>
#include <cstdint>
#include <cstring>
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

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

constexpr int64_t kPageBytes = 4096;

struct CopiedPiece {
  static constexpr int64_t kMostBytes = int64_t{1} << 20;

  const char* from;  // null: the memory is only touched
  char* to;
  int64_t bytes;
};

void AddPieces(const Tensor* from, const Tensor& to, std::vector<CopiedPiece>* pieces) {
  const auto bytes = static_cast<int64_t>(to.tensor_data().size());
  for (int64_t at = 0; at < bytes; at += CopiedPiece::kMostBytes) {
    pieces->push_back({from == nullptr ? nullptr : from->tensor_data().data() + at,
                       const_cast<char*>(to.tensor_data().data()) + at,
                       std::min(CopiedPiece::kMostBytes, bytes - at)});
  }
}

void CopyPieces(OpKernelContext* ctx, const std::vector<CopiedPiece>& pieces) {
  const auto& threads = *ctx->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(threads.num_threads, threads.workers, static_cast<int64_t>(pieces.size()),
                    CopiedPiece::kMostBytes, [&pieces](int64_t first, int64_t last) {
                      for (int64_t i = first; i < last; ++i) {
                        const CopiedPiece& piece = pieces[i];
                        if (piece.from != nullptr) {
                          std::memcpy(piece.to, piece.from, piece.bytes);
                        } else {
                          for (int64_t at = 0; at < piece.bytes; at += kPageBytes) piece.to[at] = 0;
                        }
                      }
                    });
}

// The values that variables of one device have at one moment: no kernel that updates one of them
// is half done then. A variable that was only used as a whole is lent: its next update makes a copy
// of its own. One that was used by rows is copied here, and its updates and lookups wait meanwhile.
class ReadTogetherOp : public OpKernel {
 public:
  explicit ReadTogetherOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtypes", &dtypes_));
    OP_REQUIRES(ctx, static_cast<int>(dtypes_.size()) == num_inputs(),
                absl::InvalidArgumentError("read_together: one dtype for each variable"));
  }

  void Compute(OpKernelContext* ctx) override {
    const int count = num_inputs();
    std::vector<tensorflow::core::RefCountPtr<Var>> variables(count);
    std::vector<Tensor> values(count);
    std::vector<CopiedPiece> touched;
    for (int i = 0; i < count; ++i) {
      const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(ctx, i);
      OP_REQUIRES(ctx, tensorflow::LookupResource(ctx, handle, &variables[i]).ok(),
                  NoValue(ctx, i));
      // Memory that is new to a process costs more than the copy, so it is not left to the time
      // when others wait.
      tensorflow::tf_shared_lock lock(*variables[i]->mu());
      if (IsCopied(*variables[i])) {
        OP_REQUIRES_OK(ctx,
                       ctx->allocate_temp(dtypes_[i], variables[i]->tensor()->shape(), &values[i]));
        AddPieces(nullptr, values[i], &touched);
      }
    }
    CopyPieces(ctx, touched);

    // In the order of addresses, as in TensorFlow's own kernels that lock several variables.
    std::vector<tensorflow::mutex*> mutexes;
    for (const auto& variable : variables) mutexes.push_back(variable->mu());
    std::sort(mutexes.begin(), mutexes.end());
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    std::vector<tensorflow::mutex_lock> locks;
    locks.reserve(mutexes.size());
    for (tensorflow::mutex* mutex : mutexes) locks.emplace_back(*mutex);

    std::vector<CopiedPiece> copied;
    for (int i = 0; i < count; ++i) {
      const Tensor& value = *variables[i]->tensor();
      OP_REQUIRES(ctx, variables[i]->is_initialized && value.dtype() == dtypes_[i],
                  NoValue(ctx, i));
      if (!IsCopied(*variables[i])) {
        values[i] = variables[i]->copy_on_read_mode ? tensorflow::tensor::DeepCopy(value) : value;
        continue;
      }
      if (!values[i].IsInitialized() || values[i].shape() != value.shape()) {
        OP_REQUIRES_OK(ctx, ctx->allocate_temp(dtypes_[i], value.shape(), &values[i]));
      }
      AddPieces(&value, values[i], &copied);
    }
    CopyPieces(ctx, copied);
    locks.clear();
    for (int i = 0; i < count; ++i) ctx->set_output(i, values[i]);
  }

 private:
  static bool IsCopied(Var& variable) {
    return variable.copy_on_read_mode && variable.is_initialized &&
           tensorflow::DataTypeCanUseMemcpy(variable.tensor()->dtype());
  }

  absl::Status NoValue(OpKernelContext* ctx, int i) const {
    return absl::FailedPreconditionError("variable " + tensorflow::HandleFromInput(ctx, i).name() +
                                         " has no value of type " +
                                         tensorflow::DataTypeString(dtypes_[i]));
  }

  tensorflow::DataTypeVector dtypes_;
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
