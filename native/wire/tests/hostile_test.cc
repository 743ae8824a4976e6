// Hostile input from the network: whatever a peer sends, the server answers with a reason, closes
// the connection, and continues to serve all others.

#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

// The reason that the server gives for closing; "" if it gives none.
std::string GoodbyeOf(RawStream* stream) {
  ReadFrame frame;
  while (stream->Read(&frame)) {
    if (frame.header.kind == FrameKind::kGoodbye) return frame.metadata;
  }
  return "";
}

// A well-behaved peer beside a hostile one.
class Bystander {
 public:
  explicit Bystander(const std::string& address)
      : channel_(task_.engine->Connect(address, "ps:0")) {
    CHECK(Get(Begin(*channel_, kEcho, "up")).status.ok());
    thread_ = std::thread([this] {
      while (!ended_) {
        CHECK(Get(Begin(*channel_, kEcho, "still", "served")).status.ok());
        ++served_;
        SleepMs(1);
      }
    });
  }
  ~Bystander() {
    const int before = served_;
    Eventually([&] { return served_ > before + 3; });
    ended_ = true;
    thread_.join();
    CHECK_EQ(task_.engine->stats().peers.at(0).connects, 1u);  // it never had to reconnect
  }

 private:
  Task task_{"worker:9"};
  std::shared_ptr<Channel> channel_;
  std::atomic<bool> ended_{false};
  std::atomic<int> served_{0};
  std::thread thread_;
};

