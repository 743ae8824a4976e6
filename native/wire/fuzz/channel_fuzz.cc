// What a server says to a client's connection, while three calls wait and pushes are taken. The
// first byte says in which pieces it comes. Whatever it is, each call ends once.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "channel.h"
#include "world.h"

using namespace tensorwire::wire;

namespace {

int calls_alive = 0;

class FuzzCall : public Call {
 public:
  FuzzCall() { ++calls_alive; }
  ~FuzzCall() override {
    if (ended_ != 1) Broken("a call ended more or less than once");
    --calls_alive;
  }
  Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                            std::vector<MutableBuffer>* into) override {
    if (payload_bytes > (1u << 20)) return Status(Code::kResourceExhausted, "too much");
    bytes_.resize(payload_bytes + metadata.size() % 2);  // sometimes not what was announced
    const size_t half = bytes_.size() / 2;
    into->push_back({bytes_.data(), half});
    into->push_back({bytes_.data() + half, bytes_.size() - half});
    return Status();
  }
  void Done(const Status&) override { ++ended_; }

 private:
  std::string bytes_;
  int ended_ = 0;
};

class FuzzReceiver : public PushReceiver {
 public:
  std::unique_ptr<Call> BeginFromReactor(uint64_t what) override {
    return what % 3 == 2 ? nullptr : std::make_unique<FuzzCall>();
  }
  void OnLost(const Status&) override {}
};

class LoopbackListener {
 public:
  LoopbackListener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    if (::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), size) != 0 ||
        ::listen(fd_.get(), 8) != 0 ||
        ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0) {
      Broken("cannot listen");
    }
    fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
    port_ = ntohs(at.sin_port);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  Fd Accept() const { return Fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

 private:
  const Fd fd_;
  int port_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static auto* const world = new World([](EngineOptions* options) {
    options->connect_timeout_ms = 1;  // who closes at the greeting is not tried again
  });
  // One a run: what an earlier run's channel still connects to is gone.
  const LoopbackListener listener;
  auto channel = std::make_shared<ChannelImpl>(world->context, listener.address(), "ps:0", 2);
  channel->SetPushReceiver(std::make_shared<FuzzReceiver>());
  for (int i = 0; i < 3; ++i) {
    Message request(1);
    request.AppendMetadata("key");
    channel->Start(std::move(request), std::make_unique<FuzzCall>(), CallOptions());
  }
  Fd server;
  world->RunUntil([&] {
    if (!server.valid()) server = listener.Accept();
    return server.valid() || calls_alive == 0;  // on a busy machine it may have given up
  });
  if (server.valid()) {
    Converse(world, server.get(), {reinterpret_cast<const char*>(data) + 1, size - 1}, data[0]);
  }
  const linger reset{1, 0};  // leave no socket behind in TIME_WAIT
  setsockopt(server.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  server = Fd();
  // A payload that is fetched has a second connection, which hears nothing.
  world->RunUntil([&] {
    if (Fd lane = listener.Accept(); lane.valid()) {
      setsockopt(lane.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    return calls_alive == 0;
  });
  channel.reset();
  return 0;
}
