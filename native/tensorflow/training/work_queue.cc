#include "training/work_queue.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"

// The kernels of tensorwire.tf.WorkQueue. They run on the task that has the queue's variable.
//
// An item is taken by a *holder*, which is one WorkQueue object of one worker, and is in work until
// the holder reports it done or gives it back. The variable has what a checkpoint needs: which
// items were taken, and which of these are not done. Who has them is known only here, in `Leases`:
// after a restore nobody has any, and what was in work is given out again.

namespace tensorwire::plugin {
namespace {

using std::chrono::steady_clock;
using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::CancellationToken;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

// The variable: a fingerprint of the items and their order, the number of items of all epochs, the
// number of those that were taken; then for each that is taken and not done its number and
// position.
enum { kFingerprint, kTotal, kNext, kHeader };
// Its size does not change, and limits how many items can be in work. What is unused is this.
constexpr int64_t kUnused = -1;

constexpr int64_t kNobody = 0;
constexpr int64_t kNoItem = -2;  // the number where there is no item now

// How long a step that waits for an item sleeps before it looks again.
constexpr int64_t kFirstSleepUs = 10'000;
constexpr int64_t kLongestSleepUs = 200'000;

struct Taken {
  int64_t number = 0;  // of an item of all epochs
  int64_t position = 0;
  bool is_filler = false;  // another holder has it in work
};

// How a holder takes.
struct Taker {
  std::string worker;
  int64_t holder = kNobody;
  int64_t fingerprint = 0;
  double timeout_s = 0;
  bool finishes = false;  // what it took before is done
  bool fills = false;     // takes an item that another one has in work, if no other is left
  int64_t most = 1;       // items that it takes at once, while MostAtOnce allows it
};

// What a holder takes at once, while many items are left: at most this share of what it has done,
// and of what is left for each worker. So whoever is slow or has just come takes one, and in the
// end all do (guided self-scheduling, Polychronopoulos and Kuck, 1987).
constexpr int64_t kShareOfDone = 8;
constexpr int64_t kShareOfLeft = 32;

using Ended = std::function<void(const absl::Status&)>;

class Leases : public tensorflow::ResourceBase, public WorkQueueList::Entry {
 public:
  explicit Leases(std::string name) : name_(std::move(name)) { WorkQueueList::Get().Add(this); }
  ~Leases() override { WorkQueueList::Get().Remove(this); }
  std::string DebugString() const override { return absl::StrCat("work queue ", name_); }

  // Takes items, if there are some now.
  absl::Status Take(const Taker& taker, Var* variable, std::vector<Taken>* taken) {
    TF_RETURN_IF_ERROR(Enter(taker.worker, taker.holder));
    std::lock_guard lock(mutex_);
    tensorflow::mutex_lock variable_lock(*variable->mu());
    TF_RETURN_IF_ERROR(Read(*variable, taker.fingerprint));
    if (taker.finishes) FinishAll(taker.holder);
    for (int64_t left = MostAtOnce(taker); left > 0; --left) {
      const std::optional<Taken> one = TakeOne(taker);
      if (!one) break;
      taken->push_back(*one);
    }
    Write(variable);
    if (taken->empty() && items_.empty()) {
      return absl::OutOfRangeError(absl::StrCat("work queue ", name_, ": all items are done"));
    }
    return absl::OkStatus();
  }

  // Notes what a holder has done. Returns how many receipts were of items that it has in work.
  absl::Status Done(int64_t holder, const Tensor& receipts, Var* variable, int64_t* accepted) {
    std::lock_guard lock(mutex_);
    tensorflow::mutex_lock variable_lock(*variable->mu());
    TF_RETURN_IF_ERROR(Read(*variable, std::nullopt));
    const auto coded = receipts.flat<int64_t>();
    for (int64_t i = 0; i < coded.size(); ++i) {
      const Receipt receipt = Receipt::Of(coded(i));
      const auto at = items_.find(receipt.number);
      if (at == items_.end() || at->second.holder != holder) continue;
      ++*accepted;
      changed_ = true;
      if (at->second.Count(receipt)) Finish(at);
    }
    Write(variable);
    return absl::OkStatus();
  }

