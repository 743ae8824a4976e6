#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "rewrites/narrow_pass.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/lib/random/philox_random.h"
#include "tensorflow/core/lib/random/random.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tensorwire::plugin {
namespace {

using Eigen::numext::bit_cast;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

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

// The number of elements that one thread takes at once.
constexpr int64_t kPiece = 1024;

// Calls `convert(begin, end)` for all pieces of a tensor, in several threads if it is large.
template <typename Convert>
void InPieces(OpKernelContext* ctx, int64_t elements, Convert convert) {
  constexpr int64_t kCyclesAPiece = 2 * kPiece;
  const auto& threads = *ctx->device()->tensorflow_cpu_worker_threads();
  const int64_t pieces = (elements + kPiece - 1) / kPiece;
  tensorflow::Shard(threads.num_threads, threads.workers, pieces, kCyclesAPiece,
                    [&](int64_t first, int64_t last) {
                      for (int64_t piece = first; piece < last; ++piece) {
                        convert(piece * kPiece, std::min((piece + 1) * kPiece, elements));
                      }
                    });
}

// See kNarrowOp.
template <typename Narrow>
class NarrowOp : public OpKernel {
 public:
  explicit NarrowOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("by_chance", &by_chance_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& wide = ctx->input(0);
    Tensor* narrow = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, wide.shape(), &narrow));
    const float* const from = wide.flat<float>().data();
    Narrow* const to = narrow->flat<Narrow>().data();
    if (!by_chance_) {
      InPieces(ctx, wide.NumElements(), [from, to](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = static_cast<Narrow>(from[i]);
      });
      return;
    }
    const uint64_t call = calls_.fetch_add(1, std::memory_order_relaxed);
    InPieces(ctx, wide.NumElements(), [this, call, from, to](int64_t begin, int64_t end) {
      using tensorflow::random::PhiloxRandom;
      constexpr int64_t kEach = int64_t{2} * PhiloxRandom::kResultElementCount;  // of 16 bits
      static_assert(kPiece % kEach == 0);
      PhiloxRandom random(seed_, call);
      random.Skip(static_cast<uint64_t>(begin / kEach));
      for (int64_t i = begin; i < end; i += kEach) {
        const PhiloxRandom::ResultType drawn = random();
        for (int64_t k = 0; k < std::min(kEach, end - i); ++k) {
          const uint32_t bits = drawn[static_cast<int>(k / 2)];
          RoundByChance(from[i + k], k % 2 == 0 ? bits & 0xFFFF : bits >> 16, &to[i + k]);
        }
      }
    });
  }

 private:
  bool by_chance_ = false;
  const uint64_t seed_ = tensorflow::random::New64();
  std::atomic<uint64_t> calls_{0};
};

// See kWidenOp.
template <typename Narrow>
class WidenOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& narrow = ctx->input(0);
    Tensor* wide = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, narrow.shape(), &wide));
    const Narrow* const from = narrow.flat<Narrow>().data();
    float* const to = wide->flat<float>().data();
    InPieces(ctx, narrow.NumElements(), [from, to](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = static_cast<float>(from[i]);
    });
  }
};

REGISTER_OP(kNarrowOp)
    .Input("wide: float")
    .Output("narrow: T")
    .Attr("T: {bfloat16, half}")
    .Attr("by_chance: bool")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);
REGISTER_OP(kWidenOp)
    .Input("narrow: T")
    .Output("wide: float")
    .Attr("T: {bfloat16, half}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

#define TENSORWIRE_NARROW(type)                                                                    \
  REGISTER_KERNEL_BUILDER(                                                                         \
      Name(kNarrowOp).Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"), NarrowOp<type>);   \
  REGISTER_KERNEL_BUILDER(Name(kWidenOp).Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"), \
                          WidenOp<type>)
TENSORWIRE_NARROW(Eigen::bfloat16);
TENSORWIRE_NARROW(Eigen::half);
#undef TENSORWIRE_NARROW

}  // namespace
}  // namespace tensorwire::plugin
