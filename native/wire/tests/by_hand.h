#pragma once

#include <sys/socket.h>

#include <memory>
#include <string_view>

#include "../fuzz/world.h"
#include "check.h"
#include "connection.h"
#include "harness.h"
#include "server.h"

// The inner parts of the engine in the test's own thread: nothing happens unless the test waits for
// it, and the state of a reactor can be inspected.

namespace tensorwire::wire {

// Answers on the reactor, because there is no other thread.
class AtOnceHandler : public TestHandler {
 public:
  RunOn HandleOn(const Request&) const override { return RunOn::kReactor; }
};

// A server's connection; the test is its client.
struct Served {
  Served() {
    int ends[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    fd = ends[0];
    client = std::make_unique<RawStream>(Fd(ends[1]));
    auto opened =
        std::make_shared<Connection>(world.context, world.reactor(), Fd(ends[0]), "127.0.0.1:1");
    connection = opened;
    world.reactor()->Post([this, opened] {
      Session::OpenFromReactor(opened, std::make_shared<Session>(world.context, opened, handler));
    });
  }
  // Sends `bytes` while the server reads them.
  void Say(std::string_view bytes) {
    world.RunUntil([&] {
      bytes.remove_prefix(client->SendWithin(bytes, 0));
      return bytes.empty();
    });
  }

  World world;
  std::shared_ptr<TestHandler> handler = std::make_shared<AtOnceHandler>();
  std::unique_ptr<RawStream> client;
  std::weak_ptr<Connection> connection;
  int fd = -1;  // of the connection
};

}  // namespace tensorwire::wire
