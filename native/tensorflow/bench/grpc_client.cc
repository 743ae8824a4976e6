#include <memory>
#include <string>
#include <utility>

#include "client.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/request_id.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_channel.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_remote_worker.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_cache.h"
#include "tensorflow/core/distributed_runtime/tensor_coding.h"
#include "tensorflow/core/distributed_runtime/worker_cache_logger.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/framework/device_factory.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorwire::bench {
namespace {

// The state that RpcRemoteRendezvous keeps for a tensor in flight.
struct GrpcCall {
  tensorflow::CallOptions options;
  tensorflow::RecvTensorRequest request;
  tensorflow::TensorResponse response;
};

// TensorFlow's own client: its remote worker, on a channel that does not share its connection.
class GrpcClient : public Client {
 public:
  GrpcClient(tensorflow::WorkerInterface* worker, tensorflow::Device* cpu)
      : worker_(worker), cpu_(cpu) {}

  void Ask(int64_t step_id, const std::string& key, Done done) override {
    auto* const call = new GrpcCall;
    call->request.set_step_id(step_id);
    call->request.set_rendezvous_key(key);
    call->request.set_request_id(tensorflow::GetUniqueRequestId());
    call->response.InitAlloc(cpu_, {});
    worker_->RecvTensorAsync(&call->options, &call->request, &call->response,
                             [call, done = std::move(done)](const absl::Status& status) {
                               const std::unique_ptr<GrpcCall> owner(call);
                               done(status, call->response.tensor());
                             });
  }

 private:
  tensorflow::WorkerInterface* const worker_;  // only a worker cache could delete it
  tensorflow::Device* const cpu_;
};

}  // namespace

absl::Status GrpcClients(const std::string& address, int count, Clients* out) {
  // Completion queues and threads as a server makes them for its worker cache.
  static tensorflow::GrpcWorkerEnv* const env = tensorflow::CreateGrpcWorkerEnv();
  static auto* const logger = new tensorflow::WorkerCacheLogger;
  static tensorflow::Device* const cpu =
      tensorflow::DeviceFactory::NewDevice("CPU", {}, "/job:worker/replica:0/task:0").release();
  tensorflow::RPCOptions options;
  options.set_disable_session_connection_sharing(true);
  for (int i = 0; i < count; ++i) {
    tensorflow::SharedGrpcChannelPtr channel;
    TF_RETURN_IF_ERROR(tensorflow::NewHostPortGrpcChannel(address, &options, &channel));
    auto* const queue =
        env->GetCompletionQueue(static_cast<size_t>(i) % env->CompletionQueueSize());
    out->push_back(std::make_unique<GrpcClient>(
        tensorflow::NewGrpcRemoteWorker(channel, queue, env->GetThreadPool(), logger,
                                        "/job:ps/replica:0/task:0"),
        cpu));
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::bench
