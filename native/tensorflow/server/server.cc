#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "eager/eager_service.h"
#include "server/stats.h"
#include "server/worker_cache.h"
#include "server/worker_service.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tensorflow/core/distributed_runtime/message_wrappers.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/public/session_options.h"
#include "tensors/pool_allocator.h"
#include "transport/data_plane.h"
#include "transport/rendezvous.h"

// protocol="grpc++": TensorFlow's gRPC server with a data plane beside it. This file is where the
// plug-in joins TensorFlow: a ServerFactory that is registered when the library is loaded.

namespace tensorwire::plugin {
namespace {

// gRPC's worker with three additions: it notes for RemoteWorker which steps failed here, removes
// the request ids of this task's own master (kNoRequestId), and notes the tables of graphs for
// metrics.
class Worker : public tensorflow::GrpcWorker {
 public:
  Worker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config, DataPlane* plane)
      : GrpcWorker(env, config), env_(env), plane_(plane) {}

  void RegisterGraphAsync(const tensorflow::RegisterGraphRequest* request,
                          tensorflow::RegisterGraphResponse* response,
                          tensorflow::StatusCallback done) override {
    plane_->tables()->Note(request->graph_def(),
                           env_->device_mgr->ListDevices().front()->resource_manager());
    GrpcWorker::RegisterGraphAsync(request, response, std::move(done));
  }

  void RunGraphAsync(tensorflow::CallOptions* options, tensorflow::RunGraphRequestWrapper* request,
                     tensorflow::MutableRunGraphResponseWrapper* response,
                     tensorflow::StatusCallback done) override {
    auto* const own = dynamic_cast<tensorflow::MutableRunGraphRequestWrapper*>(request);
    if (own != nullptr) own->set_request_id(kNoRequestId);
    GrpcWorker::RunGraphAsync(
        options, request, response,
        [failed_steps = plane_->failed_steps(), step_id = request->step_id(), response,
         done = std::move(done)](const absl::Status& status) {
          if (!status.ok() || static_cast<int>(response->status_code()) != 0) {
            failed_steps->Add(step_id);
          }
          done(status);
        });
  }

  void CleanupGraphAsync(const tensorflow::CleanupGraphRequest* request,
                         tensorflow::CleanupGraphResponse* response,
                         tensorflow::StatusCallback done) override {
    plane_->failed_steps()->Remove(request->step_id());
    GrpcWorker::CleanupGraphAsync(request, response, std::move(done));
  }

  void DeleteWorkerSessionAsync(tensorflow::CallOptions* options,
                                const tensorflow::DeleteWorkerSessionRequest* request,
                                tensorflow::DeleteWorkerSessionResponse* response,
                                tensorflow::StatusCallback done) override {
    GrpcWorker::DeleteWorkerSessionAsync(options, request, response,
                                         [plane = plane_, done = std::move(done)](const auto& s) {
                                           plane->steps()->Sweep();
                                           done(s);
                                         });
  }

 private:
  tensorflow::WorkerEnv* const env_;
  DataPlane* const plane_;
};

// gRPC does not say why it could not start. The cause is nearly always that its port is in use.
absl::Status WithAdvice(const absl::Status& status, int grpc_port) {
  if (!absl::StrContains(status.message(), "Could not start gRPC server") || grpc_port == 0) {
    return status;
  }
  const std::string port = std::to_string(grpc_port);
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), ": is port ", port, " in use? `ss -ltnp | grep :", port,
                   "` shows by which process: end it, or take another port"));
}

// Makes the devices of a task as TensorFlow would, but with CPU devices that allocate from the
// PoolAllocator. So a peer on this host can read their tensors, and the next step finds the pages
// mapped. If the task has other devices than CPUs, none uses the pool: an accelerator's host memory
// has to be pinned. Null if the pool is not shared; then TensorFlow makes the devices itself.
absl::Status MakePooledCpuDevices(const tensorflow::ServerDef& server_def,
                                  std::unique_ptr<tensorflow::DeviceMgr>* out) {
  PoolAllocator* const allocator = PoolAllocator::Get();
  if (allocator == nullptr || allocator->pool()->shared_memory() == nullptr) {
    return absl::OkStatus();
  }
  tensorflow::SessionOptions options;
  options.config = server_def.default_session_config();
  const std::string prefix = "/job:" + server_def.job_name() +
                             "/replica:" + std::to_string(server_def.replica()) +
                             "/task:" + std::to_string(server_def.task_index());
  std::vector<std::unique_ptr<tensorflow::Device>> devices;
  TF_RETURN_IF_ERROR(tensorflow::DeviceFactory::AddDevices(options, prefix, &devices));
  // The package `tensorflow`, which can use GPUs, has a subclass for CPUs; without a GPU it adds
  // nothing.
  const auto is_cpu = [](const std::unique_ptr<tensorflow::Device>& device) {
    return device->device_type() == tensorflow::DEVICE_CPU &&
           dynamic_cast<const tensorflow::ThreadPoolDevice*>(device.get()) != nullptr;
  };
  if (std::all_of(devices.begin(), devices.end(), is_cpu)) {
    for (auto& device : devices) {
      device = std::make_unique<tensorflow::ThreadPoolDevice>(
          options, device->name(), tensorflow::Bytes(device->attributes().memory_limit()),
          device->attributes().locality(), allocator);
    }
  }
  *out = std::make_unique<tensorflow::DynamicDeviceMgr>(std::move(devices));
  return absl::OkStatus();
}

// Destroyed after ~GrpcServer, which ends everything that uses the devices and the data plane.
struct OutlivesServer {
  std::unique_ptr<DataPlane> plane_;
  std::unique_ptr<tensorflow::DeviceMgr> devices_;  // null if TensorFlow has made them
};

