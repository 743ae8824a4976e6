#include "server/worker_cache.h"

#include <utility>

#include "eager/eager_client.h"
#include "tensorflow/core/platform/errors.h"

namespace tensorwire::plugin {

tensorflow::WorkerInterface* WorkerCache::GetOrCreateWorker(const std::string& target) {
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
    worker = std::make_unique<RemoteWorker>(grpc_.get(), target, grpc,
                                            plane_->LinkTo(target, address->second), log_, plane_);
  }
  return worker.get();
}

absl::Status WorkerCache::GetEagerClientCache(
    std::unique_ptr<tensorflow::eager::EagerClientCache>* clients) {
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

void WorkerCache::ReleaseWorker(const std::string& target, tensorflow::WorkerInterface* worker) {
  if (addresses_.count(target) != 0) return;
  grpc_->ReleaseWorker(target, worker);
}

}  // namespace tensorwire::plugin
