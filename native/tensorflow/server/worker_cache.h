#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tensorflow/core/distributed_runtime/worker_cache_wrapper.h"
#include "transport/data_plane.h"
#include "transport/remote_worker.h"

namespace tensorwire::plugin {

// gRPC's worker cache, except that it makes and owns RemoteWorkers for remote tasks.
class WorkerCache : public tensorflow::WorkerCacheWrapper {
 public:
  // `addresses`: task name to gRPC address, of all tasks but this one.
  WorkerCache(std::unique_ptr<tensorflow::WorkerCacheInterface> grpc, DataPlane* plane,
              std::map<std::string, std::string> addresses)
      : WorkerCacheWrapper(grpc.get()),
        grpc_(std::move(grpc)),
        plane_(plane),
        addresses_(std::move(addresses)) {}

  tensorflow::WorkerInterface* GetOrCreateWorker(const std::string& target) override;
  void ReleaseWorker(const std::string& target, tensorflow::WorkerInterface* worker) override;
  absl::Status GetEagerClientCache(
      std::unique_ptr<tensorflow::eager::EagerClientCache>* clients) override;
  // gRPC's has what collectives receive.
  void SetLogging(bool on) override {
    grpc_->SetLogging(on);
    log_->SetLogging(on);
  }
  void ClearLogs() override {
    grpc_->ClearLogs();
    log_->ClearLogs();
  }
  bool RetrieveLogs(int64_t step_id, tensorflow::StepStats* to) override {
    const bool any = grpc_->RetrieveLogs(step_id, to);
    return log_->RetrieveLogs(step_id, to) || any;
  }

 private:
  const std::unique_ptr<tensorflow::WorkerCacheInterface> grpc_;
  DataPlane* const plane_;
  const std::shared_ptr<TransferLog> log_ = std::make_shared<TransferLog>();
  const std::map<std::string, std::string> addresses_;

  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<RemoteWorker>> workers_;
};

}  // namespace tensorwire::plugin
