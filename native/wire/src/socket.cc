#include "socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace tensorwire::wire {
namespace {

constexpr int kBacklog = 65535;  // the kernel has a limit of its own

// True if both ends of a connection have the same address.
bool IsWithinHost(int fd) {
  const SocketAddress own = OwnAddress(fd);
  const SocketAddress peer = PeerAddress(fd);
  if (own.family() == AF_UNSPEC || own.family() != peer.family()) return false;
  if (own.family() == AF_INET) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in&>(own.storage).sin_addr,
                       &reinterpret_cast<const sockaddr_in&>(peer.storage).sin_addr,
                       sizeof(in_addr)) == 0;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(own.storage).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(peer.storage).sin6_addr,
                     sizeof(in6_addr)) == 0;
}

bool IsLoopback(const SocketAddress& address) {
  if (address.family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
}

// True if `host` itself is an address or names loopback, as opposed to a name that resolves to one.
bool SaysItsAddress(const std::string& host) {
  return host.empty() || host.find("localhost") != std::string::npos || IsNumeric(host);
}

std::string WhyNotResolved(int failure) {
  const int error = errno;
  // If the C library has no descriptor for its query, it reports that there is no such name.
  const Fd any(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!any.valid()) return ErrorText(errno);
  return failure == EAI_SYSTEM ? ErrorText(error) : gai_strerror(failure);
}

// `ask`: getsockname or getpeername.
template <typename Ask>
SocketAddress AddressFrom(Ask ask, int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (ask(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return {};
  return address;
}

}  // namespace

bool IsNumeric(const std::string& host) {
  in6_addr any;
  return inet_pton(AF_INET, host.c_str(), &any) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &any) == 1;
}

SocketAddress OwnAddress(int fd) { return AddressFrom(::getsockname, fd); }
SocketAddress PeerAddress(int fd) { return AddressFrom(::getpeername, fd); }

int SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  if (family() != AF_INET6) return 0;
  return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
}

bool SocketAddress::operator==(const SocketAddress& other) const {
  return length == other.length && std::memcmp(&storage, &other.storage, length) == 0;
}

void SocketAddress::SetPort(int port) {
  const in_port_t number = htons(static_cast<uint16_t>(port));
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = number;
  }
}

std::string ErrorText(int error) {
  char buffer[128];
  std::string text = strerror_r(error, buffer, sizeof(buffer));  // the GNU form: returns the text
  if (error == EMFILE) text += "; raise this process's limit (ulimit -n)";
  return text;
}

std::string ToString(const SocketAddress& address) {
  if (address.family() == AF_UNIX) return "this host";
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  if (address.family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    // An IPv4 client of a listener for both.
    char text[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return std::string(text) + ":" + std::to_string(ntohs(v6.sin6_port));
  }
  if (getnameinfo(address.raw(), address.length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  const bool bracketed = address.family() == AF_INET6;
  return (bracketed ? "[" : "") + std::string(host) + (bracketed ? "]:" : ":") + port;
}

Status Resolve(const std::string& host, int port, bool passive, std::vector<SocketAddress>* out) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int failure = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                  std::to_string(port).c_str(), &hints, &list);
  if (failure != 0) {
    return Status(Code::kUnavailable,
                  "cannot resolve \"" + host + "\": " + WhyNotResolved(failure));
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  out->clear();
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    out->push_back(address);
  }
  return Status();
}

Status ListenOn(const std::string& host, int port, Fd* out, int* bound_port) {
  std::vector<SocketAddress> addresses;
  if (Status s = Resolve(host, port, /*passive=*/true, &addresses); !s.ok()) {
    return Status(Code::kNotFound, s.message());
  }
  if (!SaysItsAddress(host)) {
    // /etc/hosts often maps a host's own name to 127.0.1.1. Other hosts could not reach a task that
    // listens only there.
    std::erase_if(addresses, IsLoopback);
  }
  // The IPv6 wildcard accepts IPv4, too, so it is tried first; a machine without IPv6 has only the
  // IPv4 one.
  int error = EADDRNOTAVAIL;
  for (int pass = 0; pass < 2; ++pass) {
    for (const SocketAddress& address : addresses) {
      if (host.empty() && (address.family() == AF_INET6) != (pass == 0)) continue;
      if (!host.empty() && pass == 1) continue;
      Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!fd.valid()) {
        error = errno;
        continue;
      }
      const int on = 1;
      const int off = 0;
      setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (address.family() == AF_INET6 && host.empty()) {
        setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      }
      if (::bind(fd.get(), address.raw(), address.length) != 0 ||
          ::listen(fd.get(), kBacklog) != 0) {
        error = errno;
        if (error == EADDRINUSE) pass = 2;  // the port is in use; the other family would not help
        continue;
      }
      *bound_port = OwnAddress(fd.get()).port();
      *out = std::move(fd);
      return Status();
    }
  }
  const Code code = error == EADDRINUSE      ? Code::kFailedPrecondition
                    : error == EADDRNOTAVAIL ? Code::kNotFound
                                             : Code::kUnavailable;
  return Status(code, "cannot listen on " + (host.empty() ? std::string("port ") : host + ":") +
                          std::to_string(port) + ": " + ErrorText(error));
}

Status BeginConnect(const SocketAddress& address, Fd* out) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status(Code::kUnavailable, "no socket: " + ErrorText(errno));
  if (::connect(fd.get(), address.raw(), address.length) != 0 && errno != EINPROGRESS) {
    return Status(Code::kUnavailable, ErrorText(errno));
  }
  *out = std::move(fd);
  return Status();
}

void TuneStream(int fd, int unacknowledged_timeout_ms) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const unsigned timeout = static_cast<unsigned>(unacknowledged_timeout_ms);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
  if (IsWithinHost(fd)) {
    // By default the kernel lets megabytes pile up, which then go to main memory and back: 100 MB
    // took 1.7 times as long. Over a network the kernel's own sizes are best. The receive buffer is
    // larger, so that the sender never waits for the window to open.
    const int send_bytes = 256 << 10;
    const int receive_bytes = 512 << 10;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof(send_bytes));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
  }
}

size_t RaiseDescriptorLimit() {
  // Some programs close all descriptors up to the limit before they execute another program.
  static constexpr rlim_t kMost = 1u << 20;
  static const size_t raised = [] {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return rlim_t{0};
    const rlimit most{std::max(limit.rlim_cur, std::min(limit.rlim_max, kMost)), limit.rlim_max};
    return setrlimit(RLIMIT_NOFILE, &most) == 0 ? most.rlim_cur : limit.rlim_cur;
  }();
  return raised;
}

}  // namespace tensorwire::wire