TEST(garbage_gets_a_reason_and_one_line_in_the_log) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  const Bystander bystander(address);
  for (int i = 0; i < 5; ++i) {
    RawStream stream = RawStream::To(address);
    CHECK(stream.Send(std::string(100'000, 'g')));
    CHECK(Contains(GoodbyeOf(&stream), "its first bytes are not tensorwire's"));
  }
  CHECK_EQ(ps.Log().size(), 1u);
  CHECK(Contains(ps.Log()[0], "127.0.0.1:"));
}

TEST(a_grpc_client_on_the_data_port_is_named) {
  Task ps("ps:0");
  RawStream stream = RawStream::To(ps.Listen());
  CHECK(stream.Send(std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")));  // less than a header
  CHECK(Contains(GoodbyeOf(&stream), "gRPC client"));
  CHECK(Contains(ps.Log().at(0), "gRPC client on the data port"));
}

TEST(a_short_http_request_is_not_waited_on) {
  Task ps("ps:0");
  RawStream stream = RawStream::To(ps.Listen());
  CHECK(stream.Send("GET / HTTP/1.0\r\n\r\n"));
  CHECK(Contains(GoodbyeOf(&stream), "HTTP"));
}

TEST(a_grpc_server_on_the_other_end_is_named_at_once) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  const int64_t begin = SteadyMs();
  auto future = Begin(*channel, kEcho, "");
  {
    RawStream stream = server.Accept();
    // It sends SETTINGS and closes, because it did not understand our greeting.
    CHECK(stream.Send(std::string("\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0", 15)));
    shutdown(stream.fd(), SHUT_WR);
    stream.ReadToEnd();
  }
  const Status status = Get(std::move(future)).status;
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(Contains(status.message(), "this looks like a gRPC port"));
  CHECK(Contains(status.message(), "ps:0 at 127.0.0.1:"));
  CHECK(SteadyMs() - begin < 4000);
}

TEST(a_client_of_another_version_is_told_and_so_is_the_server_s_log) {
  Task ps("ps:0");
  RawStream stream = RawStream::To(ps.Listen());
  std::string hello = HelloFrame("worker:0", "ps:0");
  hello[4] = 2;
  CHECK(stream.Send(hello));
  const std::string reason = GoodbyeOf(&stream);
  CHECK(Contains(reason, "version 2"));
  CHECK(Contains(reason, "this is version 1"));
  CHECK(Contains(ps.Log().at(0), "version 2"));
}

TEST(a_server_of_another_version_fails_the_call_with_both_numbers) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto future = Begin(*channel, kEcho, "");
  RawStream stream = server.Accept();
  std::string ack = Frame(FrameKind::kHelloAck, 0);
  ack[4] = 3;
  CHECK(stream.Send(ack));
  CHECK(Contains(GoodbyeOf(&stream), "version 3"));
  shutdown(stream.fd(), SHUT_RDWR);
  const Status status = Get(std::move(future)).status;
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(Contains(status.message(), "version 3"));
  CHECK(Contains(status.message(), "this is version 1"));
}

TEST(a_request_before_the_greeting_is_refused) {
  Task ps("ps:0");
  RawStream stream = RawStream::To(ps.Listen());
  CHECK(stream.Send(Frame(FrameKind::kRequest, 1, kEcho, "x")));
  CHECK(Contains(GoodbyeOf(&stream), "before the greeting"));
}

TEST(frames_of_the_wrong_direction_are_refused) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  for (const FrameKind kind :
       {FrameKind::kReply, FrameKind::kError, FrameKind::kHelloAck, FrameKind::kHello}) {
    RawStream stream = RawStream::To(address);
    stream.Greet("worker:0", "ps:0");
    CHECK(stream.Send(Frame(kind, 1)));
    CHECK(Contains(GoodbyeOf(&stream), "a frame that a client does not send"));
  }
}

TEST(an_error_that_announces_much_makes_no_room_ahead_of_its_bytes) {
  RawServer server;
  Task worker("worker:0");
  const auto channel = worker.engine->Connect(server.address(), "ps:0");
  std::vector<std::future<Outcome>> outcomes;
  for (int i = 0; i < 2; ++i) outcomes.push_back(Begin(*channel, kEcho, ""));
  RawStream stream = server.AcceptAndGreet();
  ReadFrame request;
  CHECK(stream.Read(&request));
  const uint64_t first = request.header.request_id;
  CHECK(stream.Read(&request));
  constexpr uint16_t kCode = static_cast<uint16_t>(Code::kInternal);
  const auto head = [](uint64_t id, uint64_t payload_bytes) {
    FrameHeader header;
    header.kind = FrameKind::kError;
    header.method = kCode;
    header.request_id = id;
    header.payload_bytes = payload_bytes;
    std::string bytes(kHeaderBytes, '\0');
    EncodeHeader(header, bytes.data());
    return bytes;
  };
  // An error message beyond the limit is dropped, and its call still ends.
  constexpr uint64_t kTooMany = kMaxErrorBytes + 1;
  CHECK(stream.Send(head(first, kTooMany) + std::string(kTooMany, 'e')));
  const Status dropped = Get(std::move(outcomes[0])).status;
  CHECK(dropped.code() == Code::kInternal);
  CHECK(dropped.message().size() < 1000);
  const int64_t before = ResidentBytes();
  CHECK(stream.Send(head(request.header.request_id, 1ull << 39) + "and no more"));
  channel->Notify(Message(kEcho), /*lazy=*/false);
  CHECK(stream.Read(&request));  // the client has continued
  CHECK(ResidentBytes() - before < (64 << 20));
  shutdown(stream.fd(), SHUT_RDWR);
  CHECK(Get(std::move(outcomes[1])).status.code() == Code::kUnavailable);
}

TEST(a_server_that_speaks_out_of_turn_is_left_with_a_reason) {
  const struct {
    FrameKind kind;
    const char* why;
  } lies[] = {
      {FrameKind::kRequest, "a frame that a server does not send"},
      {FrameKind::kHelloAck, "a frame that a server does not send"},
      {FrameKind::kChallenge, "a frame that a server does not send"},
  };
  for (const auto& lie : lies) {
    Task worker("worker:0");
    RawServer server;
    const auto channel = worker.engine->Connect(server.address(), "ps:0");
    auto outcome = Begin(*channel, kEcho, "");
    {
      RawStream stream = server.AcceptAndGreet();
      CHECK(stream.Send(Frame(lie.kind, 1)));
      CHECK(Contains(GoodbyeOf(&stream), lie.why));
    }
    const Status status = Get(std::move(outcome)).status;
    CHECK(status.code() == Code::kUnavailable);
    CHECK(Contains(status.message(), lie.why));
  }
}

TEST(a_server_that_pushes_before_the_greeting_is_left_with_a_reason) {
  Task worker("worker:0");
  RawServer server;
  const auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto outcome = Begin(*channel, kEcho, "");
  RawStream stream = server.Accept();
  CHECK(stream.Send(Frame(FrameKind::kPush, 1)));
  CHECK(Contains(GoodbyeOf(&stream), "a frame before the greeting"));
  CHECK(!Get(std::move(outcome)).status.ok());
}

TEST(a_goodbye_arrives_although_much_was_sent_meanwhile) {
  // If the server closed with unread bytes, the kernel would send a reset, which would overtake the
  // reason.
  Task ps("ps:0");
  const std::string address = ps.Listen();
  for (int i = 0; i < 3; ++i) {
    RawStream stream = RawStream::To(address);
    std::string bytes = Frame(FrameKind::kRequest, 1, kEcho, "x");
    bytes.append(8u << 20, 'z');
    CHECK(stream.Send(bytes));
    CHECK(Contains(GoodbyeOf(&stream), "before the greeting"));
  }
}

TEST(lengths_that_lie_cost_no_memory) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  const Bystander bystander(address);
  auto header = [](uint32_t metadata_bytes, uint64_t payload_bytes) {
    FrameHeader lie;
    lie.kind = FrameKind::kRequest;
    lie.method = kEcho;
    lie.metadata_bytes = metadata_bytes;
    lie.payload_bytes = payload_bytes;
    std::string bytes(kHeaderBytes, '\0');
    EncodeHeader(lie, bytes.data());
    return bytes;
  };
  for (const auto& [metadata_bytes, payload_bytes, reason] :
       {std::tuple<uint32_t, uint64_t, const char*>{~0u, 0, "bytes of metadata; the limit is"},
        {0, ~0ull, "bytes of payload; the limit is"},
        {0, (1ull << 31) + 1, "a request with a payload of 2147483649 bytes"}}) {
    RawStream stream = RawStream::To(address);
    stream.Greet("worker:0", "ps:0");
    CHECK(stream.Send(header(metadata_bytes, payload_bytes)));
    CHECK(Contains(GoodbyeOf(&stream), reason));
  }
  const int64_t before = ResidentBytes();
  std::vector<RawStream> streams;
  for (int i = 0; i < 30; ++i) {
    streams.push_back(RawStream::To(address));
    streams.back().Greet("worker:0", "ps:0");
    CHECK(streams.back().Send(header(0, 2'000'000'000) + "little comes of it"));
  }
  SleepMs(50);
  CHECK(ResidentBytes() - before < 100 << 20);
}

TEST(a_sender_of_one_byte_at_a_time_is_served) {
  Task ps("ps:0");
  RawStream stream = RawStream::To(ps.Listen());
  const std::string session = HelloFrame("worker:0", "ps:0") +
                              Frame(FrameKind::kRequest, 5, kEcho, "metadata", "payload") +
                              Frame(FrameKind::kRequest, 6, kFromReactor, "more");
  for (const char& byte : session) {
    CHECK(stream.Send({&byte, 1}));
    if (&byte - session.data() < 100) SleepMs(1);
  }
  ReadFrame frame;
  CHECK(stream.Read(&frame) && frame.header.kind == FrameKind::kHelloAck);
  for (int replies = 0; replies < 2; ++replies) {
    CHECK(stream.Read(&frame));
    if (frame.header.request_id == 6) continue;  // the reactor serves it, so it may come first
    CHECK_EQ(frame.header.request_id, 5u);
    CHECK_EQ(frame.metadata, std::string("metadata"));
    CHECK_EQ(frame.payload, std::string("payload"));
  }
}

TEST(a_reply_in_single_bytes_and_replies_nobody_asked_for_do_no_harm) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto future = Begin(*channel, kEcho, "");
  RawStream stream = server.AcceptAndGreet();
  ReadFrame request;
  CHECK(stream.Read(&request));
  const uint64_t id = request.header.request_id;
  std::string replies;
  for (const uint64_t stranger : {uint64_t{0}, id + 1, id + (uint64_t{1} << 32), ~uint64_t{0}}) {
    replies += Frame(FrameKind::kReply, stranger, 0, "m", std::string(300'000, 'p'));
    replies += Frame(FrameKind::kError, stranger, 3, "no", "with a payload");
  }
  CHECK(stream.Send(replies));
  for (const char byte : Frame(FrameKind::kReply, id, 0, "right", "answer")) {
    CHECK(stream.Send({&byte, 1}));
    SleepMs(1);
  }
  const Outcome outcome = Get(std::move(future));
  CHECK(outcome.status.ok());
  CHECK_EQ(outcome.payload, std::string("answer"));
}

TEST(a_reply_before_the_greeting_is_refused) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto future = Begin(*channel, kEcho, "");
  RawStream stream = server.Accept();
  CHECK(stream.Send(Frame(FrameKind::kReply, 1ull << 32)));  // the first call's id
  shutdown(stream.fd(), SHUT_WR);
  const Status status = Get(std::move(future)).status;
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(Contains(status.message(), "a frame before the greeting"));
}

TEST(an_error_code_from_nowhere_is_unknown) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  std::unique_ptr<RawStream> stream;
  for (const uint16_t code : {uint16_t{0}, uint16_t{17}, uint16_t{65535}}) {
    auto future = Begin(*channel, kEcho, "");
    if (stream == nullptr) stream = std::make_unique<RawStream>(server.AcceptAndGreet());
    ReadFrame request;
    CHECK(stream->Read(&request));
    CHECK(stream->Send(Frame(FrameKind::kError, request.header.request_id, code, "odd")));
    CHECK(Get(std::move(future)).status.code() == Code::kUnknown);
  }
}

TEST(names_from_the_network_are_cut_and_cleaned) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  RawStream stream = RawStream::To(address);
  stream.Greet("evil\x1b[2J\r" + std::string(3'000, 'n'), "ps:0");
  const std::string name = ps.engine->stats().peers.at(0).peer;
  CHECK(name.size() <= 256);
  CHECK(name.find('\x1b') == std::string::npos);
  CHECK(name.find('\r') == std::string::npos);
}

TEST(who_has_not_said_its_name_announces_no_large_frame) {
  Task ps("ps:0");
  RawStream stream = RawStream::To(ps.Listen());
  CHECK(stream.Send(HelloFrame("worker:0" + std::string(5'000, 'n'), "ps:0").substr(0, 100)));
  CHECK(Contains(GoodbyeOf(&stream), "the limit is 4096"));
}

TEST(a_flood_of_connections_that_say_nothing_shuts_nobody_out) {
  Task ps("ps:0", 1, [](EngineOptions* options) { options->strangers = 16; });
  const std::string address = ps.Listen();
  std::vector<RawStream> flood;
  for (int i = 0; i < 40; ++i) flood.push_back(RawStream::To(address));
  RawStream stream = RawStream::To(address);
  stream.Greet("worker:0", "ps:0");
  // Connections that idle were closed to make room.
  CHECK_EQ(flood[0].ReadSome(1), "");
  CHECK(flood[0].ended());
  // A connection that has finished its greeting stays.
  for (int i = 0; i < 40; ++i) flood.push_back(RawStream::To(address));
  RawStream::To(address).Greet("worker:1", "ps:0");
  CHECK(stream.Send(Frame(FrameKind::kRequest, 1, kEcho, "x")));
  ReadFrame reply;
  CHECK(stream.Read(&reply));
  CHECK(reply.header.kind == FrameKind::kReply);
}

TEST(all_who_greet_are_served_if_more_come_at_once_than_may_be_in_their_greeting) {
  Task ps("ps:0", 1, [](EngineOptions* options) { options->strangers = 4; });
  std::promise<void> go;
  // The reactor stands still until all have come.
  ps.engine->RunAfter(0, [come = go.get_future().share()] { come.wait(); });
  const std::string address = ps.Listen();
  std::vector<RawStream> tasks;
  for (int i = 0; i < 200; ++i) {
    tasks.push_back(RawStream::To(address));
    CHECK(tasks.back().Send(HelloFrame("worker:" + std::to_string(i), "ps:0")));
  }
  go.set_value();
  ReadFrame ack;
  for (RawStream& task : tasks) {
    CHECK(task.Read(&ack));
    CHECK(ack.header.kind == FrameKind::kHelloAck);
  }
}

TEST(nothing_is_queued_for_who_has_not_finished_the_greeting) {
  Task ps("ps:0");
  RawStream stream = RawStream::To(ps.Listen());
  const std::string ping = Frame(FrameKind::kPing, 0);
  CHECK(stream.Send(ping + ping + HelloFrame("worker:0", "ps:0") + ping));
  ReadFrame frame;
  CHECK(stream.Read(&frame));
  CHECK(frame.header.kind == FrameKind::kHelloAck);
  CHECK(stream.Read(&frame));
  CHECK(frame.header.kind == FrameKind::kPong);
}

TEST(the_reason_of_who_has_proved_nothing_is_cleaned) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto future = Begin(*channel, kEcho, "x");
  RawStream stream = server.Accept();
  CHECK(stream.Send(Frame(FrameKind::kGoodbye, 0, 0, "evil\x1b[2J\r" + std::string(900, 'n'))));
  const std::string message = Get(std::move(future)).status.message();
  CHECK(Contains(message, "evil?[2J?nnn"));
  CHECK(Contains(message, std::string(900, 'n')));
}

TEST(a_flood_while_there_are_no_descriptors_keeps_nobody_out_for_long) {
  constexpr int kFlood = 60;
  constexpr int kFree = 40;
  Task ps("ps:0", 1, [](EngineOptions* options) { options->handshake_timeout_ms = 1000; });
  const std::string address = ps.Listen();
  const Bystander bystander(address);
  std::vector<Fd> strangers;  // the last one sends a greeting
  for (int i = 0; i <= kFlood; ++i) {
    strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{512, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  std::vector<Fd> all;
  for (;;) {
    all.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!all.back().valid()) break;
  }
  for (const Fd& stranger : strangers) ConnectTo(address, stranger);
  RawStream late(std::move(strangers.back()));
  CHECK(late.Send(HelloFrame("worker:1", "ps:0") + Frame(FrameKind::kRequest, 1, kEcho, "x")));
  Eventually([&] { return !ps.Log().empty(); });
  CHECK(Contains(ps.Log()[0], "Too many open files"));
  // They are accepted a few at a time, and closed.
  all.resize(all.size() - kFree);
  ReadFrame frame;
  CHECK(late.Read(&frame));
  CHECK(frame.header.kind == FrameKind::kHelloAck);
  CHECK(late.Read(&frame));
  CHECK(frame.header.kind == FrameKind::kReply);
  all.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK_EQ(ps.Log().size(), 1u);
}

TEST(a_peer_with_ever_new_names_does_not_fill_the_figures) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  for (int i = 0; i < 4200; ++i) {
    RawStream stream = RawStream::To(address);
    const linger reset{1, 0};  // leave no socket behind in TIME_WAIT
    setsockopt(stream.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    stream.Greet("worker:" + std::to_string(i), "ps:0");
  }
  CHECK(ps.engine->stats().peers.size() <= 4097);
}

TEST(connections_that_say_nothing_are_closed_and_others_served_meanwhile) {
  Task ps("ps:0", 1, [](EngineOptions* options) { options->handshake_timeout_ms = 300; });
  const std::string address = ps.Listen();
  const Bystander bystander(address);
  std::vector<RawStream> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(RawStream::To(address));
  for (RawStream& stream : silent) CHECK(stream.ReadToEnd().empty());
}

TEST(pings_without_end_cost_no_memory) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  const Bystander bystander(address);
  RawStream stream = RawStream::To(address);
  stream.Greet("worker:0", "ps:0");
  std::string pings;
  for (int i = 0; i < 10'000; ++i) pings += Frame(FrameKind::kPing, 0);
  const int64_t before = ResidentBytes();
  // The client reads no pong, so at some point the server stops reading.
  for (int i = 0; i < (kSanitized ? 20 : 100); ++i) {
    if (stream.SendWithin(pings, 200) < pings.size()) break;
  }
  if (!kSanitized) CHECK(ResidentBytes() - before < 40 << 20);
}

// The frames of a correct client's session.
std::string Session() {
  return HelloFrame("worker:0", "ps:0") + Frame(FrameKind::kRequest, 1, kEcho, "key", "value") +
         Frame(FrameKind::kPing, 0) + Frame(FrameKind::kRequest, 2, kFromReactor, "k") +
         Frame(FrameKind::kRequest, 3, kNever, "one way", "", kOneWay) +
         Frame(FrameKind::kRequest, 4, kNever, "to be cancelled") + Frame(FrameKind::kCancel, 4) +
         Frame(FrameKind::kRequest, 5, kBytes, "70000") + Frame(FrameKind::kRequest, 6, kFail) +
         Frame(FrameKind::kPong, 0) +
         Frame(FrameKind::kRequest, 7, kEcho, std::string(500, 'm'), std::string(3000, 'p'));
}

std::string Mutated(std::mt19937_64& random) {
  std::string bytes = Session();
  for (int changes = 1 + static_cast<int>(random() % 4); changes > 0; --changes) {
    const size_t at = random() % bytes.size();
    switch (random() % 6) {
      case 0:
        bytes[at] ^= static_cast<char>(1u << random() % 8);
        break;
      case 1:
        bytes[at] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(at + 1);
        break;
      case 3:
        bytes.insert(at, std::string(random() % 50, static_cast<char>(random())));
        break;
      case 4:
        bytes.erase(at, random() % 50);
        break;
      case 5: {
        const size_t from = random() % bytes.size();
        bytes.insert(at, bytes.substr(from, random() % 200));
        break;
      }
    }
    if (bytes.empty()) bytes = "x";
  }
  return bytes;
}

TEST(ten_thousand_damaged_sessions_leave_the_server_and_its_peers_unharmed) {
  Task ps("ps:0", 2);
  const std::string address = ps.Listen();
  const Bystander bystander(address);
  std::mt19937_64 random(1803);
  const int rounds = (kSanitized ? 2000 : 10'000) / 20;
  for (int round = 0; round < rounds; ++round) {
    std::vector<RawStream> streams;
    for (int i = 0; i < 20; ++i) {
      streams.push_back(RawStream::To(address));
      streams.back().Send(Mutated(random));
      shutdown(streams.back().fd(), SHUT_WR);
    }
    for (RawStream& stream : streams) stream.ReadToEnd();
  }
  CHECK(ps.Log().size() <= 1);
  std::lock_guard lock(ps.handler->mutex);
  ps.handler->kept.clear();
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
