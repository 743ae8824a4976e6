// The addresses on which a data port listens.

#include "socket.h"

#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

std::string AddressOf(const Fd& fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  CHECK_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length),
           0);
  const std::string text = ToString(address);
  return text.substr(0, text.rfind(':'));
}

TEST(an_address_narrows_the_port_down_to_it) {
  Fd fd;
  int port = 0;
  CHECK(ListenOn("127.0.0.2", 0, &fd, &port).ok());
  CHECK_EQ(AddressOf(fd), "127.0.0.2");
  sockaddr_in elsewhere{};
  elsewhere.sin_family = AF_INET;
  elsewhere.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  elsewhere.sin_port = htons(static_cast<uint16_t>(port));
  const Fd stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(::connect(stranger.get(), reinterpret_cast<sockaddr*>(&elsewhere), sizeof(elsewhere)) != 0);
  CHECK_EQ(errno, ECONNREFUSED);
}

TEST(localhost_stays_loopback) {
  Fd fd;
  int port = 0;
  CHECK(ListenOn("localhost", 0, &fd, &port).ok());
  const std::string address = AddressOf(fd);
  CHECK(address == "127.0.0.1" || address == "[::1]");
}

TEST(without_an_address_the_port_is_open_on_all) {
  Fd fd;
  int port = 0;
  CHECK(ListenOn("", 0, &fd, &port).ok());
  RawStream::To("127.0.0.1:" + std::to_string(port));
}

TEST(a_name_that_nobody_has_is_not_found) {
  Fd fd;
  int port = 0;
  const Status status = ListenOn("no-such-host.invalid", 0, &fd, &port);
  CHECK(status.code() == Code::kNotFound);
  CHECK(Contains(status.message(), "cannot resolve \"no-such-host.invalid\""));
}

TEST(a_connection_that_cannot_even_begin_says_why) {
  std::vector<SocketAddress> everybody;  // TCP cannot connect to the broadcast address
  CHECK(Resolve("255.255.255.255", 1, /*passive=*/false, &everybody).ok());
  Fd fd;
  const Status status = BeginConnect(everybody.at(0), &fd);
  CHECK(status.code() == Code::kUnavailable);
  CHECK(!status.message().empty());
  CHECK(!fd.valid());
}

TEST(an_address_of_another_host_is_not_found) {
  Fd fd;
  int port = 0;
  // TEST-NET-1: no machine has this address.
  CHECK(ListenOn("192.0.2.1", 0, &fd, &port).code() == Code::kNotFound);
}

TEST(a_host_s_own_name_that_only_means_loopback_is_not_taken_for_its_address) {
  // It depends on this machine's /etc/hosts which of the two cases is tested.
  std::array<char, 256> name{};
  CHECK_EQ(gethostname(name.data(), name.size() - 1), 0);
  if (std::string(name.data()).find("localhost") != std::string::npos) return;
  Fd fd;
  int port = 0;
  const Status status = ListenOn(name.data(), 0, &fd, &port);
  if (status.ok()) {
    CHECK(AddressOf(fd).rfind("127.", 0) != 0 && AddressOf(fd) != "[::1]");
  } else {
    CHECK(status.code() == Code::kNotFound);
  }
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
