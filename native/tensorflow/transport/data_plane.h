#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "metrics/tables.h"
#include "tensorflow/core/protobuf/cluster.pb.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"
#include "tensorwire/wire/endpoint_map.h"
#include "tensorwire/wire/engine.h"
#include "transport/push_steps.h"
#include "transport/route.h"

namespace tensorwire::plugin {

// A task's name in TensorFlow's form: "/job:ps/replica:0/task:1".
std::string TaskName(const std::string& job, int index);

// The gRPC address of each task of a cluster, by the task's name.
std::map<std::string, std::string> TaskAddresses(const tensorflow::ClusterDef& cluster);

// One task's end of the data plane: the engine, the port it listens on, and a link to every other
// task of the cluster. The data ports are read from the file `.endpoint_map` in the working
// directory, or from the file that TENSORWIRE_ENDPOINT_MAP names. The data port of a task without a
// line there follows from its gRPC port (wire::DataPort).
class DataPlane {
 public:
  // Reads the environment and the endpoint map, checks that it fits the cluster, starts the
  // engine. `executor` as in wire::EngineOptions.
  static absl::Status Create(const tensorflow::ServerDef& server_def,
                             std::function<void(std::function<void()>)> executor,
                             std::unique_ptr<DataPlane>* out);

  // Opens the data port that belongs to this task's gRPC address. Listens on the address that
  // TENSORWIRE_BIND names; without it, on the address that the map names, or on all interfaces if
  // there is none or if it is no address of this host. If the port is in use and not from the map,
  // opens the second one (wire::SecondDataPort). `grpc_port` replaces a port 0 in the gRPC address.
  absl::Status Listen(int grpc_port, const std::shared_ptr<wire::Handler>& handler);

  // Fails if two tasks would have the same data address. Reads the endpoint map again if it has no
  // line for a task: the line of a task that has joined may be new.
  absl::Status CheckCluster(const tensorflow::ClusterDef& cluster);

  // The channel to a task, and the inbox for its pushes.
  Link LinkTo(const std::string& task_name, const std::string& grpc_address);

  PushSteps* steps() { return &steps_; }
  // Steps of which a partition has failed. The master starts a step's partitions one after another
  // and, when one fails, cancels those that have started. A partition that started a moment later
  // would run, and the master would wait for it; so it is cancelled if its step is found here. A
  // step stays here until its master cleans it up: the next attempt may have the same id.
  RecentSteps* failed_steps() { return &failed_steps_; }
  Tables* tables() { return &tables_; }
  const Tables& tables() const { return tables_; }

  wire::Engine& engine() const { return *engine_; }
  const std::string& name() const { return name_; }
  // Identifies this cluster among others on the same hosts: the gRPC address of its first ps, or of
  // its first task if it has no ps.
  const std::string& cluster() const { return cluster_; }

 private:
  DataPlane() = default;
  absl::Status FindEndpointMap(const tensorflow::ServerDef& server_def);
  absl::Status ReadEndpointMap();
  // Whether the map has a line for a task.
  bool IsMapped(const std::string& grpc_address) const;
  // `second_port`: what wire::Engine::Connect takes.
  absl::Status DataAddress(const std::string& grpc_address, std::string* out,
                           int* second_port = nullptr) const;
  wire::Status ListenAt(const std::string& host, int port,
                        const std::shared_ptr<wire::Handler>& handler);

  std::string name_;
  std::string cluster_;
  std::string own_address_;  // of gRPC, as the cluster spec has it
  std::string map_file_;     // "" if there is none
  PushSteps steps_;
  RecentSteps failed_steps_;
  Tables tables_;
  std::unique_ptr<wire::Engine> engine_;

  mutable std::mutex mutex_;
  std::map<std::string, std::string> data_address_;  // by gRPC address, as the map has them
  std::map<std::string, Link> links_;                // by task and data address
};

}  // namespace tensorwire::plugin
