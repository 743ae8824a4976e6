// Each timer ends with the thing that it was set for. The engine runs in this thread, so that its
// timers can be counted.

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "by_hand.h"
#include "channel.h"
#include "check.h"
#include "harness.h"
#include "server.h"

namespace tensorwire::wire {
namespace {

TEST(a_connection_that_pauses_again_and_again_has_one_timer_for_it_and_none_once_closed) {
  Served served;
  served.Say(HelloFrame("worker:0", "ps:0"));
  std::string requests;
  for (uint64_t id = 1; id <= 6000; ++id) {
    requests += Frame(FrameKind::kRequest, id, kBytes, "8000");
  }
  size_t said = 0;
  const auto say_more = [&] {
    said += served.client->SendWithin(std::string_view(requests).substr(said), 0);
    return served.connection.lock()->HasBacklog();
  };
  served.world.RunUntil(say_more);
  // Each piece that the client reads lets the server read a few more requests.
  for (int pauses = 0; pauses < 100; ++pauses) {
    served.client->ReadSome(64u << 10, 0);
    served.world.RunUntil(say_more);
    CHECK(served.world.reactor()->timers() <= 2);
  }
  served.client.reset();
  served.world.RunUntil([&] { return served.connection.expired(); });
  CHECK_EQ(served.world.reactor()->timers(), 0u);
}

// A client and a server, both on the only reactor, in this thread.
struct Loop {
  Loop() {
    Fd fd;
    int port = 0;
    CHECK(ListenOn("127.0.0.1", 0, &fd, &port).ok());
    world.reactor()->Post(
        [this, listener = std::make_shared<Listener>(world.context, world.reactor(), std::move(fd),
                                                     handler)] { listener->StartFromReactor(); });
    channel = std::make_shared<ChannelImpl>(world.context, 0, "127.0.0.1:" + std::to_string(port),
                                            "ps:0", /*streams=*/1);
  }
  Outcome End(std::future<Outcome> call) {
    world.RunUntil([&] { return call.wait_for(std::chrono::seconds(0)) == kReady; });
    return call.get();
  }

  static constexpr auto kReady = std::future_status::ready;
  World world;
  std::shared_ptr<TestHandler> handler = std::make_shared<AtOnceHandler>();
  std::shared_ptr<ChannelImpl> channel;
};

TEST(a_deadline_costs_nothing_once_its_call_has_ended) {
  Loop loop;
  CHECK(loop.End(Begin(*loop.channel, kEcho, "up")).status.ok());
  const size_t before = loop.world.reactor()->timers();
  constexpr int64_t kHourMs = 3'600'000;
  CallOptions options;
  std::vector<std::future<Outcome>> waiting;
  for (int i = 0; i < 1000; ++i) {
    options.deadline_ms = kHourMs - i;
    // One call is answered at once, one is cancelled, and one is answered later.
    CHECK(loop.End(Begin(*loop.channel, kEcho, "", "", options)).status.ok());
    uint64_t id = 0;
    auto cancelled = Begin(*loop.channel, kNever, "", "", options, &id);
    loop.channel->Cancel(id);
    CHECK(loop.End(std::move(cancelled)).status.code() == Code::kCancelled);
    waiting.push_back(Begin(*loop.channel, kNever, "", "", options));
    CHECK(loop.world.reactor()->timers() <= before + 1);
  }
  loop.world.RunUntil([&] { return loop.handler->kept.size() == 2000; });
  for (const Request& request : loop.handler->kept) request.Reply(Message());
  for (auto& call : waiting) CHECK(loop.End(std::move(call)).status.ok());
  loop.handler->kept.clear();
  // The channel looks at its deadlines when this one passes, and finds no other.
  options.deadline_ms = 20;
  CHECK(loop.End(Begin(*loop.channel, kNever, "", "", options)).status.code() ==
        Code::kDeadlineExceeded);
  CHECK_EQ(loop.world.reactor()->timers(), before);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
