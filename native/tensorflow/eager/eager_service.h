#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "calls/blocking_threads.h"
#include "calls/cancellation.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorwire/wire/engine.h"

namespace tensorflow::eager {
class EagerServiceImpl;
}  // namespace tensorflow::eager

namespace tensorwire::plugin {

// The eager service that a gRPC server has made for itself. It has the contexts that were created
// over gRPC. Null if this TensorFlow has another kind of service.
tensorflow::eager::EagerServiceImpl* EagerServiceOf(const tensorflow::GrpcServer& server);

// Serves TF2's eager runtime of other tasks: runs operations, in the order in which a stream
// sent them, and the component functions of functions that span devices. Thread-safe.
class EagerService {
 public:
  // `running`: gets the requests that can be cancelled.
  EagerService(tensorflow::eager::EagerServiceImpl* impl, const tensorflow::WorkerEnv& env,
               RunningRequests* running);

  // None of these blocks; long work runs in other threads.
  void Enqueue(wire::Request request);
  void RunFunction(wire::Request request);
  void CloseContext(wire::Request request);

  void OnDisconnect(uint64_t connection_id);

 private:
  struct Stream;
  struct FunctionCall;
  using Sender = std::pair<uint64_t, uint64_t>;  // connection, sender

  // Runs the requests of this stream in order, up to the first one that has not arrived.
  void Drain(const std::shared_ptr<Stream>& stream);
  void StartFunction(const std::shared_ptr<FunctionCall>& call, const wire::Request& request);
  absl::Status RunEnqueue(const wire::Request& request, tensorflow::CallOptions* options);

  tensorflow::eager::EagerServiceImpl* const impl_;
  tensorflow::thread::ThreadPool* const pool_;  // the task's own
  RunningRequests* const running_;

  std::mutex mutex_;
  std::unordered_set<std::string> ready_functions_;  // that have run here, by context and name
  std::map<Sender, std::shared_ptr<Stream>> streams_;

  BlockingThreads threads_;  // an operation may wait for one that arrives later in another request
};

}  // namespace tensorwire::plugin