  // Keeps `ended` until the holder gives its items back, or is replaced.
  absl::Status Hold(const std::string& worker, int64_t holder, Ended ended) {
    TF_RETURN_IF_ERROR(Enter(worker, holder));
    std::lock_guard lock(mutex_);
    holds_.emplace(holder, std::move(ended));
    return absl::OkStatus();
  }

  // Gives back all items that a holder has in work.
  void GiveBack(int64_t holder, const absl::Status& why = absl::OkStatus()) {
    std::vector<Ended> ended;
    {
      std::lock_guard lock(mutex_);
      for (auto& [number, item] : items_) {
        if (item.holder == holder) item.holder = kNobody;
      }
      const auto [first, last] = holds_.equal_range(holder);
      for (auto at = first; at != last; ++at) ended.push_back(std::move(at->second));
      holds_.erase(first, last);
    }
    for (const Ended& each : ended) each(why);
  }

  WorkQueueFigures Figures() const override {
    std::lock_guard lock(mutex_);
    WorkQueueFigures figures{name_, total_ == Receipt::kItems ? 0 : static_cast<uint64_t>(total_)};
    figures.done = static_cast<uint64_t>(next_) - items_.size();
    figures.workers = counts_;
    for (const auto& [number, item] : items_) {
      ++(item.holder == kNobody ? figures.returned : figures.in_work);
      if (const auto at = workers_.find(item.holder); at != workers_.end()) {
        ++figures.workers[at->second].in_work;
      }
    }
    return figures;
  }

 private:
  struct Item {
    int64_t holder = kNobody;
    steady_clock::time_point until = steady_clock::time_point::max();
    steady_clock::duration timeout{0};
    int64_t position = 0;            // the elements before it are done
    int64_t counted = 0;             // elements that are done
    int64_t size = Receipt::kItems;  // its elements, if that is known

    // Notes an element that is done. Returns whether all are.
    bool Count(const Receipt& receipt) {
      if (timeout.count() > 0) until = steady_clock::now() + timeout;
      if (receipt.index == Receipt::kWholeItem) return true;
      ++counted;
      if (receipt.index == position) ++position;
      if (receipt.is_last) size = receipt.index + 1;
      return counted >= size;
    }
  };
  using Items = std::map<int64_t, Item>;  // by number

  absl::Status Read(Var& variable, std::optional<int64_t> fingerprint) {
    const Tensor& value = *variable.tensor();
    if (!variable.is_initialized || value.NumElements() < kHeader) {
      return absl::FailedPreconditionError(absl::StrCat(
          "work queue ", name_, " is not initialized: run its variable's initializer"));
    }
    const auto state = value.flat<int64_t>();
    if (fingerprint && state(kFingerprint) != *fingerprint) {
      return absl::InvalidArgumentError(
          absl::StrCat("work queue ", name_,
                       ": items, num_epochs, shuffle or seed differ from those of another "
                       "worker or of the checkpoint; give a queue of other items another name"));
    }
    // Every change makes a new tensor. `value_` keeps the last one, so no other has its address.
    if (value_.NumElements() > 0 && state.data() == value_.flat<int64_t>().data()) {
      return absl::OkStatus();
    }
    value_ = value;
    total_ = std::min(state(kTotal), Receipt::kItems);
    next_ = state(kNext);
    items_.clear();
    for (int64_t at = kHeader; at + 1 < state.size() && state(at) != kUnused; at += 2) {
      Item& item = items_[state(at)];
      item.position = item.counted = state(at + 1);
    }
    return absl::OkStatus();
  }

  void Write(Var* variable) {
    if (!changed_) return;
    changed_ = false;
    Tensor value(tensorflow::DT_INT64, value_.shape());
    auto state = value.flat<int64_t>();
    state.setConstant(kUnused);
    state(kFingerprint) = value_.flat<int64_t>()(kFingerprint);
    state(kTotal) = value_.flat<int64_t>()(kTotal);
    state(kNext) = next_;
    int64_t at = kHeader;
    for (const auto& [number, item] : items_) {
      state(at++) = number;
      state(at++) = item.position;
    }
    *variable->tensor() = value_ = value;
  }