class Server : private OutlivesServer, public tensorflow::GrpcServer {
 public:
  Server(const tensorflow::ServerDef& server_def, tensorflow::Env* env)
      : GrpcServer(server_def, env) {}
  ~Server() override {
    if (plane_ == nullptr) return;
    ShowPlane(plane_.get(), false);
    // The engine calls objects that ~GrpcServer destroys, so the engine stops first.
    plane_->engine().Stop();
  }

  absl::Status Init(tensorflow::DeviceMgr* local_device_mgr) {
    auto execute = [this](std::function<void()> closure) {
      if (auto* pool = pool_.load(std::memory_order_acquire); pool != nullptr) {
        pool->Schedule(std::move(closure));
      } else {
        tensorflow::Env::Default()->SchedClosure(std::move(closure));
      }
    };
    TF_RETURN_IF_ERROR(DataPlane::Create(server_def(), execute, &plane_));

    // The data port opens before the gRPC port: a peer that reaches this task over gRPC finds both.
    std::string host;
    int grpc_port = 0;
    TF_RETURN_IF_ERROR(GetHostAndPort(server_def(), &host, &grpc_port));
    if (grpc_port != 0) {
      TF_RETURN_IF_ERROR(plane_->Listen(grpc_port, service_));
    }
    tensorflow::GrpcServerOptions options;
    if (local_device_mgr == nullptr) {
      TF_RETURN_IF_ERROR(MakePooledCpuDevices(server_def(), &devices_));
      local_device_mgr = devices_.get();
    }
    options.local_device_mgr = local_device_mgr;
    options.rendezvous_mgr_func = [this](const tensorflow::WorkerEnv* env) {
      return static_cast<tensorflow::RendezvousMgrInterface*>(new RendezvousMgr(env, plane_.get()));
    };
    options.worker_func = [this](tensorflow::WorkerEnv* env,
                                 const tensorflow::ConfigProto& config) {
      return std::make_unique<Worker>(env, config, plane_.get());
    };
    if (absl::Status s = GrpcServer::Init(options); !s.ok()) return WithAdvice(s, grpc_port);
    if (grpc_port == 0) {
      TF_RETURN_IF_ERROR(plane_->Listen(bound_port(), service_));
    }
    plane_->engine().CloseInForks(bound_port());
    auto* const eager = EagerServiceOf(*this);
    if (eager == nullptr) {
      return absl::UnimplementedError("grpc++: this TensorFlow has another eager service");
    }
    eager_ = std::make_unique<EagerService>(eager, *worker_env(), service_->running());
    pool_.store(worker_env()->compute_pool, std::memory_order_release);
    service_->Begin(worker_env(), worker_impl(), plane_.get(), eager_.get());
    ShowPlane(plane_.get(), true);
    return absl::OkStatus();
  }

 protected:
  absl::Status WorkerCacheFactory(const tensorflow::WorkerCacheFactoryOptions& options,
                                  tensorflow::WorkerCacheInterface** out) override {
    const tensorflow::ClusterDef cluster = ValueOf(options.cluster_def);
    std::map<std::string, std::string> addresses = TaskAddresses(cluster);
    const std::string job = ValueOf(options.job_name);
    const std::string own_name = TaskName(job, options.task_index);
    if (addresses.erase(own_name) == 0 && !job.empty()) {
      // GrpcServer would abort the process. The coordinator of a former cluster of this process
      // asks for this when it recovers: `connect_to_cluster` has taken the chief out of the
      // definition that it keeps.
      return absl::InvalidArgumentError(
          "The master (current machine) is not included in the provided cluster_def: grpc++: no " +
          own_name);
    }
    if (!job.empty()) plane_->engine().AddName(own_name);
    // Tasks may have joined (update_server_def).
    TF_RETURN_IF_ERROR(plane_->CheckCluster(cluster));
    tensorflow::WorkerCacheInterface* grpc = nullptr;
    TF_RETURN_IF_ERROR(GrpcServer::WorkerCacheFactory(options, &grpc));
    *out = new WorkerCache(std::unique_ptr<tensorflow::WorkerCacheInterface>(grpc), plane_.get(),
                           std::move(addresses));
    return absl::OkStatus();
  }

 private:
  // Some releases hold these by pointer, some by value. The pointer to the job may be null.
  template <typename T>
  static T ValueOf(const T* pointer) {
    return pointer == nullptr ? T() : *pointer;
  }
  template <typename T>
  static const T& ValueOf(const T& value) {
    return value;
  }
  std::atomic<tensorflow::thread::ThreadPool*> pool_{nullptr};
  const std::shared_ptr<WorkerService> service_ = std::make_shared<WorkerService>();
  std::unique_ptr<EagerService> eager_;
};

class Factory : public tensorflow::ServerFactory {
 public:
  bool AcceptsOptions(const tensorflow::ServerDef& server_def) override {
    return server_def.protocol() == "grpc++";
  }
  absl::Status NewServer(const tensorflow::ServerDef& server_def, const Options& options,
                         std::unique_ptr<tensorflow::ServerInterface>* out) override {
    auto server = std::make_unique<Server>(server_def, tensorflow::Env::Default());
    TF_RETURN_IF_ERROR(server->Init(options.local_device_mgr));
    *out = std::move(server);
    return absl::OkStatus();
  }
};

const bool registered = [] {
  tensorflow::ServerFactory::Register("TENSORWIRE_SERVER", new Factory);
  return true;
}();

}  // namespace
}  // namespace tensorwire::plugin
