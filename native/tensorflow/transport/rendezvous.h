#pragma once

#include <memory>

#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "transport/data_plane.h"
#include "transport/late_aborts.h"

namespace tensorwire::plugin {

// Hands out rendezvous that fetch tensors of other tasks over the data plane.
class RendezvousMgr : public tensorflow::BaseRendezvousMgr {
 public:
  RendezvousMgr(const tensorflow::WorkerEnv* env, DataPlane* plane)
      : BaseRendezvousMgr(env),
        plane_(plane),
        late_aborts_(std::make_shared<LateAborts>(&plane->engine())) {}

  void Cleanup(int64_t step_id) override;

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(
      int64_t step_id, const tensorflow::WorkerEnv* env) override;

 private:
  DataPlane* const plane_;
  const std::shared_ptr<LateAborts> late_aborts_;
};

}  // namespace tensorwire::plugin
