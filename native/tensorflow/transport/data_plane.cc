#include "transport/data_plane.h"

#include <arpa/inet.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "calls/status.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/logging.h"
#include "tensors/pool_allocator.h"

namespace tensorwire::plugin {
namespace {

constexpr const char* kMapVariable = "TENSORWIRE_ENDPOINT_MAP";
constexpr const char* kMapFile = ".endpoint_map";
constexpr const char* kBindVariable = "TENSORWIRE_BIND";
constexpr const char* kMapFormat =
    "; a line a task: grpc_host:port=data_host:port, as in 127.0.0.1:3333=127.0.0.1:5555";

void Log(wire::LogLevel level, const std::string& line) {
  if (level == wire::LogLevel::kError) {
    LOG(ERROR) << "grpc++: " << line;
  } else if (level == wire::LogLevel::kWarning) {
    LOG(WARNING) << "grpc++: " << line;
  } else {
    LOG(INFO) << "grpc++: " << line;
  }
}

// The value of kBindVariable; "" if it is not set.
std::string BindHost() {
  const char* const asked = std::getenv(kBindVariable);
  return asked != nullptr ? asked : "";
}

std::string FirstAddress(const tensorflow::ClusterDef& cluster) {
  std::map<std::pair<bool, std::string>, std::string> first;  // the ps come first
  for (const auto& job : cluster.job()) {
    const std::map<int, std::string> tasks(job.tasks().begin(), job.tasks().end());
    if (!tasks.empty()) first[{job.name() != "ps", job.name()}] = tasks.begin()->second;
  }
  return first.empty() ? "" : first.begin()->second;
}

// std::filesystem::absolute would need the library of GCC 9.
std::string Absolute(const std::string& path) {
  if (path.rfind('/', 0) == 0) return path;
  const std::unique_ptr<char, decltype(&std::free)> folder(get_current_dir_name(), &std::free);
  return folder == nullptr ? path : absl::StrCat(folder.get(), "/", path);
}

}  // namespace

std::string TaskName(const std::string& job, int index) {
  return "/job:" + job + "/replica:0/task:" + std::to_string(index);
}

std::map<std::string, std::string> TaskAddresses(const tensorflow::ClusterDef& cluster) {
  std::map<std::string, std::string> addresses;
  for (const auto& job : cluster.job()) {
    for (const auto& [index, address] : job.tasks()) {
      addresses[TaskName(job.name(), index)] = address;
    }
  }
  return addresses;
}

absl::Status DataPlane::Create(const tensorflow::ServerDef& server_def,
                               std::function<void(std::function<void()>)> executor,
                               std::unique_ptr<DataPlane>* out) {
  std::unique_ptr<DataPlane> plane(new DataPlane);
  plane->name_ = TaskName(server_def.job_name(), server_def.task_index());
  plane->cluster_ = FirstAddress(server_def.cluster());
  std::map<std::string, std::string> addresses = TaskAddresses(server_def.cluster());
  const int peers = static_cast<int>(addresses.size()) - 1;
  plane->own_address_ = addresses[plane->name_];
  TF_RETURN_IF_ERROR(plane->FindEndpointMap(server_def));

  wire::EngineOptions options;
  options.name = plane->name_;
  options.executor = std::move(executor);
  // A thread for each, as these are rare: TensorFlow's pool may have two threads, for all kernels.
  options.blocking_executor = [](std::function<void()> closure) {
    tensorflow::Env::Default()->SchedClosure(std::move(closure));
  };
  options.log = Log;
  if (PoolAllocator* const allocator = PoolAllocator::Get(); allocator != nullptr) {
    options.pool = allocator->pool();
  }
  TF_RETURN_IF_ERROR(FromWire(wire::ReadEnvironment(server_def.job_name(), peers, &options)));
  TF_RETURN_IF_ERROR(FromWire(wire::Engine::Create(std::move(options), &plane->engine_)));
  *out = std::move(plane);
  return absl::OkStatus();
}

absl::Status DataPlane::FindEndpointMap(const tensorflow::ServerDef& server_def) {
  const char* named = std::getenv(kMapVariable);
  const bool required = named != nullptr && *named != '\0';
  const std::string path = required ? named : kMapFile;
  // Without a map, all data ports follow from the gRPC ports.
  if (!required && access(kMapFile, F_OK) != 0) return absl::OkStatus();
  map_file_ = Absolute(path);  // the process may change its working directory
  if (absl::Status s = ReadEndpointMap(); !s.ok()) {
    return absl::Status(
        s.code(), absl::StrCat(s.message(),
                               required ? std::string(", which ") + kMapVariable + " names" : ""));
  }
  std::set<std::string> grpc_addresses;
  for (const auto& [task, address] : TaskAddresses(server_def.cluster())) {
    grpc_addresses.insert(address);
  }
  for (const auto& [grpc, data] : data_address_) {
    if (grpc_addresses.count(grpc) == 0) {
      return absl::InvalidArgumentError("grpc++: " + map_file_ + " has a line for " + grpc +
                                        ", which is no task of the cluster" + kMapFormat);
    }
  }
  return CheckCluster(server_def.cluster());
}

absl::Status DataPlane::ReadEndpointMap() {
  std::ifstream file(map_file_);
  struct stat status{};
  const bool is_folder = stat(map_file_.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  if (!file || is_folder)
    return absl::InvalidArgumentError("grpc++: cannot read the endpoint map " + map_file_);
  std::ostringstream text;
  text << file.rdbuf();
  wire::EndpointMap map;
  TF_RETURN_IF_ERROR(FromWire(wire::ParseEndpointMap(text.str(), map_file_, &map)));
  std::lock_guard lock(mutex_);
  for (const auto& [grpc, data] : map) data_address_[grpc] = data;
  return absl::OkStatus();
}

bool DataPlane::IsMapped(const std::string& grpc_address) const {
  std::lock_guard lock(mutex_);
  return data_address_.count(grpc_address) != 0;
}

absl::Status DataPlane::CheckCluster(const tensorflow::ClusterDef& cluster) {
  if (map_file_.empty()) return absl::OkStatus();
  const std::map<std::string, std::string> grpc_addresses = TaskAddresses(cluster);
  const bool all_mapped = std::all_of(grpc_addresses.begin(), grpc_addresses.end(),
                                      [this](const auto& task) { return IsMapped(task.second); });
  if (!all_mapped && access(map_file_.c_str(), F_OK) == 0) {
    TF_RETURN_IF_ERROR(ReadEndpointMap());
  }
  std::map<std::string, std::string> task_at;  // by data address
  for (const auto& [task, grpc_address] : grpc_addresses) {
    std::string address;
    if (!DataAddress(grpc_address, &address).ok()) continue;  // gRPC refuses it
    const auto [at, is_new] = task_at.emplace(address, task);
    if (is_new) continue;
    return absl::InvalidArgumentError(
        "grpc++: with " + map_file_ + ", " + at->second + " and " + task +
        " both have their data port at " + address + "; a task without a line has it " +
        std::to_string(wire::kDataPortShift) + " above its gRPC port");
  }
  return absl::OkStatus();
}

absl::Status DataPlane::DataAddress(const std::string& grpc_address, std::string* out,
                                    int* second_port) const {
  if (second_port != nullptr) *second_port = 0;
  {
    std::lock_guard lock(mutex_);
    if (const auto mapped = data_address_.find(grpc_address); mapped != data_address_.end()) {
      *out = mapped->second;
      return absl::OkStatus();
    }
  }
  std::string host;
  int port = 0;
  if (!wire::SplitAddress(grpc_address, &host, &port)) {
    return absl::InvalidArgumentError("grpc++: \"" + grpc_address +
                                      "\" in the cluster spec is not host:port");
  }
  const bool v6 = host.find(':') != std::string::npos;
  *out = (v6 ? "[" + host + "]" : host) + ":" + std::to_string(wire::DataPort(port));
  if (second_port != nullptr) *second_port = wire::SecondDataPort(port);
  return absl::OkStatus();
}

wire::Status DataPlane::ListenAt(const std::string& host, int port,
                                 const std::shared_ptr<wire::Handler>& handler) {
  int bound = 0;
  const std::string asked = BindHost();
  wire::Status status = engine_->Listen(asked.empty() ? host : asked, port, handler, &bound);
  if (status.code() == wire::Code::kNotFound && asked.empty()) {
    // A name need not be an address of this host: a Kubernetes Service, a load balancer, NAT.
    LOG(WARNING) << "grpc++: " << host << " is no address of this host; the data port of " << name_
                 << " listens on all of its interfaces (" << kBindVariable << " names one)";
    status = engine_->Listen("", port, handler, &bound);
  }
  return status;
}

absl::Status DataPlane::Listen(int grpc_port, const std::shared_ptr<wire::Handler>& handler) {
  std::string grpc_address = own_address_;
  const auto colon = grpc_address.rfind(':');
  const bool is_mapped = IsMapped(own_address_);
  if (!is_mapped && colon != std::string::npos) {
    grpc_address = grpc_address.substr(0, colon + 1) + std::to_string(grpc_port);
    if (colon == 0) grpc_address = "localhost" + grpc_address;
  }
  std::string data_address;
  int second_port = 0;
  TF_RETURN_IF_ERROR(DataAddress(grpc_address, &data_address, &second_port));
  std::string host;
  int port = 0;
  wire::SplitAddress(data_address, &host, &port);
  // As gRPC, which listens on all interfaces: a peer may know this task by another name.
  const std::string interface = is_mapped ? host : "";
  wire::Status status = ListenAt(interface, port, handler);
  if (status.code() == wire::Code::kFailedPrecondition && second_port != 0) {
    const std::string first = std::to_string(port);
    const std::string second = std::to_string(second_port);
    if (const wire::Status s = ListenAt(interface, second_port, handler); s.ok()) {
      LOG(WARNING) << "grpc++: " << name_ << " has its data port at " << host << ":" << second
                   << ", its second one, which its peers try too: port " << first
                   << ", its gRPC port + " << std::to_string(wire::kDataPortShift)
                   << ", is in use, perhaps by an outgoing connection";
      return absl::OkStatus();
    } else {
      status = wire::Status(status.code(), status.message() + "; " + s.message());
    }
  }
  if (const std::string asked = BindHost();
      status.code() == wire::Code::kNotFound && !asked.empty()) {
    return absl::NotFoundError("grpc++: " + status.message() + ". " + kBindVariable + "=" + asked +
                               " must be an address of this host");
  }
  if (!status.ok()) {
    return absl::Status(
        static_cast<absl::StatusCode>(status.code()),
        "grpc++: " + status.message() + ". It is the data port of " + name_ +
            (!is_mapped
                 ? ", " + std::to_string(wire::kDataPortShift) + " above its gRPC port" +
                       (second_port != 0 ? ", and its second one; free one of them" : "; free it") +
                       ", or name another in a file .endpoint_map" + std::string(kMapFormat)
                 : ", named in " + map_file_ + "; free it, or name another there"));
  }
  LOG(INFO) << "grpc++: " << name_ << " has its data port at " << data_address;
  return absl::OkStatus();
}

Link DataPlane::LinkTo(const std::string& task_name, const std::string& grpc_address) {
  std::string address;
  int second_port = 0;
  // gRPC has refused malformed addresses before; the channel would report them, too.
  if (!DataAddress(grpc_address, &address, &second_port).ok()) address = grpc_address;
  std::lock_guard lock(mutex_);
  Link& link = links_[task_name + "@" + address];
  if (link.channel == nullptr) {
    const bool is_mapped = data_address_.count(grpc_address) != 0;
    // TensorFlow's own messages name neither the port nor what may be wrong: most often the task
    // runs on protocol="grpc", or the map has a wrong address.
    const std::string advice = absl::StrCat(
        ". This port is ",
        is_mapped ? "from " + map_file_ : absl::StrCat("its gRPC port + ", wire::kDataPortShift),
        second_port != 0 ? absl::StrCat("; also its second port ", second_port) : "",
        ". If its gRPC port ", grpc_address,
        " answers: was its server started with protocol=\"grpc++\", and is this port open between "
        "the hosts? `tensorwire check` tells");
    link.channel = engine_->Connect(address, task_name, second_port, advice);
    link.inbox = std::make_shared<PushInbox>(&steps_);
    link.channel->SetPushReceiver(link.inbox);
  }
  return link;
}

}  // namespace tensorwire::plugin
