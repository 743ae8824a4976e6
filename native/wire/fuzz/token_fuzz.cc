// What a stranger says to a server that has a job token: whatever it is, nothing of it gets to the
// handler. Only who has the token can say the right proof, for the server's challenge is another
// each time. The first byte says in which pieces it comes.

#include <sys/socket.h>

#include <cstdint>
#include <memory>

#include "connection.h"
#include "server.h"
#include "world.h"

using namespace tensorwire::wire;

namespace {

class NobodyGetsHere : public Handler {
 public:
  RunOn HandleOn(const Request&) const override { Broken("a stranger's request"); }
  std::shared_ptr<char> PlaceFromReactor(uint16_t, uint64_t) override {
    Broken("a stranger's payload");
  }
  void Handle(Request) override { Broken("a stranger's request"); }
  void OnCancel(uint64_t, uint64_t) override { Broken("a stranger's cancellation"); }
  void OnDisconnect(uint64_t) override { Broken("a stranger was let in"); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static auto* const world = new World(
      [](EngineOptions* options) { options->token = "a job's token, long enough for it"; });
  static const auto handler = std::make_shared<NobodyGetsHere>();
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    Broken("no socket");
  }
  const Fd client(ends[1]);
  auto connection =
      std::make_shared<Connection>(world->context, world->reactor(), Fd(ends[0]), "127.0.0.1:1");
  const std::weak_ptr<Connection> gone = connection;
  world->reactor()->Post([connection = std::move(connection)] {
    Session::OpenFromReactor(connection,
                             std::make_shared<Session>(world->context, connection, handler));
  });
  Converse(world, client.get(), {reinterpret_cast<const char*>(data) + 1, size - 1}, data[0]);
  world->RunUntil([&] { return gone.expired(); });
  return 0;
}
