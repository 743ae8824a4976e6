#include "eager/eager_client.h"

#include <atomic>
#include <iterator>
#include <vector>

#include "absl/synchronization/notification.h"
#include "calls/cancellation.h"
#include "calls/methods.h"
#include "calls/proto_call.h"
#include "calls/recent.h"
#include "calls/status.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tensorwire::plugin {
namespace {

namespace eager = tensorflow::eager;
using eager::EagerClient;
using eager::EnqueueRequest;
using eager::EnqueueResponse;
using tensorflow::CallOptions;
using tensorflow::StatusCallback;

// Closing a context waits no longer than this for a worker that has gone.
constexpr int64_t kCloseDeadlineMs = 10'000;

// When a part of a function fails, its peers may fail and be reported to the caller of the function
// first. The caller then cancels the failed part, while the error that is the cause is still under
// way. It waits this long for that error.
constexpr int64_t kFunctionPatienceMs = 250;

// The ids of a request's operations and of the tensors that it brings, which are numbered like
// operations.
std::vector<int64_t> OperationsOf(const EnqueueRequest& request) {
  std::vector<int64_t> ids;
  for (const auto& item : request.queue()) {
    if (item.has_operation()) ids.push_back(item.operation().id());
    if (item.has_send_tensor()) ids.push_back(item.send_tensor().op_id());
    if (item.has_send_packed_handle()) {
      ids.push_back(item.send_packed_handle().op_id());
    }
  }
  return ids;
}

// Operations of one context on one task that were not run, and why. A later request may need one of
// their results and be sent before TensorFlow knows of the failure. At the task it would fail
// because the tensor is missing. That would hide the cause, and would end the new stream together
// with requests that need no such result.
using UndoneOperations = Recent<absl::Status>;

void AddAll(const std::vector<int64_t>& ids, const absl::Status& why, UndoneOperations* undone) {
  for (const int64_t id : ids) undone->Add(id, why);
}

// Why a request cannot be run either, or OK: it needs the result of such an operation.
absl::Status WhyUndone(const EnqueueRequest& request, const UndoneOperations& undone) {
  absl::Status why;
  const auto look = [&](const auto& part) {
    if (why.ok() && part.has_remote_handle()) {
      why = undone.Find(part.remote_handle().op_id()).value_or(absl::OkStatus());
    }
  };
  for (const auto& item : request.queue()) {
    for (const auto& input : item.operation().op_inputs()) look(input);
    for (const auto& handle : item.send_packed_handle().handles()) look(handle);
  }
  return why;
}

// Requests of one context to one task that are run one after the other. Frames may overtake each
// other; so each request carries its sender, its number, and the first number without an answer
// yet. The first request that fails ends the stream: the others that are under way fail with it and
// are not run. Later requests open a new stream.
class EnqueueStream : public std::enable_shared_from_this<EnqueueStream> {
 public:
  EnqueueStream(std::shared_ptr<wire::Channel> channel, uint64_t sender, uint32_t attempt,
                std::shared_ptr<UndoneOperations> undone)
      : channel_(std::move(channel)),
        sender_(sender),
        attempt_(attempt),
        undone_(std::move(undone)) {}

  // Sends `message`, which has the request as its payload. False when the stream has ended; then
  // nothing is sent, `message` is as it was, and `done` is not called.
  bool Send(const EnqueueRequest& request, wire::Message* message, EnqueueResponse* response,
            const StatusCallback& done) {
    uint64_t number = 0;
    uint64_t first_under_way = 0;
    {
      std::lock_guard lock(mutex_);
      if (!failed_.ok()) return false;
      number = next_++;
      under_way_[number] = {0, OperationsOf(request)};
      first_under_way = under_way_.begin()->first;
    }
    message->Put<uint64_t>(sender_);
    message->Put<uint32_t>(attempt_);
    message->Put<uint64_t>(number);
    message->Put<uint64_t>(first_under_way);
    wire::CallOptions options;
    // On the reactor, in the order of the replies: requests after a failed one then fail with its
    // error and do not hide it. `done` only tells a waiting thread; further work runs in other
    // threads.
    options.done_on = wire::RunOn::kReactor;
    const uint64_t id = channel_->Start(
        std::move(*message),
        std::make_unique<ProtoCall>(
            response, [self = shared_from_this(), number,
                       done](const absl::Status& status) { self->Ended(number, status, done); }),
        options);
    bool unwanted = false;
    {
      std::lock_guard lock(mutex_);
      if (const auto at = under_way_.find(number); at != under_way_.end()) {
        at->second.call_id = id;
        unwanted = !failed_.ok();
      }
    }
    if (unwanted) channel_->Cancel(id);
    return true;
  }

