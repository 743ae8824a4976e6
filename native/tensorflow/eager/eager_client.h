#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tensorflow/core/distributed_runtime/eager/eager_client.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

class RemoteEager;

// The eager clients of one context. Calls that each run of a function needs go over the data plane
// (see RemoteEager), the rest over the gRPC client of the same task.
class EagerClients : public tensorflow::eager::EagerClientCache {
 public:
  // `channels`: by task name, of all tasks but this one. `end_step` is called for each step that
  // this context has ended.
  EagerClients(std::unique_ptr<tensorflow::eager::EagerClientCache> grpc,
               std::map<std::string, std::shared_ptr<wire::Channel>> channels,
               std::function<void(int64_t)> end_step);
  ~EagerClients() override;

  absl::Status GetClient(
      const std::string& target,
      tensorflow::core::RefCountPtr<tensorflow::eager::EagerClient>* client) override;

 private:
  const std::unique_ptr<tensorflow::eager::EagerClientCache> grpc_;
  const std::map<std::string, std::shared_ptr<wire::Channel>> channels_;
  const std::function<void(int64_t)> end_step_;

  std::mutex mutex_;
  std::map<std::string, tensorflow::core::RefCountPtr<RemoteEager>> clients_;
};

}  // namespace tensorwire::plugin
