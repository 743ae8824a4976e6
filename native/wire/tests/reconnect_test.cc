// Connections are made and lost. Every call ends exactly once, with a status that says what
// happened.

#include <dirent.h>

#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

std::function<void(EngineOptions*)> ConnectTimeout(int ms) {
  return [ms](EngineOptions* options) { options->connect_timeout_ms = ms; };
}

TEST(a_channel_finds_its_peer_again_after_each_restart) {
  auto ps = std::make_unique<Task>("ps:0");
  const std::string address = ps->Listen();
  Task worker("worker:0");
  auto channel = worker.engine->Connect(address, "ps:0");
  for (int i = 0; i < 4; ++i) {
    CHECK(Get(Begin(*channel, kEcho, "x")).status.ok());
    ps.reset();
    ps = std::make_unique<Task>("ps:0");
    ps->Listen(PortOf(address));
    // A call at the moment of the loss may fail with its connection, but no later call may.
    Eventually([&] { return Get(Begin(*channel, kEcho, "x")).status.ok(); });
  }
  CHECK_EQ(worker.engine->stats().peers.size(), 1u);
  CHECK(worker.engine->stats().peers[0].connects >= 5);
}

TEST(calls_started_while_the_connection_closes_end_once_each) {
  Task worker("worker:0", 1, ConnectTimeout(2000));
  RawServer server;
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  std::atomic<bool> ended{false};
  std::thread peer([&] {
    while (!ended) {
      auto stream = server.AcceptAndGreet();
      stream.ReadSome(1000);  // then the connection is closed
    }
  });
  std::vector<std::future<Outcome>> futures;
  for (int i = 0; i < 300; ++i) {
    futures.push_back(Begin(*channel, kEcho, "x"));
    if (i % 10 == 0) SleepMs(1);
  }
  for (auto& future : futures) {
    const Status status = Get(std::move(future)).status;
    CHECK(status.code() == Code::kUnavailable);
    CHECK(Contains(status.message(), "ps:0 at 127.0.0.1:"));
  }
  ended = true;
  Begin(*channel, kEcho, "one more, so that the peer sees that it ended");
  peer.join();
}

// Longer than Get waits, so a call that ends earlier ended for another reason.
constexpr int kNoTimeoutMs = 300'000;

TEST(a_name_that_does_not_resolve_is_unavailable_at_once_and_says_so) {
  Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
  auto channel = worker.engine->Connect("no..such..host:2222", "ps:0");
  const Status status = Get(Begin(*channel, kEcho, "")).status;
  CHECK(status.code() == Code::kUnavailable);
  CHECK(Contains(status.message(), "cannot resolve \"no..such..host\""));
}

// A reserved port where no process listens before Open.
class ClosedPort {
 public:
  ClosedPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    CHECK_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
    getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  const std::string& address() const { return address_; }
  void Open() { CHECK_EQ(::listen(fd_.get(), 8), 0); }
  RawStream Accept() { return RawStream(Fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC))); }

 private:
  Fd fd_;
  std::string address_;
};

TEST(where_nobody_listens_all_calls_are_refused_at_once) {
  const ClosedPort port;
  Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
  const auto channel = worker.engine->Connect(port.address(), "ps:0");
  for (int round = 0; round < 2; ++round) {
    std::vector<std::future<Outcome>> calls;
    for (int i = 0; i < 10; ++i) calls.push_back(Begin(*channel, kEcho, ""));
    for (auto& call : calls) {
      const Status status = Get(std::move(call)).status;
      CHECK(status.code() == Code::kUnavailable);
      CHECK(Contains(status.message(),
                     "failed to connect to all addresses; last error: Connection refused"));
      CHECK(Contains(status.message(), "ps:0 at " + port.address()));
    }
  }
}

TEST(a_peer_that_goes_in_the_greeting_fails_the_calls_at_once) {
  RawServer server;
  Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
  auto outcome = Begin(*worker.engine->Connect(server.address(), "ps:0"), kEcho, "");
  {
    RawStream stream = server.Accept();
    ReadFrame hello;
    CHECK(stream.Read(&hello));
  }
  CHECK(Get(std::move(outcome)).status.code() == Code::kUnavailable);
}

TEST(every_address_of_a_peer_is_tried_before_its_calls_fail) {
  Task ps("ps:0");
  const int port = PortOf(ps.Listen());  // on 127.0.0.1 only
  Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
  const auto channel = worker.engine->Connect("localhost:" + std::to_string(port), "ps:0");
  CHECK_EQ(Get(Begin(*channel, kEcho, "here")).metadata, "here");
}

