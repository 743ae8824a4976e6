#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "eager/eager_client.h"
#include "tensorflow/core/distributed_runtime/worker_cache_wrapper.h"
#include "tensorflow/core/platform/errors.h"
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

  tensorflow::WorkerInterface* GetOrCreateWorker(const std::string& target) override {
    const auto address = addresses_.find(target);
    if (address == addresses_.end()) return grpc_->GetOrCreateWorker(target);
    std::lock_guard lock(mutex_);
    auto& worker = workers_[target];
    if (worker == nullptr) {
      tensorflow::WorkerInterface* grpc = grpc_->GetOrCreateWorker(target);
      if (grpc == nullptr) {
        workers_.erase(target);
        return nullptr;
      }
      worker = std::make_unique<RemoteWorker>(
          grpc_.get(), target, grpc, plane_->LinkTo(target, address->second), log_, plane_);
    }
    return worker.get();
  }

  void ReleaseWorker(const std::string& target, tensorflow::WorkerInterface* worker) override {
    if (addresses_.count(target) != 0) return;
    grpc_->ReleaseWorker(target, worker);
  }

  absl::Status GetEagerClientCache(
      std::unique_ptr<tensorflow::eager::EagerClientCache>* clients) override {
    std::unique_ptr<tensorflow::eager::EagerClientCache> grpc;
    TF_RETURN_IF_ERROR(grpc_->GetEagerClientCache(&grpc));
    std::map<std::string, std::shared_ptr<wire::Channel>> channels;
    for (const auto& [task, address] : addresses_) {
      channels[task] = plane_->LinkTo(task, address).channel;
    }
    *clients = std::make_unique<EagerClients>(
        std::move(grpc), std::move(channels),
        [plane = plane_](int64_t step_id) { plane->steps()->EndStep(step_id); });
    return absl::OkStatus();
  }

  // gRPC's has what collectives receive.
  void SetLogging(bool on) override {
    grpc_->SetLogging(on);
    log_->Switch(on);
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
