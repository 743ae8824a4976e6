#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "metrics/single.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "training/work_queue.h"

// The elements of a work queue's items. These kernels run on the worker.

namespace tensorwire::plugin {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::data::DatasetBase;
using tensorflow::data::DatasetContext;
using tensorflow::data::IteratorContext;

// The items without elements that this process has met, until they are reported; by holder.
class EmptyItems {
 public:
  static EmptyItems& Get() { return Single<EmptyItems>(); }
  void Add(int64_t holder, const Receipt& receipt) {
    std::lock_guard lock(mutex_);
    receipts_[holder].push_back(receipt.Coded());
  }
  std::vector<int64_t> Take(int64_t holder) {
    std::lock_guard lock(mutex_);
    return std::exchange(receipts_[holder], {});
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::vector<int64_t>> receipts_;
};

// The elements of an item, each with its receipt. An element is held back until the next or the end
// is there, so that the last one is known. Of an item that another holder has, only the first one.
class ElementsDataset : public DatasetBase {
 public:
  ElementsDataset(OpKernelContext* ctx, const DatasetBase* elements, int64_t first, int64_t holder)
      : DatasetBase(DatasetContext(ctx)),
        elements_(elements),
        first_(Receipt::Of(first)),
        holder_(holder),
        types_(elements->output_dtypes()),
        shapes_(elements->output_shapes()) {
    elements_->Ref();
    types_.push_back(tensorflow::DT_INT64);
    shapes_.push_back(tensorflow::PartialTensorShape({}));
  }
  ~ElementsDataset() override { elements_->Unref(); }

  const tensorflow::DataTypeVector& output_dtypes() const override { return types_; }
  const std::vector<tensorflow::PartialTensorShape>& output_shapes() const override {
    return shapes_;
  }
  std::string DebugString() const override { return "the elements of a work queue's item"; }
  absl::Status InputDatasets(std::vector<const DatasetBase*>* inputs) const override {
    inputs->push_back(elements_);
    return absl::OkStatus();
  }
  absl::Status CheckExternalState() const override { return elements_->CheckExternalState(); }

 protected:
  absl::Status AsGraphDefInternal(tensorflow::data::SerializationContext*, DatasetGraphDefBuilder*,
                                  tensorflow::Node**) const override {
    return absl::UnimplementedError(absl::StrCat(DebugString(), " cannot be stored"));
  }
  std::unique_ptr<tensorflow::data::IteratorBase> MakeIteratorInternal(
      const std::string& prefix) const override {
    return std::make_unique<Iterator>(Iterator::Params{this, absl::StrCat(prefix, "::WorkItem")});
  }

 private:
  class Iterator : public tensorflow::data::DatasetIterator<ElementsDataset> {
   public:
    using DatasetIterator<ElementsDataset>::DatasetIterator;

    absl::Status Initialize(IteratorContext* ctx) override {
      TF_RETURN_IF_ERROR(dataset()->elements_->MakeIterator(ctx, this, prefix(), &elements_));
      receipt_ = dataset()->first_;
      return absl::OkStatus();
    }

   protected:
    absl::Status GetNextInternal(IteratorContext* ctx, std::vector<Tensor>* element,
                                 bool* is_end) override {
      std::lock_guard lock(mutex_);
      if (!has_begun_) {
        TF_RETURN_IF_ERROR(Advance(ctx));
        has_begun_ = true;
        if (has_ended_ && receipt_.number != kNoNumber) {
          EmptyItems::Get().Add(dataset()->holder_, {receipt_.number, Receipt::kWholeItem, true});
        }
      }
      *is_end = has_ended_;
      if (has_ended_) return absl::OkStatus();
      *element = std::move(next_);
      if (receipt_.number == kNoNumber) {
        has_ended_ = true;
      } else {
        TF_RETURN_IF_ERROR(Advance(ctx));
      }
      receipt_.is_last = has_ended_;
      element->emplace_back(receipt_.Coded());
      ++receipt_.index;
      return absl::OkStatus();
    }
    absl::Status SaveInternal(tensorflow::data::SerializationContext*,
                              tensorflow::data::IteratorStateWriter*) override {
      return absl::UnimplementedError("the variable of a work queue has its state");
    }
    absl::Status RestoreInternal(IteratorContext*,
                                 tensorflow::data::IteratorStateReader*) override {
      return absl::UnimplementedError("the variable of a work queue has its state");
    }

   private:
    absl::Status Advance(IteratorContext* ctx) {
      next_.clear();
      return elements_->GetNext(ctx, &next_, &has_ended_);
    }

    std::mutex mutex_;
    std::unique_ptr<tensorflow::data::IteratorBase> elements_;
    std::vector<Tensor> next_;
    Receipt receipt_{};  // of `next_`
    bool has_begun_ = false;
    bool has_ended_ = false;
  };

  const DatasetBase* const elements_;
  const Receipt first_;
  const int64_t holder_;
  tensorflow::DataTypeVector types_;
  std::vector<tensorflow::PartialTensorShape> shapes_;
};

class ElementsOp : public tensorflow::data::UnaryDatasetOpKernel {
 public:
  explicit ElementsOp(OpKernelConstruction* ctx) : UnaryDatasetOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("holder", &holder_));
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input, DatasetBase** output) override {
    *output = new ElementsDataset(ctx, input, ctx->input(1).scalar<int64_t>()(), holder_);
  }

 private:
  int64_t holder_ = 0;
};

class EmptyItemsOp : public OpKernel {
 public:
  explicit EmptyItemsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("holder", &holder_));
  }

  void Compute(OpKernelContext* ctx) override {
    const std::vector<int64_t> receipts = EmptyItems::Get().Take(holder_);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {static_cast<int64_t>(receipts.size())}, &output));
    std::copy(receipts.begin(), receipts.end(), output->flat<int64_t>().data());
  }

 private:
  int64_t holder_ = 0;
};

REGISTER_OP("TensorwireWorkElements")
    .Input("elements: variant")
    .Input("first: int64")
    .Output("handle: variant")
    .Attr("holder: int")
    .SetDoNotOptimize()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);
REGISTER_OP("TensorwireWorkEmptyItems")
    .Output("receipts: int64")
    .Attr("holder: int")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(tensorflow::shape_inference::InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("TensorwireWorkElements").Device(tensorflow::DEVICE_CPU), ElementsOp);
REGISTER_KERNEL_BUILDER(Name("TensorwireWorkEmptyItems").Device(tensorflow::DEVICE_CPU),
                        EmptyItemsOp);

}  // namespace
}  // namespace tensorwire::plugin
