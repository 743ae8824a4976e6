#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tensorwire/wire/options.h"

namespace tensorwire::plugin {

// Warns of tasks that are up and whose data port cannot be reached: most often they run on
// protocol="grpc", or .endpoint_map has a wrong address. TensorFlow's own messages name neither.
class UnreachableTasks {
 public:
  // `origin`: where the data address of a task comes from, as a part of a sentence.
  void Add(const std::string& task, const std::string& data_address,
           const std::string& grpc_address, const std::string& origin);

  // Logs a line if the task's gRPC port answers; if not, the task has not started or has ended, and
  // gRPC reports that. Takes a second at most.
  void Warn(const wire::Unreachable& unreachable) const;

 private:
  struct Known {
    std::string grpc_address;
    std::string origin;
  };
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, Known> known_;  // by task and data address
};

}  // namespace tensorwire::plugin