  // Cancels the requests under way, because the context ends.
  void Close() {
    std::vector<uint64_t> unwanted;
    {
      std::lock_guard lock(mutex_);
      if (failed_.ok()) failed_ = absl::CancelledError("the context was closed");
      for (const auto& [number, request] : under_way_) {
        if (request.call_id != 0) unwanted.push_back(request.call_id);
      }
    }
    for (const uint64_t id : unwanted) channel_->Cancel(id);
  }

 private:
  struct UnderWay {
    uint64_t call_id = 0;  // 0: not known yet
    std::vector<int64_t> operations;
  };

  void Ended(uint64_t number, absl::Status status, const StatusCallback& done) {
    std::vector<uint64_t> unwanted;
    {
      std::lock_guard lock(mutex_);
      const auto ended = under_way_.find(number);
      if (!status.ok() && failed_.ok()) {
        failed_ = status;
        for (auto at = std::next(ended); at != under_way_.end(); ++at) {
          AddAll(at->second.operations, failed_, undone_.get());
          if (at->second.call_id != 0) unwanted.push_back(at->second.call_id);
        }
      }
      if (!status.ok()) {
        // A request that was sent later may have failed first: a lost connection ends them in any
        // order.
        status = failed_;
        AddAll(ended->second.operations, failed_, undone_.get());
      }
      under_way_.erase(ended);
    }
    for (const uint64_t id : unwanted) channel_->Cancel(id);
    done(status);
  }

  const std::shared_ptr<wire::Channel> channel_;
  const uint64_t sender_;
  const uint32_t attempt_;  // which of its sender's streams it is
  const std::shared_ptr<UndoneOperations> undone_;

  std::mutex mutex_;
  absl::Status failed_;
  uint64_t next_ = 0;
  std::map<uint64_t, UnderWay> under_way_;  // by number
};

uint64_t NextSender() {
  static std::atomic<uint64_t> senders{0};
  return ++senders;
}

}  // namespace

// Another task's eager service. Functions and operations are run over the data plane:
// StreamingEnqueue in order, Enqueue and RunComponentFunction independently. Contexts are closed
// over it, too, because that ends the stream. Calls that happen once, and keep-alives, stay on
// gRPC.
class RemoteEager : public EagerClient {
 public:
  RemoteEager(tensorflow::core::RefCountPtr<EagerClient> grpc, std::string target,
              std::shared_ptr<wire::Channel> channel, std::function<void(int64_t)> end_step)
      : grpc_(std::move(grpc)),
        target_(std::move(target)),
        channel_(std::move(channel)),
        end_step_(std::move(end_step)) {}

  // --- on the data plane ---
  void EnqueueAsync(CallOptions* options, const EnqueueRequest* request, EnqueueResponse* response,
                    StatusCallback done) override {
    if (Forget(*request, response, done)) return;
    wire::Message message(kEagerEnqueue);
    message.Put<uint64_t>(0);  // no sender: not ordered
    Call(std::move(message), options, *request, response, std::move(done), wire::RunOn::kExecutor);
  }

