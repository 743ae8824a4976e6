// Large payloads that are received over several connections.

#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "connection.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

constexpr size_t kMb = 1u << 20;

// Answers with as many bytes as the metadata says, in two pieces. Each byte depends on its
// position.
class PatternHandler : public TestHandler {
 public:
  static char At(size_t i) { return static_cast<char>(i * 2654435761u >> 13); }
  void Handle(Request request) override {
    if (request.method != kBytes) {
      TestHandler::Handle(std::move(request));
      return;
    }
    const auto bytes = static_cast<size_t>(std::stoul(request.metadata));
    auto payload = std::make_shared<std::string>(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) (*payload)[i] = At(i);
    {
      std::lock_guard lock(mutex);
      last_ = payload;
    }
    Message reply;
    reply.AppendMetadata("meta");
    reply.AddPayload(payload->data(), bytes / 3);
    reply.AddPayload(payload->data() + bytes / 3, bytes - bytes / 3);
    reply.KeepAlive(payload);
    request.Reply(std::move(reply));
  }
  // True if the last payload has been released.
  bool LetGo() {
    std::lock_guard lock(mutex);
    return last_.expired();
  }

 private:
  std::weak_ptr<std::string> last_;
};

struct Pair {
  explicit Pair(int streams)
      : ps("ps:0", 2), worker("worker:0", 2, [&](EngineOptions* o) { o->streams = streams; }) {
    ps.handler = handler;
    channel = worker.engine->Connect(ps.Listen(), "ps:0");
  }
  PeerStats OfPs() { return ps.engine->stats().peers.at(0); }
  std::shared_ptr<PatternHandler> handler = std::make_shared<PatternHandler>();
  Task ps;
  Task worker;
  std::shared_ptr<Channel> channel;
};

void CheckBytes(Pair& pair, size_t bytes) {
  const Outcome outcome = Get(Begin(*pair.channel, kBytes, std::to_string(bytes)));
  if (!outcome.status.ok()) check::Fail(__FILE__, __LINE__, outcome.status.message());
  CHECK_EQ(outcome.metadata, "meta");
  CHECK_EQ(outcome.payload.size(), bytes);
  for (size_t i = 0; i < bytes; ++i) {
    if (outcome.payload[i] != PatternHandler::At(i)) {
      check::Fail(__FILE__, __LINE__, "byte " + std::to_string(i) + " is another");
    }
  }
}

TEST(a_large_payload_comes_whole_over_as_many_connections_as_asked_for) {
  for (const int streams : {1, 2, 3}) {
    Pair pair(streams);
    CheckBytes(pair, 1000);
    CHECK_EQ(pair.OfPs().connects, 1u);  // without a large payload there is no further connection
    for (const size_t bytes : {8 * kMb, 9 * kMb + 1, 20 * kMb + 17}) CheckBytes(pair, bytes);
    CHECK_EQ(pair.OfPs().connects, static_cast<uint64_t>(streams));
    Eventually([&] { return pair.handler->LetGo(); });
  }
}

TEST(a_large_payload_goes_into_as_many_buffers_as_its_asker_has) {
  Pair pair(3);
  const size_t bytes = 9 * kMb + 1;
  std::promise<std::string> done;
  auto future = done.get_future();
  Message request(kBytes);
  request.AppendMetadata(std::to_string(bytes));
  pair.channel->Start(std::move(request), std::make_unique<ScatterCall>(1000, std::move(done)), {});
  CHECK(future.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  const std::string payload = future.get();
  CHECK_EQ(payload.size(), bytes);
  for (size_t i = 0; i < bytes; ++i) CHECK(payload[i] == PatternHandler::At(i));
}

TEST(without_a_number_there_is_a_connection_for_each_reactor) {
  Pair pair(0);  // two reactors
  CheckBytes(pair, 9 * kMb);
  CHECK_EQ(pair.OfPs().connects, 2u);
}

// Reports the thread in which it ended.
class ThreadCall : public Call {
 public:
  explicit ThreadCall(std::promise<std::thread::id> thread) : thread_(std::move(thread)) {}
  Status PrepareFromReactor(std::string_view, uint64_t, std::vector<MutableBuffer>*) override {
    return Status();
  }
  void Done(const Status&) override { thread_.set_value(std::this_thread::get_id()); }

 private:
  std::promise<std::thread::id> thread_;
};

TEST(channels_with_several_streams_are_spread_over_all_reactors) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  Task worker("worker:0", 2, [](EngineOptions* options) { options->streams = 2; });
  std::map<std::thread::id, int> channels_of;
  for (int i = 0; i < 4; ++i) {
    std::promise<std::thread::id> thread;
    auto future = thread.get_future();
    CallOptions options;
    options.done_on = RunOn::kReactor;
    worker.engine->Connect(address, "ps:0")
        ->Start(Message(kEcho), std::make_unique<ThreadCall>(std::move(thread)), options);
    ++channels_of[future.get()];
  }
  CHECK_EQ(channels_of.size(), 2u);
  for (const auto& [thread, channels] : channels_of) CHECK_EQ(channels, 2);
}