TEST(a_peer_whose_first_port_refuses_is_found_at_its_second) {
  const ClosedPort first;
  Task ps("ps:0");
  const int second = PortOf(ps.Listen());
  for (const int reactors : {1, 3}) {
    Task worker("worker:0", reactors, ConnectTimeout(kNoTimeoutMs));
    const auto channel = worker.engine->Connect(first.address(), "ps:0", second);
    CHECK_EQ(Get(Begin(*channel, kEcho, "here")).metadata, "here");
    const std::string large(8 << 20, 'x');
    CHECK(Get(Begin(*channel, kEcho, "", large)).payload == large);
  }
}

TEST(a_peer_is_found_at_its_second_port_where_another_task_has_the_first) {
  Task other("ps:7");
  const std::string first = other.Listen();
  Task ps("ps:0");
  const int second = PortOf(ps.Listen());
  Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
  const auto channel = worker.engine->Connect(first, "ps:0", second);
  CHECK_EQ(Get(Begin(*channel, kEcho, "here")).metadata, "here");
  CHECK_EQ(other.handler->disconnects.load(), 0);  // the channel was never its peer
}

TEST(a_peer_is_found_at_its_second_port_where_a_stranger_keeps_silent_at_the_first) {
  const RawServer first;
  Task ps("ps:0");
  const int second = PortOf(ps.Listen());
  Task worker("worker:0", 1, ConnectTimeout(100));
  const auto channel = worker.engine->Connect(first.address(), "ps:0", second);
  CHECK_EQ(Get(Begin(*channel, kEcho, "here")).metadata, "here");
}

TEST(a_peer_at_neither_port_fails_its_calls_with_what_the_first_port_said) {
  const ClosedPort second;
  Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
  {
    const ClosedPort first;
    const auto channel = worker.engine->Connect(first.address(), "ps:0", PortOf(second.address()));
    for (int i = 0; i < 2; ++i) {
      const Status status = Get(Begin(*channel, kEcho, "")).status;
      CHECK(status.code() == Code::kUnavailable);
      CHECK(Contains(status.message(), "last error: Connection refused"));
    }
  }
  Task other("ps:7");
  const auto channel = worker.engine->Connect(other.Listen(), "ps:0", PortOf(second.address()));
  const Status status = Get(Begin(*channel, kEcho, "")).status;
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(Contains(status.message(), "wants ps:0, and this is ps:7"));
}

TEST(a_stranger_at_the_second_port_is_refused_as_at_the_first) {
  const ClosedPort first;
  Task other("ps:7");
  const int second = PortOf(other.Listen());
  Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
  const auto channel = worker.engine->Connect(first.address(), "ps:0", second);
  CHECK(Get(Begin(*channel, kEcho, "")).status.code() == Code::kFailedPrecondition);
}

TEST(hundreds_of_calls_to_a_dead_peer_fail_one_after_another_without_a_pause) {
  const ClosedPort port;
  Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
  const auto channel = worker.engine->Connect(port.address(), "ps:0");
  constexpr int kCalls = 400;
  const int64_t begin = SteadyMs();
  for (int i = 0; i < kCalls; ++i) CHECK(!Get(Begin(*channel, kEcho, "")).status.ok());
  CHECK(SteadyMs() - begin < kCalls * 19);  // a pause of 20 ms was once made before each attempt
  CHECK(worker.Log().empty());
}

TEST(what_may_block_for_seconds_runs_on_the_blocking_executor) {
  const ClosedPort port;
  std::atomic<int> resolved{0};
  Pool blocking;
  Task worker("worker:0", 1, [&](EngineOptions* options) {
    options->blocking_executor = [&](std::function<void()> closure) {
      ++resolved;
      blocking.Run(std::move(closure));
    };
  });
  const auto channel =
      worker.engine->Connect("localhost:" + std::to_string(PortOf(port.address())), "ps:0");
  CHECK(!Get(Begin(*channel, kEcho, "")).status.ok());
  CHECK_EQ(resolved.load(), 1);
}