  void StreamingEnqueueAsync(bool enable_streaming, CallOptions* options,
                             const EnqueueRequest* request, EnqueueResponse* response,
                             StatusCallback done) override {
    if (Forget(*request, response, done)) return;
    if (!enable_streaming || !allow_multiple_pending_requests()) {
      // As in gRPC's client: without streaming, the request must have been run when this returns.
      absl::Notification ended;
      absl::Status outcome;
      wire::Message message(kEagerEnqueue);
      message.Put<uint64_t>(0);
      Call(
          std::move(message), options, *request, response,
          [&](const absl::Status& status) {
            outcome = status;
            ended.Notify();
          },
          wire::RunOn::kReactor);
      ended.WaitForNotification();
      done(outcome);
      return;
    }
    wire::Message message(kEagerEnqueue);
    if (const absl::Status s = PutProto(*request, &message); !s.ok()) return done(s);
    std::shared_ptr<EnqueueStream> stream;
    const StatusCallback wrapped = Wrapped(std::move(done));
    do {
      std::lock_guard lock(mutex_);
      Sender& sender = senders_[request->context_id()];
      if (const absl::Status why = WhyUndone(*request, *sender.undone); !why.ok()) {
        AddAll(OperationsOf(*request), why, sender.undone.get());
        // Not in this thread: the caller may hold locks that `done` takes.
        tensorflow::Env::Default()->SchedClosure([wrapped, why] { wrapped(why); });
        return;
      }
      if (sender.stream == stream) {  // no stream yet, or the one that has just refused the request
        sender.stream =
            std::make_shared<EnqueueStream>(channel_, sender.id, ++sender.attempts, sender.undone);
      }
      stream = sender.stream;
    } while (!stream->Send(*request, &message, response, wrapped));
  }

  void RunComponentFunctionAsync(CallOptions* options,
                                 const eager::RunComponentFunctionRequest* request,
                                 eager::RunComponentFunctionResponse* response,
                                 StatusCallback done) override {
    // `done` only tells a waiting thread; further work runs in other threads.
    Call(wire::Message(kEagerRunFunction), options, *request, response, std::move(done),
         wire::RunOn::kReactorWhenAlone, /*deadline_ms=*/0, kFunctionPatienceMs);
  }

  void CloseContextAsync(const eager::CloseContextRequest* request,
                         eager::CloseContextResponse* response, StatusCallback done) override {
    Sender sender{0, 0, nullptr, nullptr};
    {
      std::lock_guard lock(mutex_);
      if (const auto at = senders_.find(request->context_id()); at != senders_.end()) {
        sender = std::move(at->second);
        senders_.erase(at);
      }
    }
    if (sender.stream != nullptr) sender.stream->Close();
    wire::Message message(kEagerCloseContext);
    message.Put<uint64_t>(sender.id);
    Call(std::move(message), nullptr, *request, response, std::move(done), wire::RunOn::kExecutor,
         kCloseDeadlineMs);
  }

  bool allow_multiple_pending_requests() const override {
    return grpc_->allow_multiple_pending_requests();
  }

  // --- on gRPC ---
  void CreateContextAsync(const eager::CreateContextRequest* request,
                          eager::CreateContextResponse* response, StatusCallback done) override {
    grpc_->CreateContextAsync(request, response, std::move(done));
  }
  void CreateContextAsync(const eager::CreateContextRequest* request,
                          eager::CreateContextResponse* response, StatusCallback done,
                          int64_t init_timeout_in_ms, int retries) override {
    grpc_->CreateContextAsync(request, response, std::move(done), init_timeout_in_ms, retries);
  }
  void UpdateContextAsync(const eager::UpdateContextRequest* request,
                          eager::UpdateContextResponse* response, StatusCallback done) override {
    grpc_->UpdateContextAsync(request, response, std::move(done));
  }
  void WaitQueueDoneAsync(const eager::WaitQueueDoneRequest* request,
                          eager::WaitQueueDoneResponse* response, StatusCallback done) override {
    grpc_->WaitQueueDoneAsync(request, response, std::move(done));
  }
  void KeepAliveAsync(const eager::KeepAliveRequest* request, eager::KeepAliveResponse* response,
                      StatusCallback done) override {
    grpc_->KeepAliveAsync(request, response, std::move(done));
  }

 private:
  struct Sender {
    uint64_t id = NextSender();
    uint32_t attempts = 0;
    std::shared_ptr<EnqueueStream> stream;
    std::shared_ptr<UndoneOperations> undone = std::make_shared<UndoneOperations>();
  };

