#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "channel.h"
#include "connection.h"
#include "server.h"
#include "socket.h"
#include "world.h"

// The two ends of a connection that a fuzz target sends its input to. The whole input goes to one
// of them, `piece` bytes at a time (0: all at once).

namespace tensorwire::wire {

// A call that must end exactly once; otherwise it is a finding.
class CallThatEnds : public Call {
 public:
  CallThatEnds() { ++alive_; }
  ~CallThatEnds() override {
    if (ended_ != 1) Broken("a call ended more or less than once");
    --alive_;
  }
  void Done(const Status&) override { ++ended_; }
  static int alive() { return alive_; }

 private:
  static inline int alive_ = 0;
  int ended_ = 0;
};

inline void SayToServer(World* world, std::shared_ptr<Handler> handler, std::string_view bytes,
                        size_t piece) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    Broken("no socket");
  }
  const Fd client(ends[1]);
  auto connection =
      std::make_shared<Connection>(world->context, world->reactor(), Fd(ends[0]), "127.0.0.1:1");
  const std::weak_ptr<Connection> gone = connection;
  world->reactor()->Post([world, handler = std::move(handler), connection = std::move(connection)] {
    Session::OpenFromReactor(connection,
                             std::make_shared<Session>(world->context, connection, handler));
  });
  Converse(world, client.get(), bytes, piece);
  world->RunUntil([&] { return gone.expired(); });
}

// Sends bytes to a channel on which three calls wait that `make_call` makes, and that takes pushes.
inline void SayToChannel(World* world,
                         const std::function<std::unique_ptr<CallThatEnds>()>& make_call,
                         std::shared_ptr<PushReceiver> receiver, std::string_view bytes,
                         size_t piece) {
  // A new listener per run, so that a channel of an earlier run cannot still connect to it.
  Fd listening;
  int port = 0;
  if (!ListenOn("127.0.0.1", 0, &listening, &port).ok()) Broken("cannot listen");
  const auto accept = [&] {
    Fd accepted(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const linger reset{1, 0};  // leave no socket behind in TIME_WAIT
    setsockopt(accepted.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    return accepted;
  };
  auto channel = std::make_shared<ChannelImpl>(
      world->context, 0, "127.0.0.1:" + std::to_string(port), "ps:0", /*streams=*/2);
  channel->SetPushReceiver(std::move(receiver));
  for (int i = 0; i < 3; ++i) {
    Message request(1);
    request.AppendMetadata("key");
    channel->Start(std::move(request), make_call(), CallOptions());
  }
  Fd server;
  world->RunUntil([&] {
    if (!server.valid()) server = accept();
    // On a busy machine, the channel may have given up.
    return server.valid() || CallThatEnds::alive() == 0;
  });
  if (server.valid()) Converse(world, server.get(), bytes, piece);
  server = Fd();
  // A payload that is fetched uses a second connection, which receives nothing.
  world->RunUntil([&] {
    accept();
    return CallThatEnds::alive() == 0;
  });
}

}  // namespace tensorwire::wire