TEST(a_peer_that_cannot_be_reached_for_some_time_is_logged_once) {
  const ClosedPort port;
  Task worker("worker:0", 1, [](EngineOptions* options) { options->unreachable_after_ms = 1000; });
  const auto channel = worker.engine->Connect(port.address(), "ps:0", 0, ". Is it up?");
  const int64_t begin = SteadyMs();
  CHECK(!Get(Begin(*channel, kEcho, "")).status.ok());
  CHECK(worker.Log().empty());
  while (worker.Log().empty()) CHECK(!Get(Begin(*channel, kEcho, "")).status.ok());
  CHECK(SteadyMs() - begin >= 1000);
  for (int i = 0; i < 5; ++i) CHECK(!Get(Begin(*channel, kEcho, "")).status.ok());
  const std::vector<std::string> log = worker.Log();
  CHECK_EQ(log.size(), 1u);
  const std::string named =
      "the data port of ps:0 at " + port.address() + " could not be reached for ";
  CHECK_EQ(log[0].find(named), 0u);
  CHECK(!Contains(log[0], named + "0 s: "));
  CHECK(Contains(log[0], "Connection refused. Is it up?"));
}

TEST(a_peer_that_begins_to_listen_is_reached_by_the_next_call) {
  ClosedPort port;
  Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
  const auto channel = worker.engine->Connect(port.address(), "ps:0");
  CHECK(Get(Begin(*channel, kEcho, "")).status.code() == Code::kUnavailable);
  port.Open();
  auto outcome = Begin(*channel, kEcho, "");
  RawStream stream = port.Accept();
  ReadFrame frame;
  CHECK(stream.Read(&frame));
  CHECK(frame.header.kind == FrameKind::kHello);
  CHECK(stream.Send(Frame(FrameKind::kHelloAck, 0, 0, "task=ps:0\n")));
  CHECK(stream.Read(&frame));
  CHECK(stream.Send(Frame(FrameKind::kReply, frame.header.request_id, 0, "at last")));
  CHECK_EQ(Get(std::move(outcome)).metadata, "at last");
}

TEST(an_address_that_is_none_is_refused_at_once) {
  Task worker("worker:0");
  auto channel = worker.engine->Connect("127.0.0.1", "ps:0");
  const Status status = Get(Begin(*channel, kEcho, "")).status;
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(Contains(status.message(), "not host:port"));
}

TEST(a_peer_that_accepts_and_never_answers_costs_the_connect_timeout_only) {
  RawServer server;
  Task worker("worker:0", 1, ConnectTimeout(300));
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  const int64_t begin = SteadyMs();
  const Status status = Get(Begin(*channel, kEcho, "")).status;
  CHECK(status.code() == Code::kUnavailable);
  CHECK(Contains(status.message(), "no answer"));
  CHECK(SteadyMs() - begin < 3000);
}

TEST(the_time_in_which_nobody_has_answered_yet_is_no_silence_of_a_peer) {
  // A listener whose queue is full does not answer further connections.
  const RawServer listener;
  CHECK_EQ(::listen(listener.fd(), /*backlog=*/0), 0);
  SocketAddress address;
  address.length = sizeof(sockaddr_in);
  CHECK_EQ(
      getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address.storage), &address.length),
      0);
  std::vector<Fd> queued(4);
  for (Fd& fd : queued) CHECK(BeginConnect(address, &fd).ok());
  Task worker("worker:0", 1, [](EngineOptions* options) {
    options->connect_timeout_ms = 500;
    options->silent_timeout_ms = 50;
    options->ping_after_ms = 20;
  });
  auto channel = worker.engine->Connect(listener.address(), "ps:0");
  const Status status = Get(Begin(*channel, kEcho, "")).status;
  CHECK(status.code() == Code::kUnavailable);
  CHECK(Contains(status.message(), "no answer"));
}

TEST(a_deadline_holds_while_the_connection_is_being_made) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  CallOptions options;
  options.deadline_ms = 100;
  const int64_t begin = SteadyMs();
  CHECK(Get(Begin(*channel, kEcho, "", "", options)).status.code() == Code::kDeadlineExceeded);
  CHECK(SteadyMs() - begin < 3000);
}

