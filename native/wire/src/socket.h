#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "fd.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  void SetPort(int port);
};

// "1.2.3.4:80" or "[::1]:80".
std::string ToString(const SocketAddress& address);

// Blocks on the name service. `host` "" gives the wildcard addresses.
Status Resolve(const std::string& host, int port, bool passive, std::vector<SocketAddress>* out);

// A listening, non-blocking socket; `bound_port` is the real one where `port` was 0. Fails with
// kNotFound where `host` is no address of this machine.
Status ListenOn(const std::string& host, int port, Fd* out, int* bound_port);

// Begins a non-blocking connect; its end shows as writability and SO_ERROR.
Status BeginConnect(const SocketAddress& address, Fd* out);

// The options of data connections: no Nagle, a bound on how long unacknowledged data waits, and
// between processes of one host buffers small enough that what is under way stays in the cache.
void TuneStream(int fd, int unacknowledged_timeout_ms);

std::string PeerAddress(int fd);
std::string ErrorText(int error);

}  // namespace tensorwire::wire
