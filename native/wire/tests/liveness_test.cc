// A lost or frozen peer is noticed even without traffic; a peer that is only busy is not lost.

#include <sys/socket.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "../fuzz/world.h"
#include "check.h"
#include "connection.h"
#include "harness.h"
#include "server.h"

namespace tensorwire::wire {
namespace {

constexpr int kSilentMs = kSanitized ? 1500 : 600;

void Impatient(EngineOptions* options) {
  options->ping_after_ms = 150;
  options->silent_timeout_ms = kSilentMs;
}

TEST(a_server_that_falls_silent_ends_its_calls) {
  RawServer server;
  Task worker("worker:0", 1, Impatient);
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto future = Begin(*channel, kNever, "");
  RawStream stream = server.AcceptAndGreet();
  const int64_t begin = SteadyMs();
  const Status status = Get(std::move(future)).status;
  CHECK(status.code() == Code::kUnavailable);
  CHECK(Contains(status.message(), "silent"));
  CHECK(SteadyMs() - begin < 5000);
  // The client pinged it first.
  ReadFrame frame;
  CHECK(stream.Read(&frame) && frame.header.kind == FrameKind::kRequest);
  CHECK(stream.Read(&frame) && frame.header.kind == FrameKind::kPing);
}

TEST(a_server_that_freezes_in_the_middle_of_a_payload_ends_the_call) {
  RawServer server;
  Task worker("worker:0", 1, Impatient);
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto future = Begin(*channel, kEcho, "");
  auto other = Begin(*channel, kNever, "");
  RawStream stream = server.AcceptAndGreet();
  ReadFrame request;
  CHECK(stream.Read(&request));
  const std::string reply =
      Frame(FrameKind::kReply, request.header.request_id, 0, "", std::string(1'000'000, 'p'));
  CHECK(stream.Send(reply.substr(0, 500'000)));
  CHECK(Get(std::move(future)).status.code() == Code::kUnavailable);
  CHECK(Get(std::move(other)).status.code() == Code::kUnavailable);
}

TEST(a_client_that_falls_silent_is_let_go) {
  Task ps("ps:0", 1, Impatient);
  RawStream stream = RawStream::To(ps.Listen());
  stream.Greet("worker:0", "ps:0");
  CHECK(stream.Send(Frame(FrameKind::kRequest, 1, kNever)));
  Eventually([&] { return ps.handler->disconnects == 1; });
}

TEST(a_request_that_stalls_in_the_middle_is_let_go) {
  Task ps("ps:0", 1, Impatient);
  const std::string address = ps.Listen();
  const std::string request =
      Frame(FrameKind::kRequest, 1, kEcho, std::string(20, 'm'), std::string(1'000'000, 'p'));
  std::vector<RawStream> streams;
  for (const size_t arrives : {size_t{10}, size_t{40}, size_t{500'000}}) {
    streams.push_back(RawStream::To(address));
    streams.back().Greet("worker:0", "ps:0");
    CHECK(streams.back().Send(request.substr(0, arrives)));
  }
  Eventually([&] { return ps.handler->disconnects == 3; });
}

TEST(a_greeting_that_comes_a_byte_at_a_time_ends_by_its_deadline) {
  Task ps("ps:0", 1, [](EngineOptions* options) { options->handshake_timeout_ms = 300; });
  RawStream stream = RawStream::To(ps.Listen());
  std::string hello = HelloFrame("worker:0" + std::string(3'000, 'n'), "ps:0");
  size_t sent = 0;
  // Each byte is a sign of life, but that does not extend the deadline of the greeting.
  while (sent < hello.size() && stream.Send({&hello[sent], 1})) {
    ++sent;
    SleepMs(10);
  }
  CHECK(sent < hello.size());
}

TEST(an_idle_pair_stays_connected) {
  Task ps("ps:0", 1, Impatient);
  Task worker("worker:0", 1, Impatient);
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  auto waiting = Begin(*channel, kNever, "");
  SleepMs(3 * kSilentMs);
  CHECK(Get(Begin(*channel, kEcho, "")).status.ok());
  CHECK(waiting.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  CHECK_EQ(worker.engine->stats().peers.at(0).connects, 1u);
}

TEST(a_peer_that_only_answers_pings_is_alive) {
  RawServer server;
  Task worker("worker:0", 1, Impatient);
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto future = Begin(*channel, kNever, "");
  RawStream stream = server.AcceptAndGreet();
  ReadFrame request;
  CHECK(stream.Read(&request));
  for (int pings = 0; pings < 10; ++pings) {
    ReadFrame frame;
    CHECK(stream.Read(&frame) && frame.header.kind == FrameKind::kPing);
    CHECK(stream.Send(Frame(FrameKind::kPong, 0)));
  }
  CHECK(stream.Send(Frame(FrameKind::kReply, request.header.request_id)));
  CHECK(Get(std::move(future)).status.ok());
}

TEST(a_peer_that_takes_one_long_frame_slowly_is_alive) {
  // The peer sends nothing while it receives the frame. It may not even see the pings, which are
  // queued after the frame.
  Task ps("ps:0", 1, Impatient);
  RawStream stream = RawStream::To(ps.Listen(), /*receive_buffer_bytes=*/512 << 10);
  stream.Greet("worker:0", "ps:0");
  constexpr size_t kReplyBytes = 20u << 20;
  CHECK(stream.Send(Frame(FrameKind::kRequest, 1, kBytes, std::to_string(kReplyBytes))));
  size_t got = 0;
  const int64_t begin = SteadyMs();
  while (got < kReplyBytes) {
    const std::string bytes = stream.ReadSome(1u << 20);
    CHECK(!bytes.empty());
    got += bytes.size();
    // In total about four times as long as a peer may be silent.
    const int64_t due =
        static_cast<int64_t>(got) * 4 * kSilentMs / static_cast<int64_t>(kReplyBytes);
    if (const int64_t early = due - (SteadyMs() - begin); early > 0) {
      SleepMs(static_cast<int>(early));
    }
  }
  CHECK(SteadyMs() - begin >= 3 * kSilentMs);
  CHECK_EQ(ps.handler->disconnects.load(), 0);
}

TEST(a_deadline_holds_for_a_reply_that_does_not_come_to_its_end) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  CallOptions options;
  options.deadline_ms = 300;
  auto future = Begin(*channel, kEcho, "", "", options);
  uint64_t id = 0;
  auto cancelled = Begin(*channel, kEcho, "", "", {}, &id);
  RawStream stream = server.AcceptAndGreet();
  auto reply_in_halves = [&](std::future<Outcome> call, Code code, const auto& interrupt) {
    ReadFrame request;
    do {
      CHECK(stream.Read(&request));
    } while (request.header.kind != FrameKind::kRequest);
    const std::string reply =
        Frame(FrameKind::kReply, request.header.request_id, 0, "", std::string(1'000'000, 'p'));
    CHECK(stream.Send(reply.substr(0, 400'000)));
    interrupt();
    CHECK(Get(std::move(call)).status.code() == code);
    CHECK(stream.Send(reply.substr(400'000)));  // too late: must not be written anywhere
  };
  reply_in_halves(std::move(future), Code::kDeadlineExceeded, [] {});
  reply_in_halves(std::move(cancelled), Code::kCancelled, [&] {
    SleepMs(50);
    channel->Cancel(id);
  });
  auto next = Begin(*channel, kEcho, "next");
  ReadFrame request;
  do {
    CHECK(stream.Read(&request));
  } while (request.metadata != "next");
  CHECK(stream.Send(Frame(FrameKind::kReply, request.header.request_id, 0, "", "whole")));
  CHECK_EQ(Get(std::move(next)).payload, std::string("whole"));
}

// The engine runs in this thread, so it stands still while the test does something else.
TEST(peers_that_spoke_while_this_process_was_frozen_are_alive) {
  World world(Impatient);
  auto handler = std::make_shared<TestHandler>();
  constexpr size_t kPeers = 300;  // more than one epoll_wait returns
  std::vector<RawStream> peers;
  std::vector<std::weak_ptr<Connection>> connections;
  for (size_t i = 0; i < kPeers; ++i) {
    int ends[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    peers.emplace_back(Fd(ends[1]));
    auto connection =
        std::make_shared<Connection>(world.context, world.reactor(), Fd(ends[0]), "127.0.0.1:1");
    connections.push_back(connection);
    world.reactor()->Post([&world, handler, connection] {
      Session::OpenFromReactor(connection,
                               std::make_shared<Session>(world.context, connection, handler));
    });
    CHECK(peers.back().Send(HelloFrame("worker:0", "ps:0")));
  }
  for (int turns = 0; turns < 10; ++turns) world.RunUntil([] { return true; });
  for (RawStream& peer : peers) CHECK(peer.Send(Frame(FrameKind::kPing, 0)));
  SleepMs(kSilentMs + 200);
  for (int turns = 0; turns < 10; ++turns) world.RunUntil([] { return true; });
  for (const auto& connection : connections) CHECK(!connection.expired());
  // Peers that are really silent are closed.
  world.RunUntil([&] {
    return std::all_of(connections.begin(), connections.end(),
                       [](const auto& connection) { return connection.expired(); });
  });
}

TEST(timeouts_of_zero_do_not_stop_the_reactor) {
  Task ps("ps:0", 1, [](EngineOptions* options) { options->ping_after_ms = 0; });
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  CHECK(Get(Begin(*channel, kEcho, "")).status.ok());
  SleepMs(50);
  CHECK(Get(Begin(*channel, kEcho, "")).status.ok());
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
