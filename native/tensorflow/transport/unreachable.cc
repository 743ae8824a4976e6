#include "transport/unreachable.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "tensorflow/core/platform/logging.h"
#include "tensorwire/wire/endpoint_map.h"

namespace tensorwire::plugin {
namespace {

constexpr int kProbeMs = 1000;

bool Accepts(const addrinfo& at) {
  const int fd = socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  bool accepted = connect(fd, at.ai_addr, at.ai_addrlen) == 0;
  if (!accepted && errno == EINPROGRESS) {
    pollfd writable{fd, POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof(error);
    accepted = poll(&writable, 1, kProbeMs) == 1 &&
               getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }
  close(fd);
  return accepted;
}

// Whether something listens at "host:port".
bool Answers(const std::string& address) {
  std::string host;
  int port = 0;
  if (!wire::SplitAddress(address, &host, &port)) return false;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  return Accepts(*addresses);
}

}  // namespace

void UnreachableTasks::Add(const std::string& task, const std::string& data_address,
                           const std::string& grpc_address, const std::string& origin) {
  std::lock_guard lock(mutex_);
  known_[{task, data_address}] = Known{grpc_address, origin};
}

void UnreachableTasks::Warn(const wire::Unreachable& unreachable) const {
  Known known;
  {
    std::lock_guard lock(mutex_);
    const auto at = known_.find({unreachable.peer, unreachable.address});
    if (at == known_.end()) return;
    known = at->second;
  }
  if (!Answers(known.grpc_address)) return;
  LOG(WARNING) << "grpc++: the data port of " << unreachable.peer << " at " << unreachable.address
               << " (" << known.origin << ") could not be reached for " << unreachable.for_ms / 1000
               << " s: " << unreachable.why << ". Its gRPC port " << known.grpc_address
               << " answers. Was its server started with "
               << "protocol=\"grpc++\", and is this port open between the hosts?";
}

}  // namespace tensorwire::plugin