  // At most half of the state's places are for those that take several.
  int64_t MostAtOnce(const Taker& taker) {
    const auto workers = static_cast<int64_t>(holders_.size());
    const auto done = static_cast<int64_t>(counts_[taker.worker].done);
    const int64_t places = (value_.NumElements() - kHeader) / 2;
    return std::max<int64_t>(
        1, std::min({taker.most, done / kShareOfDone, (total_ - next_) / kShareOfLeft / workers,
                     places / 2 / workers}));
  }

  std::optional<Taken> TakeOne(const Taker& taker) {
    const auto now = steady_clock::now();
    auto at = std::find_if(items_.begin(), items_.end(), [now](const auto& entry) {
      return entry.second.holder == kNobody || entry.second.until <= now;
    });
    if (at == items_.end()) {
      const auto places = static_cast<size_t>(value_.NumElements() - kHeader) / 2;
      if (next_ < total_ && items_.size() >= places) return std::nullopt;
      if (next_ >= total_) {
        if (!taker.fills || items_.empty()) return std::nullopt;
        // Starts with another one each time, so that holders fill with different items.
        filler_ = (filler_ + 1) % items_.size();
        const auto other = std::next(items_.begin(), static_cast<int64_t>(filler_));
        return Taken{other->first, other->second.position, /*is_filler=*/true};
      }
      at = items_.try_emplace(next_++).first;
      changed_ = true;
    }
    Item& item = at->second;
    item.holder = taker.holder;
    item.counted = item.position;
    item.timeout = std::chrono::duration_cast<steady_clock::duration>(
        std::chrono::duration<double>(taker.timeout_s));
    item.until = taker.timeout_s > 0 ? now + item.timeout : steady_clock::time_point::max();
    ++counts_[taker.worker].taken;
    return Taken{at->first, item.position};
  }

  Items::iterator Finish(Items::iterator at) {
    if (const auto worker = workers_.find(at->second.holder); worker != workers_.end()) {
      ++counts_[worker->second].done;
    }
    changed_ = true;
    return items_.erase(at);
  }

  void FinishAll(int64_t holder) {
    for (auto at = items_.begin(); at != items_.end();) {
      at = at->second.holder == holder ? Finish(at) : std::next(at);
    }
  }

  // A worker has one holder at a time, the last one: its task was started again.
  absl::Status Enter(const std::string& worker, int64_t holder) {
    const absl::Status replaced = absl::FailedPreconditionError(absl::StrCat(
        "work queue ", name_, ": another task or another WorkQueue has taken over as ", worker));
    int64_t former = kNobody;
    {
      std::lock_guard lock(mutex_);
      if (!workers_.try_emplace(holder, worker).second) {
        return holders_[worker] == holder ? absl::OkStatus() : replaced;
      }
      former = std::exchange(holders_[worker], holder);
    }
    if (former != kNobody) GiveBack(former, replaced);
    return absl::OkStatus();
  }

  const std::string name_;
  mutable std::mutex mutex_;
  Tensor value_;
  int64_t total_ = 0;
  int64_t next_ = 0;
  Items items_;  // taken and not done
  bool changed_ = false;
  size_t filler_ = 0;
  std::map<int64_t, std::string> workers_;  // by holder, also those that were replaced
  std::map<std::string, int64_t> holders_;  // by worker
  std::multimap<int64_t, Ended> holds_;
  std::map<std::string, WorkQueueFigures::Worker> counts_;
};

using SharedLeases = std::shared_ptr<Leases>;

// What an operation works on.
struct Queue {
  tensorflow::core::RefCountPtr<Var> variable;
  SharedLeases leases;