TEST(what_was_cancelled_before_there_was_a_connection_is_never_sent) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  uint64_t id = 0;
  auto cancelled = Begin(*channel, kEcho, "cancelled", "", {}, &id);
  CallOptions options;
  options.deadline_ms = 30;
  auto late = Begin(*channel, kEcho, "late", "", options);
  auto wanted = Begin(*channel, kEcho, "wanted");
  uint64_t patient_id = 0;
  auto patiently = Begin(*channel, kEcho, "cancelled", "", {}, &patient_id);
  channel->Cancel(id);
  channel->CancelPatiently(patient_id, 3'600'000);  // nothing was sent, so no answer can come
  CHECK(Get(std::move(cancelled)).status.code() == Code::kCancelled);
  CHECK(Get(std::move(patiently)).status.code() == Code::kCancelled);
  CHECK(Get(std::move(late)).status.code() == Code::kDeadlineExceeded);
  RawStream stream = server.AcceptAndGreet();
  ReadFrame request;
  CHECK(stream.Read(&request));
  CHECK_EQ(request.metadata, std::string("wanted"));
  CHECK(stream.Send(Frame(FrameKind::kReply, request.header.request_id)));
  CHECK(Get(std::move(wanted)).status.ok());
}

TEST(stopping_while_connecting_ends_the_calls_with_cancelled_and_does_not_wait) {
  RawServer server;  // accepts, never answers
  Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto future = Begin(*channel, kEcho, "");
  const RawStream silent = server.Accept();
  const int64_t begin = SteadyMs();
  worker.engine->Stop();
  CHECK(SteadyMs() - begin < 2000);
  CHECK(Get(std::move(future)).status.code() == Code::kCancelled);
}

TEST(stopping_while_attempts_fail_ends_every_call) {
  for (const std::string address : {"127.0.0.1:1", "no..such..host:1"}) {
    Task worker("worker:0", 1, ConnectTimeout(kNoTimeoutMs));
    auto channel = worker.engine->Connect(address, "ps:0");
    CHECK(!Get(Begin(*channel, kEcho, "")).status.ok());
    auto pausing = Begin(*channel, kEcho, "");  // an attempt comes a little later
    worker.engine->Stop();
    CHECK(!Get(std::move(pausing)).status.ok());
  }
}

TEST(a_dropped_channel_ends_its_calls_all_the_same) {
  Task worker("worker:0");
  auto channel = worker.engine->Connect("127.0.0.1:1", "ps:0");
  CHECK(Get(Begin(*channel, kEcho, "")).status.code() == Code::kUnavailable);
  auto pausing = Begin(*channel, kEcho, "");  // an attempt comes a little later
  channel.reset();
  CHECK(Get(std::move(pausing)).status.code() == Code::kUnavailable);
}

TEST(a_call_too_large_to_send_fails_alone) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  auto other = Begin(*channel, kNever, "");
  Eventually([&] {
    std::lock_guard lock(ps.handler->mutex);
    return ps.handler->kept.size() == 1;
  });
  const Status status = Get(Begin(*channel, kEcho, std::string(200'000, 'm'))).status;
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(Contains(status.message(), "a request of 200000 + 0 bytes is beyond the limits"));
  {
    std::lock_guard lock(ps.handler->mutex);
    Message reply;
    reply.AppendMetadata(std::string(200'000, 'm'));
    ps.handler->kept[0].Reply(std::move(reply));
    ps.handler->kept.clear();
  }
  CHECK(Get(std::move(other)).status.code() == Code::kResourceExhausted);
  CHECK(Get(Begin(*channel, kEcho, "")).status.ok());
  CHECK_EQ(worker.engine->stats().peers.at(0).connects, 1u);
}

TEST(a_port_in_use_is_named) {
  Task first("ps:0");
  Task second("ps:1");
  const std::string address = first.Listen();
  int bound = 0;
  const Status status = second.engine->Listen("127.0.0.1", PortOf(address), second.handler, &bound);
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(Contains(status.message(), "cannot listen on " + address));
  CHECK(Contains(status.message(), "in use"));
}

TEST(running_out_of_descriptors_closes_no_port) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  Task worker("worker:0", 1, ConnectTimeout(15'000));
  Task late("worker:1", 1, ConnectTimeout(15'000));
  auto channel = worker.engine->Connect(address, "ps:0");
  CHECK(Get(Begin(*channel, kEcho, "")).status.ok());

  // One descriptor for the connecting end; the accepting end gets none.
  auto few = std::make_optional<FewDescriptors>(1);
  auto future = Begin(*late.engine->Connect(address, "ps:0"), kEcho, "");
  Eventually([&] { return !ps.Log().empty(); });
  CHECK(Contains(ps.Log()[0], "Too many open files"));
  CHECK(Get(Begin(*channel, kEcho, "served meanwhile")).status.ok());
  few.reset();
  CHECK(Get(std::move(future)).status.ok());
  CHECK_EQ(ps.Log().size(), 1u);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
