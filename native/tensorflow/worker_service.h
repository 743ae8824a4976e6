#pragma once

#include <atomic>

#include "cancellation.h"
#include "data_plane.h"
#include "eager_service.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/worker.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

// By a request's id TensorFlow tells one that gRPC delivers twice, and aborts the step. Each step's
// ids come from a generator of a new thread, whose seed has 32 bits; of the 100,000 that a task
// remembers one in 43,000 steps meets its own. Here nothing is delivered twice, and no id is
// needed.
constexpr int64_t kNoRequestId = 0;

// Serves other tasks: looks tensors up in the rendezvous, and runs this task's part of a graph.
class WorkerService : public wire::Handler {
 public:
  // The task can be found before it can work; until then it answers kUnavailable.
  void Begin(tensorflow::WorkerEnv* env, tensorflow::Worker* worker, DataPlane* plane,
             EagerService* eager);

  wire::RunOn HandleOn(const wire::Request& request) const override;
  void Handle(wire::Request request) override;
  void OnCancel(uint64_t connection_id, uint64_t request_id) override;
  void OnDisconnect(uint64_t connection_id) override;

 private:
  struct RunGraphState;

  void RunGraph(wire::Request request);
  void CleanupGraph(const wire::Request& request);

  std::atomic<bool> ready_{false};
  tensorflow::WorkerEnv* env_ = nullptr;
  tensorflow::Worker* worker_ = nullptr;
  DataPlane* plane_ = nullptr;
  EagerService* eager_ = nullptr;
  RunningRequests running_;
};

}  // namespace tensorwire::plugin
