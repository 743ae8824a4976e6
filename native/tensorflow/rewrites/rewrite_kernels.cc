#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "metrics/counters.h"
#include "rewrites/rewrite_pass.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"
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

// Whether all ids are rows of a table of this size.
template <typename Id>
bool AreRows(const Tensor& ids, int64_t rows) {
  const Id* const from = ids.flat<Id>().data();
  return std::all_of(from, from + ids.NumElements(),
                     [rows](Id id) { return id >= 0 && id < rows; });
}

absl::Status CheckNumber(const Tensor& ids) {
  if (ids.NumElements() <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError("unique_pull: more ids than 32 bits can number");
}

// Makes output 0: each id once, in order of first occurrence. Calls number_of(i, number of id i).
template <typename Id, typename NumberOf>
absl::Status OutputUnique(OpKernelContext* ctx, const Tensor& ids, NumberOf number_of) {
  const int64_t count = ids.NumElements();
  const Id* const from = ids.flat<Id>().data();
  IdNumbers<Id> seen(static_cast<size_t>(count));
  std::vector<Id> unique;
  unique.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto next = static_cast<int32_t>(unique.size());
    const int32_t number = seen.Number(from[i], unique.data(), next);
    if (number == next) unique.push_back(from[i]);
    number_of(i, number);
  }
  Tensor* out = nullptr;
  const TensorShape shape({static_cast<int64_t>(unique.size())});
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, shape, &out));
  std::copy(unique.begin(), unique.end(), out->flat<Id>().data());
  return absl::OkStatus();
}

// See kUniqueIdsLabel.
template <typename Id>
class UniqueIdsOp : public tensorflow::OpKernel {
 public:
  explicit UniqueIdsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kTableRowsAttr, &rows_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& ids = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckNumber(ids));
    Tensor* numbers = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, ids.shape(), &numbers));
    int32_t* const to = numbers->flat<int32_t>().data();
    if (AreRows<Id>(ids, rows_)) {
      OP_REQUIRES_OK(ctx, OutputUnique<Id>(ctx, ids, [to](int64_t i, int32_t n) { to[i] = n; }));
      const auto sent = static_cast<uint64_t>(ctx->mutable_output(0)->NumElements());
      const auto looked_up = static_cast<uint64_t>(ids.NumElements());
      Counters().looked_up_ids.fetch_add(looked_up, std::memory_order_relaxed);
      Counters().unique_ids.fetch_add(sent, std::memory_order_relaxed);
      return;
    }
    const int64_t count = ids.NumElements();
    const Id* const from = ids.flat<Id>().data();
    IdNumbers<Id> seen(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) to[i] = seen.Number(from[i], from, static_cast<int32_t>(i));
    ctx->set_output(0, ids);
  }

 private:
  int64_t rows_ = 0;
};

// See kListRowsOp.
class ListRowsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& rows = ctx->input(0);
    const Tensor& ids = ctx->input(1);
    if (ids.dims() == 1) {
      ctx->set_output(0, rows);
      return;
    }
    TensorShape shape = rows.shape();
    OP_REQUIRES(ctx, tensorflow::TensorShapeUtils::StartsWith(shape, ids.shape()),
                absl::InternalError("unique_pull: rows " + shape.DebugString() + " of ids " +
                                    ids.shape().DebugString()));
    shape.RemoveDimRange(0, ids.dims());
    shape.InsertDim(0, ids.NumElements());
    Tensor list;
    OP_REQUIRES(ctx, list.CopyFrom(rows, shape), absl::InternalError("unique_pull: wrong shape"));
    ctx->set_output(0, list);
  }
};

// See kPulledIdsOp.
template <typename Id>
class PulledIdsOp : public tensorflow::OpKernel {
 public:
  explicit PulledIdsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rows", &rows_));
  }

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& ids = ctx->input(0);
    if (AreRows<Id>(ids, rows_)) {
      ctx->set_output(0, ids);
      return;
    }
    OP_REQUIRES_OK(ctx, CheckNumber(ids));
    OP_REQUIRES_OK(ctx, OutputUnique<Id>(ctx, ids, [](int64_t, int32_t) {}));
  }

 private:
  int64_t rows_ = 0;
};

// Sets *rows to the number of rows of the sums, and `rows_of` to the row that each element is added
// to; empty if that is its number, because the numbers have no gaps. Numbers are in order of first
// occurrence and below their count; they have gaps if the ids were sent unchanged. False if they
// are anything else.
bool RowsOf(const Tensor& numbers, int32_t* rows, std::vector<int32_t>* rows_of) {
  const auto number = numbers.flat<int32_t>();
  const auto count = static_cast<int32_t>(number.size());
  *rows = 0;
  int32_t i = 0;
  for (; i < count && number(i) >= 0 && number(i) <= *rows; ++i) {
    if (number(i) == *rows) ++*rows;
  }
  if (i == count) return true;
  *rows = 0;
  rows_of->resize(static_cast<size_t>(count));
  std::vector<int32_t> without_gaps(static_cast<size_t>(count), -1);
  for (i = 0; i < count; ++i) {
    if (number(i) < 0 || number(i) >= count) return false;
    int32_t& row = without_gaps[static_cast<size_t>(number(i))];
    if (row < 0) row = (*rows)++;
    (*rows_of)[static_cast<size_t>(i)] = row;
  }
  return true;
}

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
    int32_t rows = 0;
    std::vector<int32_t> rows_of;
    OP_REQUIRES(ctx, RowsOf(numbers, &rows, &rows_of),
                absl::InternalError("summed_push: a number that is not of these ids"));
    const int32_t* const row_of = rows_of.empty() ? numbers.flat<int32_t>().data() : rows_of.data();
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
    const auto add = [=](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < count; ++i) {
        const Value* const row = from + i * columns;
        Value* const sum = to + row_of[i] * columns;
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

REGISTER_OP(kListRowsOp)
    .Input("rows: T")
    .Input("ids: Tids")
    .Output("list: T")
    .Attr("T: type")
    .Attr("Tids: {int32, int64}")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);
REGISTER_KERNEL_BUILDER(Name(kListRowsOp).Device(tensorflow::DEVICE_CPU), ListRowsOp);

REGISTER_OP(kPulledIdsOp)
    .Input("ids: T")
    .Output("unique: T")
    .Attr("T: {int32, int64}")
    .Attr("rows: int")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);
#define TENSORWIRE_PULLED_IDS(type)                                                \
  REGISTER_KERNEL_BUILDER(                                                         \
      Name(kPulledIdsOp).Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"), \
      PulledIdsOp<type>)
TENSORWIRE_PULLED_IDS(int32_t);
TENSORWIRE_PULLED_IDS(int64_t);
#undef TENSORWIRE_PULLED_IDS

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