TEST(a_payload_whose_holder_goes_is_a_lost_connection) {
  auto ps = std::make_unique<Task>("ps:0");
  auto handler = std::make_shared<PatternHandler>();
  ps->handler = handler;
  Task worker("worker:0", 2, [](EngineOptions* options) { options->streams = 2; });
  const auto channel = worker.engine->Connect(ps->Listen(), "ps:0");
  CHECK(Get(Begin(*channel, kBytes, std::to_string(9 * kMb))).status.ok());
  std::vector<std::future<Outcome>> outcomes;
  for (int i = 0; i < 10; ++i) {
    outcomes.push_back(Begin(*channel, kBytes, std::to_string(12 * kMb)));
  }
  ps.reset();
  for (auto& future : outcomes) {
    const Outcome outcome = Get(std::move(future));
    CHECK(outcome.status.ok() || outcome.status.code() == Code::kUnavailable);
  }
}

TEST(what_is_not_held_cannot_be_fetched) {
  Task ps("ps:0");
  auto handler = std::make_shared<PatternHandler>();
  ps.handler = handler;
  RawStream client = RawStream::To(ps.Listen());
  client.Greet("worker:0", "ps:0");
  CHECK(client.Send(Frame(FrameKind::kFetches, 0)));
  CHECK(client.Send(Frame(FrameKind::kRequest, 1, kBytes, std::to_string(9 * kMb))));
  ReadFrame reply;
  CHECK(client.Read(&reply));
  CHECK_EQ(reply.header.flags & kHeld, kHeld);
  CHECK_EQ(reply.header.payload_bytes, 0u);
  uint64_t number = 0;
  std::memcpy(&number, reply.metadata.data() + 4, 8);
  uint64_t id = 10;
  auto fetch = [&](uint64_t of, uint64_t offset, uint64_t bytes) {
    Message request(kFetchRange);
    request.Put(of);
    request.Put(offset);
    request.Put(bytes);
    OutFrame frame(FrameKind::kRequest, 0, ++id, std::move(request));
    CHECK(client.Send(frame.head));
    CHECK(client.Read(&reply));
    CHECK_EQ(reply.header.request_id, id);
    return reply.header.kind == FrameKind::kReply ? static_cast<int64_t>(reply.payload.size()) : -1;
  };
  CHECK_EQ(fetch(number, 5, 100), 100);
  CHECK_EQ(fetch(number, 3 * kMb - 50, 100), 100);  // across the border of the two pieces
  CHECK_EQ(reply.payload[70], PatternHandler::At(3 * kMb + 20));
  CHECK_EQ(fetch(number, 9 * kMb, 0), 0);
  CHECK_EQ(fetch(number, 9 * kMb - 1, 2), -1);
  CHECK_EQ(fetch(number, ~uint64_t{0}, 2), -1);
  CHECK_EQ(fetch(number + 1, 0, 10), -1);
  CHECK(client.Send(Frame(FrameKind::kRequest, 5, kFetchRange, "short")));
  CHECK(client.Read(&reply));
  CHECK(reply.header.kind == FrameKind::kError);
  CHECK(client.Send(Frame(FrameKind::kReturn, number)));
  CHECK_EQ(fetch(number, 0, 10), -1);
  Eventually([&] { return handler->LetGo(); });
}

TEST(a_payload_held_for_who_did_not_ask_for_that_ends_the_connection) {
  Task worker("worker:0");  // one stream
  RawServer server;
  const auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto outcome = Begin(*channel, kEcho, "");
  {
    RawStream stream = server.AcceptAndGreet();
    ReadFrame frame;
    CHECK(stream.Read(&frame));
    CHECK(stream.Send(
        Frame(FrameKind::kReply, frame.header.request_id, 0, std::string(16, '1'), "", kHeld)));
    CHECK(stream.Read(&frame));
    CHECK(frame.header.kind == FrameKind::kGoodbye);
  }
  CHECK(Get(std::move(outcome)).status.code() == Code::kUnavailable);
}

// Two streams; the peer may be silent for longer than Get waits.
void Patient(EngineOptions* options) {
  options->streams = 2;
  options->silent_timeout_ms = 300'000;
}