  absl::Status Find(OpKernelContext* ctx) {
    const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(ctx, 0);
    TF_RETURN_IF_ERROR(LookupResource(ctx, handle, &variable));
    const auto create = [&handle](Leases** made) {
      *made = new Leases(handle.name());
      return absl::OkStatus();
    };
    Leases* found = nullptr;
    TF_RETURN_IF_ERROR(ctx->resource_manager()->LookupOrCreate<Leases>(
        handle.container(), handle.name(), &found, create));
    leases = SharedLeases(found, [](Leases* shared) { shared->Unref(); });
    return absl::OkStatus();
  }
};

// While all items that are left are in other holders' work, it waits, or outputs kNoItem.
class TakeOp : public AsyncOpKernel {
 public:
  explicit TakeOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("worker", &taker_.worker));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("holder", &taker_.holder));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("fingerprint", &taker_.fingerprint));
    float timeout_s = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("timeout_s", &timeout_s));
    taker_.timeout_s = timeout_s;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("finishes", &taker_.finishes));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("fills", &taker_.fills));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("waits", &waits_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("most", &taker_.most));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    Try(ctx, std::move(done), kFirstSleepUs);
  }

 private:
  void Try(OpKernelContext* ctx, DoneCallback done, int64_t sleep_us) {
    Queue queue;
    std::vector<Taken> taken;
    absl::Status status = queue.Find(ctx);
    if (status.ok()) status = queue.leases->Take(taker_, queue.variable.get(), &taken);
    if (status.ok() && taken.empty() && IsCancelled(ctx)) {
      status = absl::CancelledError("waiting for an item of a work queue was cancelled");
    }
    if (status.ok() && taken.empty() && waits_) {
      // Events alone would not do: an item's timeout is none, nor is that a checkpoint was
      // restored.
      tensorflow::Env::Default()->SchedClosureAfter(
          sleep_us, [this, ctx, done = std::move(done),
                     next_us = std::min(2 * sleep_us, kLongestSleepUs)]() mutable {
            Try(ctx, std::move(done), next_us);
          });
      return;
    }
    if (taken.empty()) taken.push_back(Taken{kNoItem});
    if (status.ok()) status = Output(ctx, taken);
    if (!status.ok()) ctx->SetStatus(status);
    done();
  }

  static bool IsCancelled(OpKernelContext* ctx) {
    return ctx->cancellation_manager() != nullptr && ctx->cancellation_manager()->IsCancelled();
  }

  static absl::Status Output(OpKernelContext* ctx, const std::vector<Taken>& taken) {
    const auto count = static_cast<int64_t>(taken.size());
    Tensor* number = nullptr;
    Tensor* receipt = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {count}, &number));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {count}, &receipt));
    for (int64_t i = 0; i < count; ++i) {
      const Taken& one = taken[i];
      number->vec<int64_t>()(i) = one.number;
      receipt->vec<int64_t>()(i) =
          Receipt{one.is_filler ? kNoNumber : one.number, one.position}.Coded();
    }
    return absl::OkStatus();
  }

  bool waits_ = true;
  Taker taker_;
};

class DoneOp : public OpKernel {
 public:
  explicit DoneOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("holder", &holder_));
  }

  void Compute(OpKernelContext* ctx) override {
    Tensor* accepted = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &accepted));
    int64_t& count = accepted->scalar<int64_t>()() = 0;
    Queue queue;
    OP_REQUIRES_OK(ctx, queue.Find(ctx));
    OP_REQUIRES_OK(ctx, queue.leases->Done(holder_, ctx->input(1), queue.variable.get(), &count));
  }

 private:
  int64_t holder_ = kNobody;
};

