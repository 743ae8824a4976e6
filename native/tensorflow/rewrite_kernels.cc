#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "counters.h"
#include "rewrite_pull.h"
#include "rewrite_push.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Numbers the distinct ids that it is given, from 0. A hash table with open addressing; at most
// half of it is in use.
template <typename Id>
class IdNumbers {
 public:
  explicit IdNumbers(size_t most_ids) {
    size_t bits = 3;
    while ((size_t{1} << bits) < 2 * most_ids) ++bits;
    shift_ = 64 - bits;
    places_.assign(size_t{1} << bits, kNone);
  }

  // The number of `id`; `next`, the number of ids so far, if the id is new. `ids` has the ids so
  // far.
  int32_t Number(Id id, const Id* ids, int32_t next) {
    // The multiplication spreads consecutive ids over the upper bits (Knuth).
    size_t place = (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull) >> shift_;
    while (places_[place] != kNone) {
      if (ids[places_[place]] == id) return places_[place];
      place = (place + 1) & (places_.size() - 1);
    }
    places_[place] = next;
    return next;
  }

 private:
  static constexpr int32_t kNone = -1;
  size_t shift_ = 0;
  std::vector<int32_t> places_;
};

// See kUniqueIdsLabel.
template <typename Id>
class UniqueIdsOp : public tensorflow::OpKernel {
 public:
  explicit UniqueIdsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kTableRowsAttr, &rows_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kArePulledAttr, &are_pulled_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& ids = ctx->input(0);
    const int64_t count = ids.NumElements();
    OP_REQUIRES(ctx, count <= std::numeric_limits<int32_t>::max(),
                absl::InvalidArgumentError("unique_pull: more ids than 32 bits can number"));
    Tensor* numbers = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, ids.shape(), &numbers));
    const Id* const from = ids.flat<Id>().data();
    int32_t* const number = numbers->flat<int32_t>().data();
    const bool are_rows =
        std::all_of(from, from + count, [this](Id id) { return id >= 0 && id < rows_; });
    // Pulled ids that are rows are unique.
    if (are_rows == are_pulled_) {
      IdNumbers<Id> seen(are_pulled_ ? 0 : static_cast<size_t>(count));
      for (int64_t i = 0; i < count && !are_pulled_; ++i) {
        number[i] = seen.Number(from[i], from, static_cast<int32_t>(i));
      }
      ctx->set_output(0, ids);
      return;
    }
    IdNumbers<Id> seen(static_cast<size_t>(count));
    std::vector<Id> unique;
    unique.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const auto next = static_cast<int32_t>(unique.size());
      number[i] = seen.Number(from[i], unique.data(), next);
      if (number[i] == next) unique.push_back(from[i]);
    }
    const auto unique_count = static_cast<int64_t>(unique.size());
    Tensor* out = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({unique_count}), &out));
    std::copy(unique.begin(), unique.end(), out->flat<Id>().data());
    if (are_pulled_) return;
    Counters().looked_up_ids.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
    Counters().unique_ids.fetch_add(static_cast<uint64_t>(unique_count), std::memory_order_relaxed);
  }

 private:
  int64_t rows_ = 0;
  bool are_pulled_ = false;
};

// See kSumRowsOp.
template <typename Value>
class SumRowsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& values = ctx->input(0);
    const Tensor& numbers = ctx->input(1);
    const int64_t count = numbers.NumElements();
    // Worded as UnsortedSegmentSum's error; its segment ids are a vector.
    OP_REQUIRES(ctx, values.dims() > 0 && values.dim_size(0) == count,
                absl::InvalidArgumentError("data.shape = " + values.shape().DebugString() +
                                           " does not start with segment_ids.shape = " +
                                           TensorShape({count}).DebugString()));
    // The numbers are below `count`. They have gaps if the ids were sent unchanged.
    std::vector<int32_t> number(static_cast<size_t>(count));
    std::vector<int32_t> without_gaps(static_cast<size_t>(count), -1);
    int32_t rows = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t one = numbers.flat<int32_t>()(i);
      OP_REQUIRES(ctx, one >= 0 && one < count,
                  absl::InternalError("summed_push: a number that is not of these ids"));
      int32_t& row = without_gaps[static_cast<size_t>(one)];
      if (row < 0) row = rows++;
      number[static_cast<size_t>(i)] = row;
    }
    TensorShape shape = values.shape();
    shape.set_dim(0, rows);
    Tensor* sums = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &sums));
    if (sums->NumElements() == 0) return;
    const int64_t columns = values.NumElements() / count;
    const Value* const from = values.flat<Value>().data();
    Value* const to = sums->flat<Value>().data();
    std::fill(to, to + rows * columns, Value(0));
    // Values are added in the same order as in UnsortedSegmentSum, so that sums are equal bit by
    // bit. So the threads divide the columns, not the rows.
    const auto add = [=, &number](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < count; ++i) {
        const Value* const row = from + i * columns;
        Value* const sum = to + number[static_cast<size_t>(i)] * columns;
        for (int64_t column = begin; column < end; ++column) sum[column] += row[column];
      }
    };
    const auto& threads = *ctx->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(threads.num_threads, threads.workers, columns, count, add);
  }
};

#define TENSORWIRE_UNIQUE_IDS(type)                               \
  REGISTER_KERNEL_BUILDER(Name("Unique")                          \
                              .Device(tensorflow::DEVICE_CPU)     \
                              .TypeConstraint<type>("T")          \
                              .TypeConstraint<int32_t>("out_idx") \
                              .Label(kUniqueIdsLabel),            \
                          UniqueIdsOp<type>)
TENSORWIRE_UNIQUE_IDS(int32_t);
TENSORWIRE_UNIQUE_IDS(int64_t);
#undef TENSORWIRE_UNIQUE_IDS

REGISTER_OP(kSumRowsOp)
    .Input("values: T")
    .Input("numbers: int32")
    .Output("sums: T")
    .Attr("T: {float, double}")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);
REGISTER_KERNEL_BUILDER(Name(kSumRowsOp).Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"),
                        SumRowsOp<float>);
REGISTER_KERNEL_BUILDER(Name(kSumRowsOp).Device(tensorflow::DEVICE_CPU).TypeConstraint<double>("T"),
                        SumRowsOp<double>);

}  // namespace
}  // namespace tensorwire::plugin