// A server that holds a payload of 9 MB for its client, which then requests the two halves.
class RawHolder {
 public:
  explicit RawHolder(const CallOptions& options = {}, int64_t patience_ms = 0)
      : channel_(worker_.engine->Connect(server_.address(), "ps:0")) {
    outcome_ = Begin(*channel_, kEcho, "", "", options, &call_);
    streams_.push_back(server_.AcceptAndGreet());
    const uint64_t id = Next(0, FrameKind::kRequest).request_id;
    if (patience_ms > 0) {
      channel_->CancelPatiently(call_, patience_ms);
      CHECK_EQ(Next(0, FrameKind::kCancel).request_id, id);
    }
    Message loan;
    loan.Put<uint64_t>(kNumber);
    loan.Put<uint64_t>(9 * kMb);
    OutFrame reply(FrameKind::kReply, kHeld, id, std::move(loan));
    CHECK(streams_[0].Send(reply.head));
    streams_.push_back(server_.AcceptAndGreet());
    for (size_t i = 0; i < 2; ++i) fetches_.push_back(Next(i, FrameKind::kRequest).request_id);
  }
  void Answer(size_t stream, FrameKind kind, uint16_t code, const std::string& payload) {
    const bool error = kind == FrameKind::kError;
    CHECK(streams_[stream].Send(
        Frame(kind, fetches_[stream], code, error ? "not here" : "", payload)));
  }
  // Sends half of a range, which is never completed.
  void AnswerHalf(size_t stream) {
    const std::string range(9 * kMb / 2, 'x');
    const std::string frame = Frame(FrameKind::kReply, fetches_[stream], 0, "", range);
    CHECK(streams_[stream].Send(frame.substr(0, frame.size() / 2)));
  }
  // Answers a range that is requested once more, over the main connection.
  void AnswerAgain(const std::string& payload) {
    const uint64_t id = Next(0, FrameKind::kRequest).request_id;
    CHECK(streams_[0].Send(Frame(FrameKind::kReply, id, 0, "", payload)));
  }
  void Cancel() { channel_->Cancel(call_); }
  void Hang(size_t stream) { shutdown(streams_[stream].fd(), SHUT_RDWR); }
  // Checks that the payload was returned; returns how the call ended.
  Status End() {
    CHECK_EQ(Next(0, FrameKind::kReturn).request_id, kNumber);
    return EndUnreturned();
  }
  Status EndUnreturned() {
    Outcome outcome = Get(std::move(outcome_));
    payload_ = std::move(outcome.payload);
    return outcome.status;
  }
  const std::string& payload() const { return payload_; }

 private:
  static constexpr uint64_t kNumber = 77;

  FrameHeader Next(size_t stream, FrameKind kind) {
    ReadFrame frame;
    do CHECK(streams_[stream].Read(&frame));
    while (frame.header.kind != kind);
    return frame.header;
  }

  RawServer server_;
  Task worker_{"worker:0", 1, Patient};
  std::shared_ptr<Channel> channel_;
  uint64_t call_ = 0;
  std::future<Outcome> outcome_;
  std::vector<RawStream> streams_;
  std::vector<uint64_t> fetches_;
  std::string payload_;
};

TEST(a_refused_range_fails_the_call_once_all_ranges_have_ended_and_gives_the_payload_back) {
  RawHolder holder;
  holder.Answer(1, FrameKind::kError, static_cast<uint16_t>(Code::kUnavailable), "");
  holder.Answer(0, FrameKind::kReply, 0, std::string(9 * kMb / 2, 'x'));
  const Status status = holder.End();
  CHECK(status.code() == Code::kUnavailable);
  CHECK(Contains(status.message(), "not here"));
}

TEST(a_range_of_another_size_fails_the_call_and_gives_the_payload_back) {
  RawHolder holder;
  holder.Answer(0, FrameKind::kReply, 0, std::string(9 * kMb / 2, 'x'));
  holder.Answer(1, FrameKind::kReply, 0, std::string(9 * kMb / 2 - 1, 'x'));
  const Status status = holder.End();
  CHECK(status.code() == Code::kInternal);
  CHECK(Contains(status.message(), "a range of another size than was asked for"));
}

TEST(a_range_whose_connection_is_lost_is_fetched_over_the_main_one) {
  for (const bool arriving : {false, true}) {
    RawHolder holder;
    if (arriving) holder.AnswerHalf(1);
    holder.Hang(1);
    holder.Answer(0, FrameKind::kReply, 0, std::string(9 * kMb / 2, 'x'));
    holder.AnswerAgain(std::string(9 * kMb / 2, 'y'));
    CHECK(holder.End().ok());
    CHECK(holder.payload() == std::string(9 * kMb / 2, 'x') + std::string(9 * kMb / 2, 'y'));
  }
}

