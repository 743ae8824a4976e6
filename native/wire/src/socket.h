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

// Blocks while the name service answers. `host` "" gives the wildcard addresses.
Status Resolve(const std::string& host, int port, bool passive, std::vector<SocketAddress>* out);

// A listening, non-blocking socket; `bound_port` is the real port if `port` is 0. Fails with
// kNotFound if `host` is no address of this machine.
Status ListenOn(const std::string& host, int port, Fd* out, int* bound_port);

// Begins a non-blocking connect. When it ends, the socket is writable and SO_ERROR has the outcome.
Status BeginConnect(const SocketAddress& address, Fd* out);

// Sets the options of data connections: no Nagle, a limit on how long data may stay unacknowledged,
// and, between processes of one host, buffers that are small enough to stay in the cache.
void TuneStream(int fd, int unacknowledged_timeout_ms);

std::string PeerAddress(int fd);
std::string ErrorText(int error);

}  // namespace tensorwire::wire
