#pragma once

#include <memory>
#include <set>
#include <string>

#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorwire/wire/engine.h"
#include "transport/data_plane.h"

namespace tensorwire::plugin {

using tensorflow::CallOptions;
using tensorflow::StatusCallback;

// Another task, as the master and the rendezvous see it. Requests of every step go over the data
// plane, the rest over gRPC.
class RemoteWorker : public tensorflow::WorkerInterface {
 public:
  RemoteWorker(tensorflow::WorkerCacheInterface* grpc_cache, std::string target,
               tensorflow::WorkerInterface* grpc, Link link, std::shared_ptr<TransferLog> log,
               DataPlane* plane)
      : grpc_cache_(grpc_cache),
        target_(std::move(target)),
        grpc_(grpc),
        link_(std::move(link)),
        log_(std::move(log)),
        plane_(plane) {}
  ~RemoteWorker() override { grpc_cache_->ReleaseWorker(target_, grpc_); }

  const Link& link() const { return link_; }
  const std::shared_ptr<TransferLog>& log() const { return log_; }

  // --- on the data plane ---
  void RunGraphAsync(CallOptions* options, tensorflow::RunGraphRequestWrapper* request,
                     tensorflow::MutableRunGraphResponseWrapper* response,
                     StatusCallback done) override;
  void CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request,
                         tensorflow::CleanupGraphResponse* response, StatusCallback done) override;

  // --- on gRPC ---
  void GetStatusAsync(CallOptions* options, const tensorflow::GetStatusRequest* request,
                      tensorflow::GetStatusResponse* response, bool fail_fast,
                      StatusCallback done) override;
  void CreateWorkerSessionAsync(const tensorflow::CreateWorkerSessionRequest* request,
                                tensorflow::CreateWorkerSessionResponse* response,
                                StatusCallback done) override;
  void DeleteWorkerSessionAsync(CallOptions* options,
                                const tensorflow::DeleteWorkerSessionRequest* request,
                                tensorflow::DeleteWorkerSessionResponse* response,
                                StatusCallback done) override;
  void RegisterGraphAsync(const tensorflow::RegisterGraphRequest* request,
                          tensorflow::RegisterGraphResponse* response,
                          StatusCallback done) override {
    grpc_->RegisterGraphAsync(request, response, std::move(done));
  }
  void DeregisterGraphAsync(const tensorflow::DeregisterGraphRequest* request,
                            tensorflow::DeregisterGraphResponse* response,
                            StatusCallback done) override {
    grpc_->DeregisterGraphAsync(request, response, std::move(done));
  }
  void CleanupAllAsync(const tensorflow::CleanupAllRequest* request,
                       tensorflow::CleanupAllResponse* response, StatusCallback done) override {
    grpc_->CleanupAllAsync(request, response, std::move(done));
  }
  // Only the stock rendezvous calls this; ours uses the channel.
  void RecvTensorAsync(CallOptions* options, const tensorflow::RecvTensorRequest* request,
                       tensorflow::TensorResponse* response, StatusCallback done) override {
    grpc_->RecvTensorAsync(options, request, response, std::move(done));
  }
  void LoggingAsync(const tensorflow::LoggingRequest* request,
                    tensorflow::LoggingResponse* response, StatusCallback done) override {
    grpc_->LoggingAsync(request, response, std::move(done));
  }
  void TracingAsync(const tensorflow::TracingRequest* request,
                    tensorflow::TracingResponse* response, StatusCallback done) override {
    grpc_->TracingAsync(request, response, std::move(done));
  }
  void RecvBufAsync(CallOptions* options, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response, StatusCallback done) override {
    grpc_->RecvBufAsync(options, request, response, std::move(done));
  }
  void CompleteGroupAsync(CallOptions* options, const tensorflow::CompleteGroupRequest* request,
                          tensorflow::CompleteGroupResponse* response,
                          StatusCallback done) override {
    grpc_->CompleteGroupAsync(options, request, response, std::move(done));
  }
  void CompleteInstanceAsync(CallOptions* options,
                             const tensorflow::CompleteInstanceRequest* request,
                             tensorflow::CompleteInstanceResponse* response,
                             StatusCallback done) override {
    grpc_->CompleteInstanceAsync(options, request, response, std::move(done));
  }
  void GetStepSequenceAsync(const tensorflow::GetStepSequenceRequest* request,
                            tensorflow::GetStepSequenceResponse* response,
                            StatusCallback done) override {
    grpc_->GetStepSequenceAsync(request, response, std::move(done));
  }

 private:
  tensorflow::WorkerCacheInterface* const grpc_cache_;
  const std::string target_;
  tensorflow::WorkerInterface* const grpc_;  // released to grpc_cache_
  const Link link_;
  const std::shared_ptr<TransferLog> log_;
  DataPlane* const plane_;
};

// The tasks for which sessions and contexts of this process have waited since kLongWaitMs or longer
// before they begin.
constexpr int kLongWaitMs = 10'000;
std::set<std::string> AwaitedTasks();

}  // namespace tensorwire::plugin
