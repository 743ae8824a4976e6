#include "remote_worker.h"

#include <atomic>
#include <utility>
#include <vector>

#include "methods.h"
#include "status.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace tensorwire::plugin {
namespace {

// Lets a call be cancelled through TensorFlow's CallOptions from before it has an id.
class Cancellation {
 public:
  explicit Cancellation(std::shared_ptr<wire::Channel> channel) : channel_(std::move(channel)) {}
  void SetId(uint64_t id) {
    id_.store(id);
    if (wanted_.load()) channel_->Cancel(id);
  }
  void Cancel() {
    wanted_.store(true);
    if (const uint64_t id = id_.load(); id != 0) channel_->Cancel(id);
  }

 private:
  const std::shared_ptr<wire::Channel> channel_;
  std::atomic<uint64_t> id_{0};
  std::atomic<bool> wanted_{false};
};

class RunGraphCall : public wire::Call {
 public:
  RunGraphCall(int64_t step_id, FailedSteps* failed_steps, tensorflow::CallOptions* options,
               tensorflow::RunGraphResponse* response, tensorflow::StatusCallback done)
      : step_id_(step_id),
        failed_steps_(failed_steps),
        options_(options),
        response_(response),
        done_(std::move(done)) {}

  wire::Status PrepareFromReactor(std::string_view /*metadata*/, uint64_t payload_bytes,
                                  std::vector<wire::MutableBuffer>* into) override {
    bytes_.resize(payload_bytes);
    into->push_back({bytes_.data(), bytes_.size()});
    return wire::Status();
  }

  void Done(const wire::Status& status) override {
    options_->ClearCancelCallback();
    absl::Status outcome = FromWire(status);
    if (outcome.ok() && !response_->ParseFromString(bytes_)) {
      outcome = absl::InternalError("grpc++: a RunGraphResponse that cannot be parsed arrived");
    }
    // An error of the graph comes in the response's body.
    if (!outcome.ok() || static_cast<int>(response_->status_code()) != 0) {
      failed_steps_->Mark(step_id_);
    }
    done_(outcome);
  }

 private:
  const int64_t step_id_;
  FailedSteps* const failed_steps_;
  tensorflow::CallOptions* const options_;
  tensorflow::RunGraphResponse* const response_;
  const tensorflow::StatusCallback done_;
  std::string bytes_;
};

}  // namespace

void RemoteWorker::RunGraphAsync(tensorflow::CallOptions* options,
                                 tensorflow::RunGraphRequestWrapper* request,
                                 tensorflow::MutableRunGraphResponseWrapper* response,
                                 tensorflow::StatusCallback done) {
  const int64_t step_id = request->step_id();
  wire::Message message(kRunGraph);
  message.SetOwnedPayload(request->ToProto().SerializeAsString());
  auto call = std::make_unique<RunGraphCall>(step_id, failed_steps_, options,
                                             get_proto_from_wrapper(response), std::move(done));
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

void RemoteWorker::CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request,
                                     tensorflow::CleanupGraphResponse* /*response*/,
                                     tensorflow::StatusCallback done) {
  // Nobody waits for a step to be forgotten: the notice travels with the next step's request.
  wire::Message message(kCleanupGraph);
  message.Put<int64_t>(request->step_id());
  link_.channel->Notify(std::move(message), /*lazy=*/true);
  done(absl::OkStatus());
}

}  // namespace tensorwire::plugin
