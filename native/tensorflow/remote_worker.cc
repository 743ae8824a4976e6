#include "remote_worker.h"

#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "cancellation.h"
#include "counters.h"
#include "methods.h"
#include "proto_call.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace tensorwire::plugin {
namespace {

// The sessions that masters of this process have open at other tasks. Thread-safe.
class OpenSessions {
 public:
  static OpenSessions& Get() {
    static auto* sessions = new OpenSessions;
    return *sessions;
  }
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

}  // namespace

void RemoteWorker::RunGraphAsync(tensorflow::CallOptions* options,
                                 tensorflow::RunGraphRequestWrapper* request,
                                 tensorflow::MutableRunGraphResponseWrapper* response,
                                 tensorflow::StatusCallback done) {
  const int64_t step_id = request->step_id();
  wire::Message message(kRunGraph);
  if (const absl::Status s = PutProto(request->ToProto(), &message); !s.ok()) {
    failed_steps_->Add(step_id);
    done(s);
    return;
  }
  auto* const proto = get_proto_from_wrapper(response);
  auto ended = [failed_steps = failed_steps_, step_id, options, proto,
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
  if (failed_steps_->Has(step_id)) cancellation->Cancel();
  cancellation->SetId(link_.channel->Start(std::move(message), std::move(call), call_options));
}

void RemoteWorker::CreateWorkerSessionAsync(const tensorflow::CreateWorkerSessionRequest* request,
                                            tensorflow::CreateWorkerSessionResponse* response,
                                            tensorflow::StatusCallback done) {
  auto created = [target = target_, handle = request->session_handle(),
                  done = std::move(done)](const absl::Status& status) {
    if (status.ok()) OpenSessions::Get().Add(target, handle);
    done(status);
  };
  grpc_->CreateWorkerSessionAsync(request, response, std::move(created));
}

void RemoteWorker::DeleteWorkerSessionAsync(tensorflow::CallOptions* options,
                                            const tensorflow::DeleteWorkerSessionRequest* request,
                                            tensorflow::DeleteWorkerSessionResponse* response,
                                            tensorflow::StatusCallback done) {
  OpenSessions::Get().Remove(target_, request->session_handle());
  grpc_->DeleteWorkerSessionAsync(options, request, response, std::move(done));
}

void RemoteWorker::CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request,
                                     tensorflow::CleanupGraphResponse* /*response*/,
                                     tensorflow::StatusCallback done) {
  failed_steps_->Remove(request->step_id());
  // No caller waits for a cleanup, so the notice travels with the next step's request.
  wire::Message message(kCleanupGraph);
  message.Put<int64_t>(request->step_id());
  link_.channel->Notify(std::move(message), /*lazy=*/true);
  done(absl::OkStatus());
}

}  // namespace tensorwire::plugin