  // If the request only ends the step of a function that spans tasks, ends the step and returns
  // true. A function does not return before this request is answered, but it does not need the
  // task's answer. So the request is answered here, and the notice travels with the next request.
  // Nothing else tells this task that the step is over.
  bool Forget(const EnqueueRequest& request, EnqueueResponse* response,
              const StatusCallback& done) {
    if (request.queue_size() != 1 || !request.queue(0).has_cleanup_function()) return false;
    const int64_t step_id = request.queue(0).cleanup_function().step_id();
    end_step_(step_id);
    wire::Message message(kCleanupGraph);
    message.Put<int64_t>(step_id);
    channel_->Notify(std::move(message), /*lazy=*/true);
    response->add_queue_response();
    done(absl::OkStatus());
    return true;
  }

  // `options` may be null.
  void Call(wire::Message message, CallOptions* options,
            const tensorflow::protobuf::MessageLite& request,
            tensorflow::protobuf::MessageLite* response, StatusCallback done, wire::RunOn done_on,
            int64_t deadline_ms = 0, int64_t patience_ms = 0) {
    if (const absl::Status s = PutProto(request, &message); !s.ok()) return done(s);
    auto cancellation = std::make_shared<Cancellation>(channel_, patience_ms);
    wire::CallOptions call_options;
    call_options.done_on = done_on;
    call_options.deadline_ms = deadline_ms;
    if (options != nullptr) {
      call_options.deadline_ms = options->GetTimeout();
      // Before Start: afterwards `options` may be gone already.
      options->SetCancelCallback([cancellation] { cancellation->Cancel(); });
    }
    auto ended = [options, cancellation,
                  done = Wrapped(std::move(done))](const absl::Status& status) {
      if (options != nullptr) options->ClearCancelCallback();
      // The caller itself cancelled the call, so the error is a derived one.
      const bool is_derived = cancellation->wanted() && absl::IsCancelled(status);
      done(is_derived ? tensorflow::StatusGroup::MakeDerived(status) : status);
    };
    cancellation->SetId(channel_->Start(
        std::move(message), std::make_unique<ProtoCall>(response, std::move(ended)), call_options));
  }

  // Keeps the client alive until the call has ended, and adds the task's name to errors.
  StatusCallback Wrapped(StatusCallback done) {
    Ref();
    return [this, done = std::move(done)](const absl::Status& status) {
      done(status.ok() ? status : FromTask(status, target_));
      Unref();
    };
  }

  const tensorflow::core::RefCountPtr<EagerClient> grpc_;
  const std::string target_;
  const std::shared_ptr<wire::Channel> channel_;
  const std::function<void(int64_t)> end_step_;

  std::mutex mutex_;
  std::map<uint64_t, Sender> senders_;  // by context
};

EagerClients::EagerClients(std::unique_ptr<eager::EagerClientCache> grpc,
                           std::map<std::string, std::shared_ptr<wire::Channel>> channels,
                           std::function<void(int64_t)> end_step)
    : grpc_(std::move(grpc)), channels_(std::move(channels)), end_step_(std::move(end_step)) {}

EagerClients::~EagerClients() = default;

absl::Status EagerClients::GetClient(const std::string& target,
                                     tensorflow::core::RefCountPtr<EagerClient>* client) {
  // `target` is a task or a device on one.
  std::string task;
  std::string device;
  if (!tensorflow::DeviceNameUtils::SplitDeviceName(target, &task, &device)) task = target;
  const auto channel = channels_.find(task);
  if (channel == channels_.end()) return grpc_->GetClient(target, client);
  std::lock_guard lock(mutex_);
  auto& remote = clients_[task];
  if (remote == nullptr) {
    tensorflow::core::RefCountPtr<EagerClient> grpc;
    if (absl::Status s = grpc_->GetClient(task, &grpc); !s.ok()) {
      clients_.erase(task);
      return s;
    }
    remote.reset(new RemoteEager(std::move(grpc), task, channel->second, end_step_));
  }
  remote->Ref();
  client->reset(remote.get());
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