// Ends when the holder gives its items back. If its session ends before that, as it does when the
// worker's process dies, the step is cancelled, and the items are given back for it.
class HoldOp : public AsyncOpKernel {
 public:
  explicit HoldOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("worker", &worker_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("holder", &holder_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    Queue queue;
    OP_REQUIRES_OK_ASYNC(ctx, queue.Find(ctx), done);
    CancellationManager* const cancellation = ctx->cancellation_manager();
    const CancellationToken token = cancellation->get_cancellation_token();
    const auto ended = [ctx, cancellation, token, done](const absl::Status& why) {
      cancellation->TryDeregisterCallback(token);
      if (!why.ok()) ctx->SetStatus(why);
      done();
    };
    OP_REQUIRES_OK_ASYNC(ctx, queue.leases->Hold(worker_, holder_, ended), done);
    const auto give_back = [leases = queue.leases, holder = holder_] { leases->GiveBack(holder); };
    if (!cancellation->RegisterCallback(token, give_back)) give_back();
  }

 private:
  std::string worker_;
  int64_t holder_ = kNobody;
};

class GiveBackOp : public OpKernel {
 public:
  explicit GiveBackOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("holder", &holder_));
  }

  void Compute(OpKernelContext* ctx) override {
    Queue queue;
    OP_REQUIRES_OK(ctx, queue.Find(ctx));
    queue.leases->GiveBack(holder_);
  }

 private:
  int64_t holder_ = kNobody;
};

using tensorflow::shape_inference::ScalarShape;

REGISTER_OP("TensorwireWorkTake")
    .Input("state: resource")
    .Output("number: int64")
    .Output("receipt: int64")
    .Attr("worker: string")
    .Attr("holder: int")
    .Attr("fingerprint: int")
    .Attr("timeout_s: float")
    .Attr("finishes: bool")
    .Attr("fills: bool")
    .Attr("waits: bool")
    .Attr("most: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      const auto count = c->MakeDim(c->UnknownDim());
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(count));
      return absl::OkStatus();
    });
REGISTER_OP("TensorwireWorkDone")
    .Input("state: resource")
    .Input("receipts: int64")
    .Output("accepted: int64")
    .Attr("holder: int")
    .SetIsStateful()
    .SetShapeFn(ScalarShape);
REGISTER_OP("TensorwireWorkHold")
    .Input("state: resource")
    .Attr("worker: string")
    .Attr("holder: int")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);
REGISTER_OP("TensorwireWorkGiveBack")
    .Input("state: resource")
    .Attr("holder: int")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

using tensorflow::DEVICE_CPU;

REGISTER_KERNEL_BUILDER(Name("TensorwireWorkTake").Device(DEVICE_CPU), TakeOp);
REGISTER_KERNEL_BUILDER(Name("TensorwireWorkDone").Device(DEVICE_CPU), DoneOp);
REGISTER_KERNEL_BUILDER(Name("TensorwireWorkHold").Device(DEVICE_CPU), HoldOp);
REGISTER_KERNEL_BUILDER(Name("TensorwireWorkGiveBack").Device(DEVICE_CPU), GiveBackOp);

// What a checkpoint says of a queue must not be newer than its variables: an item that counts as
// done is not trained on again, so its updates have to be in the checkpoint. A save reads all
// variables at once. This pass lets it read the states of queues first.
class SaveOrderPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr) return absl::OkStatus();
    tensorflow::Graph* const graph = options.graph->get();
    std::set<tensorflow::Node*> states;
    std::set<tensorflow::Node*> others;
    for (tensorflow::Node* save : graph->op_nodes()) {
      if (save->type_string() != "SaveV2") continue;
      others.insert(save);
      for (const tensorflow::Edge* edge : save->in_edges()) {
        tensorflow::Node* read = edge->src();
        const tensorflow::Edge* before = nullptr;
        while (read->IsIdentity() && read->input_edge(0, &before).ok()) read = before->src();
        if (read->type_string() != "ReadVariableOp" &&
            read->type_string() != "TensorwireReadTogether") {
          continue;
        }
        const bool has_state = absl::c_any_of(read->in_edges(), [](const tensorflow::Edge* input) {
          return input->src()->attrs().FindByString(kWorkQueueAttr) != nullptr;
        });
        (has_state ? states : others).insert(read);
      }
    }
    for (tensorflow::Node* state : states) {
      for (tensorflow::Node* other : others) graph->AddControlEdge(state, other);
    }
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_PLACEMENT, 100, SaveOrderPass);

}  // namespace
}  // namespace tensorwire::plugin