TEST(a_range_whose_connection_cannot_be_made_is_fetched_over_the_main_one) {
  RawServer server;
  Task worker("worker:0", 1, Patient);
  const auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto outcome = Begin(*channel, kEcho, "");
  RawStream stream = server.AcceptAndGreet();
  server.Close();  // as behind a firewall that allows one connection
  ReadFrame frame;
  do CHECK(stream.Read(&frame));
  while (frame.header.kind != FrameKind::kRequest);
  Message loan;
  loan.Put<uint64_t>(7);
  loan.Put<uint64_t>(9 * kMb);
  CHECK(stream.Send(
      OutFrame(FrameKind::kReply, kHeld, frame.header.request_id, std::move(loan)).head));
  for (int i = 0; i < 2; ++i) {
    CHECK(stream.Read(&frame));
    CHECK_EQ(frame.header.method, kFetchRange);
    CHECK(stream.Send(
        Frame(FrameKind::kReply, frame.header.request_id, 0, "", std::string(9 * kMb / 2, 'x'))));
  }
  CHECK(Get(std::move(outcome)).payload == std::string(9 * kMb, 'x'));
}

TEST(a_call_whose_ranges_do_not_come_ends_by_its_deadline) {
  CallOptions options;
  options.deadline_ms = kSanitized ? 3000 : 1000;  // after the holder's first answers
  RawHolder holder(options);
  holder.AnswerHalf(1);
  CHECK(holder.End().code() == Code::kDeadlineExceeded);
}

TEST(a_call_whose_ranges_do_not_come_can_be_cancelled) {
  for (const bool arriving : {false, true}) {
    RawHolder holder;
    if (arriving) holder.AnswerHalf(0);
    if (arriving) holder.AnswerHalf(1);
    holder.Cancel();
    CHECK(holder.End().code() == Code::kCancelled);
  }
}

TEST(a_call_that_was_cancelled_patiently_and_whose_ranges_do_not_come_ends_as_cancelled) {
  RawHolder holder({}, kSanitized ? 3000 : 1000);
  holder.AnswerHalf(1);
  CHECK(holder.End().code() == Code::kCancelled);
}

TEST(a_call_whose_ranges_do_not_come_ends_with_its_connection) {
  RawHolder holder;
  holder.AnswerHalf(1);
  holder.Hang(0);
  CHECK(holder.EndUnreturned().code() == Code::kUnavailable);
}

TEST(a_range_that_fails_ends_those_that_do_not_come) {
  RawHolder holder;
  holder.Answer(1, FrameKind::kError, static_cast<uint16_t>(Code::kUnavailable), "");
  CHECK(holder.End().code() == Code::kUnavailable);
}

// Accepts one push, and reports how it ended.
class OnePush : public PushReceiver {
 public:
  std::unique_ptr<Call> BeginFromReactor(uint64_t) override {
    return std::make_unique<TestCall>(std::move(promise_));
  }
  void OnLost(const Status&) override {}
  std::future<Outcome> outcome() { return promise_.get_future(); }

 private:
  std::promise<Outcome> promise_;
};

TEST(a_push_whose_ranges_do_not_come_ends_with_its_connection) {
  RawServer server;
  Task worker("worker:0", 1, Patient);
  const auto channel = worker.engine->Connect(server.address(), "ps:0");
  const auto receiver = std::make_shared<OnePush>();
  auto pushed = receiver->outcome();
  channel->SetPushReceiver(receiver);
  auto call = Begin(*channel, kEcho, "");
  auto stream = std::make_optional(server.AcceptAndGreet());
  Message loan;
  loan.Put<uint64_t>(7);
  loan.Put<uint64_t>(9 * kMb);
  CHECK(stream->Send(OutFrame(FrameKind::kPush, kHeld, 1, std::move(loan)).head));
  RawStream lane = server.AcceptAndGreet();
  ReadFrame frame;
  CHECK(lane.Read(&frame) && frame.header.kind == FrameKind::kRequest);
  stream.reset();
  CHECK(Get(std::move(pushed)).status.code() == Code::kUnavailable);
  CHECK(Get(std::move(call)).status.code() == Code::kUnavailable);
}

TEST(a_held_payload_beyond_the_limit_is_refused_before_room_is_made_for_it) {
  Task worker("worker:0", 1, [](EngineOptions* options) { options->streams = 2; });
  RawServer server;
  const auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto outcome = Begin(*channel, kEcho, "");
  {
    RawStream stream = server.AcceptAndGreet();
    ReadFrame frame;
    do CHECK(stream.Read(&frame));
    while (frame.header.kind != FrameKind::kRequest);
    Message loan;
    loan.Put<uint64_t>(1);
    loan.Put<uint64_t>(FrameLimits().payload_bytes + 1);
    OutFrame reply(FrameKind::kReply, kHeld, frame.header.request_id, std::move(loan));
    CHECK(stream.Send(reply.head));
    do CHECK(stream.Read(&frame));
    while (frame.header.kind != FrameKind::kGoodbye);
    CHECK(Contains(frame.metadata, "the limit is"));
  }
  CHECK(Get(std::move(outcome)).status.code() == Code::kUnavailable);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
