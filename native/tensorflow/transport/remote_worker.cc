#include "transport/remote_worker.h"

#include <map>
#include <mutex>
#include <utility>

#include "calls/cancellation.h"
#include "calls/methods.h"
#include "calls/proto_call.h"
#include "metrics/counters.h"
#include "metrics/single.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {
namespace {

// The sessions that masters of this process have open at other tasks. Thread-safe.
class OpenSessions {
 public:
  static OpenSessions& Get() { return Single<OpenSessions>(); }
  void Add(const std::string& task, const std::string& handle) {
    std::lock_guard lock(mutex_);
    open_.emplace(task, handle);
    Counters().open_sessions.store(open_.size(), std::memory_order_relaxed);
  }
  // The session may not be open: a master that could not create it at every task deletes it at all.
  void Remove(const std::string& task, const std::string& handle) {
    std::lock_guard lock(mutex_);
    open_.erase({task, handle});
    Counters().open_sessions.store(open_.size(), std::memory_order_relaxed);
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<std::string, std::string>> open_;
};

// Waits for the status of other tasks. Thread-safe.
class Waits {
 public:
  static Waits& Get() { return Single<Waits>(); }
  uint64_t Add(const std::string& task) {
    std::lock_guard lock(mutex_);
    waits_[++last_] = {task, wire::NowMs()};
    return last_;
  }
  void Remove(uint64_t wait) {
    std::lock_guard lock(mutex_);
    waits_.erase(wait);
  }
  bool Has(uint64_t wait) const {
    std::lock_guard lock(mutex_);
    return waits_.count(wait) != 0;
  }
  std::set<std::string> LongOnes() const {
    std::lock_guard lock(mutex_);
    std::set<std::string> tasks;
    for (const auto& [wait, of] : waits_) {
      if (wire::NowMs() - of.second >= kLongWaitMs) tasks.insert(of.first);
    }
    return tasks;
  }

 private:
  mutable std::mutex mutex_;
  uint64_t last_ = 0;
  std::map<uint64_t, std::pair<std::string, int64_t>> waits_;  // the task, and since when
};

void WarnOfWait(const std::string& task) {
  const bool is_evaluator = task.rfind("/job:evaluator/", 0) == 0;
  LOG(WARNING) << "grpc++: " << task << " has not answered for " << kLongWaitMs / 1000
               << " s, and TensorFlow waits for it before it begins. "
               << (is_evaluator ? "An evaluator never serves: take it out of the cluster"
                                : "Start it; or, if this task does not need it (another worker "
                                  "that has ended), leave it out with device filters")
               << ": `tensorwire run --device-filters auto`, or "
                  "tensorwire.tf.ConfigProto(cluster=..., job_name=..., task_index=...)";
}

}  // namespace

std::set<std::string> AwaitedTasks() { return Waits::Get().LongOnes(); }

void RemoteWorker::GetStatusAsync(CallOptions* options, const tensorflow::GetStatusRequest* request,
                                  tensorflow::GetStatusResponse* response, bool fail_fast,
                                  StatusCallback done) {
  const uint64_t wait = Waits::Get().Add(target_);
  plane_->engine().RunAfter(kLongWaitMs, [wait, target = target_] {
    if (Waits::Get().Has(wait)) WarnOfWait(target);
  });
  grpc_->GetStatusAsync(options, request, response, fail_fast,
                        [wait, done = std::move(done)](const absl::Status& status) {
                          Waits::Get().Remove(wait);
                          done(status);
                        });
}

void RemoteWorker::RunGraphAsync(CallOptions* options, tensorflow::RunGraphRequestWrapper* request,
                                 tensorflow::MutableRunGraphResponseWrapper* response,
                                 StatusCallback done) {
  const int64_t step_id = request->step_id();
  wire::Message message(kRunGraph);
  if (const absl::Status s = PutProto(request->ToProto(), &message); !s.ok()) {
    plane_->failed_steps()->Add(step_id);
    done(s);
    return;
  }
  auto* const proto = get_proto_from_wrapper(response);
  auto ended = [failed_steps = plane_->failed_steps(), step_id, options, proto,
                done = std::move(done)](const absl::Status& status) {
    options->ClearCancelCallback();
    Counters().running_graphs.fetch_sub(1, std::memory_order_relaxed);
    // An error of the graph comes in the response's body.
    if (!status.ok() || static_cast<int>(proto->status_code()) != 0) failed_steps->Add(step_id);
    done(status);
  };
  Counters().running_graphs.fetch_add(1, std::memory_order_relaxed);
  auto call = std::make_unique<ProtoCall>(proto, std::move(ended));
  wire::CallOptions call_options;
  call_options.deadline_ms = options->GetTimeout();
  // Done only counts the partitions that the master waits for.
  call_options.done_on = wire::RunOn::kReactorWhenAlone;
  auto cancellation = std::make_shared<Cancellation>(link_.channel);
  // Before Start: afterwards `options` may be gone already.
  options->SetCancelCallback([cancellation] { cancellation->Cancel(); });
  if (plane_->failed_steps()->Has(step_id)) cancellation->Cancel();
  cancellation->SetId(link_.channel->Start(std::move(message), std::move(call), call_options));
}

void RemoteWorker::CreateWorkerSessionAsync(const tensorflow::CreateWorkerSessionRequest* request,
                                            tensorflow::CreateWorkerSessionResponse* response,
                                            StatusCallback done) {
  auto created = [target = target_, handle = request->session_handle(),
                  done = std::move(done)](const absl::Status& status) {
    if (status.ok()) OpenSessions::Get().Add(target, handle);
    done(status);
  };
  grpc_->CreateWorkerSessionAsync(request, response, std::move(created));
}

void RemoteWorker::DeleteWorkerSessionAsync(CallOptions* options,
                                            const tensorflow::DeleteWorkerSessionRequest* request,
                                            tensorflow::DeleteWorkerSessionResponse* response,
                                            StatusCallback done) {
  OpenSessions::Get().Remove(target_, request->session_handle());
  grpc_->DeleteWorkerSessionAsync(options, request, response, std::move(done));
}

void RemoteWorker::CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request,
                                     tensorflow::CleanupGraphResponse* /*response*/,
                                     StatusCallback done) {
  plane_->failed_steps()->Remove(request->step_id());
  // No caller waits for a cleanup, so the notice travels with the next step's request.
  wire::Message message(kCleanupGraph);
  message.Put<int64_t>(request->step_id());
  link_.channel->Notify(std::move(message), /*lazy=*/true);
  done(absl::OkStatus());
}

}  // namespace tensorwire::plugin
