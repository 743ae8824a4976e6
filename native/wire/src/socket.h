#pragma once

#include <sys/socket.h>

#include <cstring>
#include <string>
#include <vector>

#include "fd.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int port() const;  // 0 if it has none
  void SetPort(int port);
  bool operator==(const SocketAddress& other) const;
};

// The addresses of a socket's two ends; without a family if there is none.
SocketAddress OwnAddress(int fd);
SocketAddress PeerAddress(int fd);

// "1.2.3.4:80" or "[::1]:80"; "this host" for a Unix socket.
std::string ToString(const SocketAddress& address);

// True if `host` is an address as a number, for which Resolve asks no name service.
bool IsNumeric(const std::string& host);

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

std::string ErrorText(int error);

// Raises the limit of this process's descriptors to the most that it may have, once, and returns
// it.
size_t RaiseDescriptorLimit();

}  // namespace tensorwire::wire
