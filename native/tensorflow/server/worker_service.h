#pragma once

#include <atomic>

#include "calls/cancellation.h"
#include "eager/eager_service.h"
#include "tensorflow/core/distributed_runtime/worker.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorwire/wire/engine.h"
#include "transport/data_plane.h"

namespace tensorwire::plugin {

// TensorFlow uses request ids to detect a request that gRPC delivers twice, and then aborts the
// step. The ids of each step come from a new thread's generator with a 32-bit seed. A task
// remembers 100,000 ids, so one step in 43,000 draws one of them and is aborted without cause. The
// data plane delivers nothing twice and needs no ids.
constexpr int64_t kNoRequestId = 0;

// Serves other tasks: looks tensors up in the rendezvous, and runs this task's part of a graph.
class WorkerService : public wire::Handler {
 public:
  // Peers can connect before Begin; until then they get kUnavailable.
  void Begin(tensorflow::WorkerEnv* env, tensorflow::Worker* worker, DataPlane* plane,
             EagerService* eager);

  wire::RunOn HandleOn(const wire::Request& request) const override;
  void Handle(wire::Request request) override;
  void OnCancel(uint64_t connection_id, uint64_t request_id) override;
  void OnDisconnect(uint64_t connection_id) override;
  RunningRequests* running() { return &running_; }

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
