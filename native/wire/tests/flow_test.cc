// Outgoing frames: gathering, order, fairness, and peers that do not read the replies that they
// requested.

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

// Replies with its own memory, in as many parts as the metadata of the request says.
class PartsHandler : public TestHandler {
 public:
  PartsHandler() : bytes_(3'000'000, '\0') {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i * 7 + i / 251);
  }
  void Handle(Request request) override {
    const size_t parts = std::stoul(request.metadata);
    const size_t size = bytes_.size() / parts;
    Message reply;
    for (size_t i = 0; i < parts; ++i) reply.AddPayload(bytes_.data() + i * size, size);
    request.Reply(std::move(reply));
  }
  std::string Expected(size_t parts) const {
    return bytes_.substr(0, bytes_.size() / parts * parts);
  }

 private:
  std::string bytes_;
};

TEST(a_payload_of_any_number_of_parts_arrives_whole) {
  Task ps("ps:0");
  auto handler = std::make_shared<PartsHandler>();
  ps.handler = handler;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  for (const size_t parts : {1u, 2u, 63u, 64u, 510u, 511u, 512u, 513u, 1024u, 5000u, 100'000u}) {
    std::vector<std::future<Outcome>> futures;  // several, so that frames and parts interleave
    for (int i = 0; i < 3; ++i) futures.push_back(Begin(*channel, kEcho, std::to_string(parts)));
    for (auto& future : futures) {
      CHECK(Get(std::move(future)).payload == handler->Expected(parts));
    }
  }
}

TEST(a_reply_is_scattered_over_any_number_of_buffers) {
  Task ps("ps:0");
  auto handler = std::make_shared<PartsHandler>();
  ps.handler = handler;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  for (const size_t buffers : {1u, 2u, 62u, 63u, 64u, 200u, 2000u}) {
    std::promise<std::string> done;
    auto future = done.get_future();
    Message request(kEcho);
    request.AppendMetadata("3");
    channel->Start(std::move(request), std::make_unique<ScatterCall>(buffers, std::move(done)), {});
    CHECK(future.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    CHECK(future.get() == handler->Expected(3));
  }
}

// Provides less memory than the reply needs, or refuses the reply.
class UnpreparedCall : public Call {
 public:
  UnpreparedCall(Status answer, std::promise<Status> done)
      : answer_(std::move(answer)), done_(std::move(done)) {}
  Status PrepareFromReactor(std::string_view, uint64_t, std::vector<MutableBuffer>* into) override {
    into->push_back({bytes_, sizeof(bytes_)});
    return answer_;
  }
  void Done(const Status& status) override { done_.set_value(status); }

 private:
  const Status answer_;
  std::promise<Status> done_;
  char bytes_[10];
};

TEST(a_reply_that_its_asker_has_no_room_for_is_dropped_and_the_next_one_read) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  for (const Status& answer : {Status(), Status(Code::kAborted, "not wanted")}) {
    std::promise<Status> done;
    auto future = done.get_future();
    Message request(kEcho);
    request.SetOwnedPayload(std::string(1'000'000, 'p'));
    channel->Start(std::move(request), std::make_unique<UnpreparedCall>(answer, std::move(done)),
                   {});
    CHECK(future.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    CHECK(future.get().code() == (answer.ok() ? Code::kInternal : answer.code()));
    CHECK(Get(Begin(*channel, kEcho, "next")).status.ok());
  }
}

TEST(what_is_sent_in_a_batch_leaves_in_one_system_call) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  CHECK(Get(Begin(*channel, kEcho, "")).status.ok());
  const uint64_t before = worker.engine->stats().peers.at(0).tx_syscalls;
  std::vector<std::future<Outcome>> futures;
  {
    SendBatch outer;
    {
      SendBatch inner;
      for (int i = 0; i < 10; ++i) futures.push_back(Begin(*channel, kEcho, ""));
    }
    for (int i = 0; i < 10; ++i) futures.push_back(Begin(*channel, kEcho, ""));
  }
  for (auto& future : futures) CHECK(Get(std::move(future)).status.ok());
  CHECK_EQ(worker.engine->stats().peers.at(0).tx_syscalls - before, 2u);
}

TEST(a_cancellation_does_not_overtake_its_request) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto first = Begin(*channel, kNever, "first", std::string(32u << 20, 'f'));
  RawStream stream = server.AcceptAndGreet();
  SleepMs(50);  // until it has filled the socket
  uint64_t id = 0;
  auto second = Begin(*channel, kNever, "second", std::string(1u << 20, 's'), {}, &id);
  channel->Cancel(id);
  CHECK(Get(std::move(second)).status.code() == Code::kCancelled);
  ReadFrame frame;
  CHECK(stream.Read(&frame));
  CHECK_EQ(frame.metadata, std::string("first"));
  CHECK(stream.Read(&frame));
  CHECK_EQ(frame.metadata, std::string("second"));
  CHECK(stream.Read(&frame));
  CHECK(frame.header.kind == FrameKind::kCancel);
  CHECK_EQ(frame.header.request_id, id);
}

// Notes the order of its calls for each request, and takes some time for a request.
class OrderHandler : public TestHandler {
 public:
  void Handle(Request request) override {
    SleepMs(5);
    std::lock_guard lock(mutex);
    heard.push_back(request.id);
    kept.push_back(std::move(request));
  }
  void OnCancel(uint64_t, uint64_t request_id) override {
    std::lock_guard lock(mutex);
    cancelled_after.push_back(std::find(heard.begin(), heard.end(), request_id) != heard.end());
  }
  void OnDisconnect(uint64_t) override {
    std::lock_guard lock(mutex);
    disconnected_after = heard.size();
  }
  std::vector<uint64_t> heard;
  std::vector<bool> cancelled_after;
  size_t disconnected_after = 0;
};

// A task whose handler notes the order of its calls. A client sends bytes and then hangs up.
struct OrderTask {
  OrderTask() { ps.handler = handler; }
  void Hear(const std::string& bytes, int hangs_up_after_ms = 0) {
    RawStream stream = RawStream::To(ps.Listen());
    stream.Greet("worker:0", "ps:0");
    CHECK(stream.Send(bytes));
    SleepMs(hangs_up_after_ms);
  }

  Task ps{"ps:0"};
  std::shared_ptr<OrderHandler> handler = std::make_shared<OrderHandler>();
};

TEST(a_handler_hears_of_a_request_before_its_cancellation_and_before_the_end) {
  OrderTask task;
  const auto handler = task.handler;
  constexpr size_t kRequests = 20;
  std::string bytes;
  for (uint64_t id = 1; id <= kRequests; ++id) {
    bytes += Frame(FrameKind::kRequest, id, kNever) + Frame(FrameKind::kCancel, id);
  }
  task.Hear(bytes, /*hangs_up_after_ms=*/10);
  Eventually([&] {
    std::lock_guard lock(handler->mutex);
    return handler->cancelled_after.size() == kRequests && handler->disconnected_after > 0;
  });
  std::lock_guard lock(handler->mutex);
  for (const bool in_order : handler->cancelled_after) CHECK(in_order);
  CHECK_EQ(handler->disconnected_after, kRequests);
  handler->kept.clear();
}

TEST(a_handler_hears_of_one_way_requests_before_the_end) {
  OrderTask task;
  const auto handler = task.handler;
  constexpr size_t kRequests = 20;
  std::string bytes;
  for (const uint16_t method : {kNever, kFromReactor}) {
    for (size_t i = 0; i < kRequests / 2; ++i) {
      bytes += Frame(FrameKind::kRequest, 0, method, "", "", kOneWay);
    }
  }
  task.Hear(bytes);
  Eventually([&] {
    std::lock_guard lock(handler->mutex);
    return handler->disconnected_after > 0;
  });
  std::lock_guard lock(handler->mutex);
  CHECK_EQ(handler->disconnected_after, kRequests);
  handler->kept.clear();
}

// Handles everything on the thread where it arrives, and notes its calls.
class HereHandler : public TestHandler {
 public:
  RunOn HandleOn(const Request&) const override { return RunOn::kReactorWhenAlone; }
  void Handle(Request request) override {
    Note("request " + std::to_string(request.id));
    TestHandler::Handle(std::move(request));
  }
  void OnCancel(uint64_t, uint64_t request_id) override {
    Note("cancel " + std::to_string(request_id));
  }
  void Note(std::string what) {
    std::lock_guard lock(mutex);
    heard.push_back(std::move(what));
  }
  std::vector<std::string> heard;
};

TEST(a_handler_hears_of_a_cancellation_before_the_requests_that_came_after_it) {
  Task ps("ps:0");
  auto handler = std::make_shared<HereHandler>();
  ps.handler = handler;
  RawStream stream = RawStream::To(ps.Listen());
  stream.Greet("worker:0", "ps:0");
  std::promise<void> end;
  const std::shared_future<void> ended(end.get_future());
  for (int i = 0; i < 2; ++i) ps.pool.Run([ended] { ended.wait(); });  // the executor is busy
  CHECK(stream.Send(Frame(FrameKind::kRequest, 1, kNever)));
  SleepMs(10);  // request 1 runs when its cancellation arrives
  CHECK(stream.Send(Frame(FrameKind::kCancel, 1) + Frame(FrameKind::kRequest, 2, kEcho)));
  ReadFrame reply;
  CHECK(stream.Read(&reply));
  CHECK_EQ(reply.header.request_id, 2u);
  {
    std::lock_guard lock(handler->mutex);
    CHECK(handler->heard == std::vector<std::string>({"request 1", "cancel 1", "request 2"}));
  }
  end.set_value();
}

TEST(a_client_that_takes_no_replies_is_not_read_from_without_end) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  RawStream stream = RawStream::To(address);
  stream.Greet("worker:0", "ps:0");
  std::string requests;
  for (uint64_t id = 0; id < 1000; ++id) {
    requests += Frame(FrameKind::kRequest, id, kFromReactor, "", std::string(100, 'r'));
  }
  const int64_t before = ResidentBytes();
  size_t sent = 0;
  for (int i = 0; i < 2000; ++i) {
    const size_t took = stream.SendWithin(requests, 300);
    sent += took;
    if (took < requests.size()) break;
  }
  CHECK(sent < 2000 * requests.size());
  if (!kSanitized) CHECK(ResidentBytes() - before < 100 << 20);
  {  // other clients are served meanwhile
    Task worker("worker:1");
    CHECK(Get(Begin(*worker.engine->Connect(address, "ps:0"), kEcho, "")).status.ok());
  }
  // When the client reads, it gets all replies, and the server continues to read.
  const size_t request_bytes = requests.size() / 1000;
  std::thread rest([&] {
    const size_t begun = sent % requests.size();
    CHECK(stream.Send(requests.substr(begun)));
  });
  const size_t expected = (sent + requests.size() - sent % requests.size()) / request_bytes;
  ReadFrame reply;
  for (size_t got = 0; got < expected; ++got) {
    CHECK(stream.Read(&reply));
    CHECK(reply.header.kind == FrameKind::kReply);
    CHECK_EQ(reply.payload.size(), 100u);
  }
  rest.join();
}

// Replies before the next request is read.
class AtOnceHandler : public TestHandler {
 public:
  RunOn HandleOn(const Request&) const override { return RunOn::kReactor; }
};

TEST(a_client_that_takes_no_large_replies_makes_the_server_hold_no_more_than_so_many_bytes) {
  Task ps("ps:0");
  ps.handler = std::make_shared<AtOnceHandler>();
  RawStream client = RawStream::To(ps.Listen(), /*receive_buffer_bytes=*/64 << 10);
  client.Greet("worker:0", "ps:0");
  CHECK(client.Send(Frame(FrameKind::kRequest, 1, kNever)));  // for a Pusher
  Eventually([&] {
    std::lock_guard lock(ps.handler->mutex);
    return !ps.handler->kept.empty();
  });
  const Pusher pusher = ps.handler->kept.front().pusher();
  CHECK(pusher.IsTaken());
  const int64_t before = ResidentBytes();
  constexpr size_t kReplyBytes = 16u << 20;
  constexpr int kReplies = 40;  // 640 MB if all were made
  for (uint64_t id = 0; id < kReplies; ++id) {
    CHECK(client.Send(Frame(FrameKind::kRequest, 10 + id, kBytes, std::to_string(kReplyBytes))));
    SleepMs(2);  // so that each request is read on its own
  }
  Eventually([&] { return !pusher.IsTaken(); });
  SleepMs(300);
  if (!kSanitized) CHECK(ResidentBytes() - before < 400 << 20);
  // In the end the client gets every reply completely.
  ReadFrame reply;
  for (int i = 0; i < kReplies; ++i) {
    CHECK(client.Read(&reply));
    CHECK_EQ(reply.payload.size(), kReplyBytes);
  }
  Eventually([&] { return pusher.IsTaken(); });
}

TEST(who_pulls_large_replies_leaves_time_for_small_requests) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  Task greedy("worker:0");
  Task modest("worker:1");
  auto large = greedy.engine->Connect(address, "ps:0");
  auto small = modest.engine->Connect(address, "ps:0");
  CHECK(Get(Begin(*small, kEcho, "")).status.ok());
  std::atomic<bool> ended{false};
  std::atomic<int> pulled{0};
  std::thread puller([&] {
    std::vector<std::future<Outcome>> two;
    for (int i = 0; i < 2; ++i) two.push_back(Begin(*large, kBytes, "100000000"));
    for (size_t i = 0; !ended; ++i) {
      CHECK(Get(std::move(two[i % 2])).status.ok());
      ++pulled;
      two[i % 2] = Begin(*large, kBytes, "100000000");
    }
    for (auto& future : two) Get(std::move(future));
  });
  Eventually([&] { return pulled > 0; });
  std::vector<int64_t> took;
  for (int i = 0; i < (kSanitized ? 20 : 100); ++i) {
    const int64_t begin = SteadyMs();
    CHECK(Get(Begin(*small, kEcho, "", "tiny")).status.ok());
    took.push_back(SteadyMs() - begin);
  }
  ended = true;
  puller.join();
  std::sort(took.begin(), took.end());
  CHECK(took[took.size() / 2] < (kSanitized ? 2000 : 500));
}

TEST(many_threads_send_small_and_large_on_one_connection_and_nothing_is_lost_or_torn) {
  // The role of the writer changes all the time here: from thread to thread, and to the reactor.
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&channel, t] {
      const int rounds = kSanitized ? 300 : 2000;
      for (int i = 0; i < rounds; ++i) {
        const size_t size = i % 50 == 0 ? 150'000 : static_cast<size_t>(i % 300);
        const std::string payload(size, static_cast<char>('a' + t));
        const Outcome outcome =
            Get(Begin(*channel, i % 2 == 0 ? kFromReactor : kEcho, std::to_string(i), payload));
        CHECK(outcome.status.ok());
        CHECK_EQ(outcome.metadata, std::to_string(i));
        CHECK(outcome.payload == payload);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

constexpr uint64_t kUnansweredBytes = 100'000;

void FewUnanswered(EngineOptions* options) { options->unanswered_bytes = kUnansweredBytes; }

TEST(requests_beyond_what_may_be_unanswered_are_refused_and_not_handled) {
  Task ps("ps:0", 1, FewUnanswered);
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  auto& handler = *ps.handler;
  const auto kept = [&handler] {
    std::lock_guard lock(handler.mutex);
    return handler.kept.size();
  };
  const std::string payload(40'000, 'p');
  std::vector<std::future<Outcome>> waiting;
  const auto fill = [&] {
    while (kept() < 3) {
      const size_t before = kept();
      waiting.push_back(Begin(*channel, kNever, "", payload));
      Eventually([&] { return kept() == before + 1; });
    }
    const Status status = Get(Begin(*channel, kNever, "", payload)).status;
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK(Contains(status.message(), "the limit is 100000"));
    CHECK_EQ(kept(), 3u);
  };
  // An answered request makes room once, and so does a dropped one.
  for (int round = 0; round < 5; ++round) {
    fill();
    CHECK(Get(Begin(*channel, kEcho, "")).status.code() == Code::kResourceExhausted);
    std::lock_guard lock(handler.mutex);
    Request last = std::move(handler.kept.back());
    handler.kept.pop_back();
    const Request copy = last;
    if (round % 2 == 0) last.Reply(Message());
  }
  // One-way requests, which are not answered, hold nothing after they have been handled.
  for (int i = 0; i < 20; ++i) {
    Message notice(kEcho);
    notice.SetOwnedPayload(payload);
    channel->Notify(std::move(notice), /*lazy=*/false);
    Eventually([&] { return Get(Begin(*channel, kEcho, "")).status.ok(); });
  }
  fill();
  CHECK_EQ(ps.Log().size(), 1u);  // one line per minute
}

TEST(the_unanswered_requests_of_all_connections_have_one_limit) {
  Task ps("ps:0", 1, FewUnanswered);
  const std::string address = ps.Listen();
  constexpr int kWorkers = 8;
  Task worker("worker:0");
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<std::future<Outcome>> waiting;
  for (int i = 0; i < kWorkers; ++i) {
    channels.push_back(worker.engine->Connect(address, "ps:0"));
    for (int j = 0; j < 3; ++j) {
      waiting.push_back(Begin(*channels.back(), kNever, "", std::string(40'000, 'p')));
    }
    // In order: it comes after those. Who asks for little is always heard.
    const Status status = Get(Begin(*channels.back(), kEcho, "")).status;
    CHECK(status.ok() || status.code() == Code::kResourceExhausted);
  }
  std::lock_guard lock(ps.handler->mutex);
  const size_t kept = ps.handler->kept.size();
  // One of each connection is not counted for all.
  CHECK(kept >= kWorkers && kept <= kWorkers + 3);
  ps.handler->kept.clear();
}

TEST(requests_that_nobody_has_begun_to_handle_count_as_unanswered) {
  StuckExecutor executor;
  Task ps("ps:0", 1, [&](EngineOptions* options) {
    FewUnanswered(options);
    options->executor = [&](std::function<void()> closure) { executor.Run(std::move(closure)); };
  });
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  CHECK(Get(Begin(*channel, kEcho, "up")).status.ok());
  executor.Stick();
  std::vector<std::future<Outcome>> calls;
  for (int i = 0; i < 10; ++i)
    calls.push_back(Begin(*channel, kEcho, "", std::string(40'000, 'p')));
  for (int i = 3; i < 10; ++i) {
    CHECK(Get(std::move(calls[static_cast<size_t>(i)])).status.code() == Code::kResourceExhausted);
  }
  executor.Resume();
  for (int i = 0; i < 3; ++i) CHECK(Get(std::move(calls[static_cast<size_t>(i)])).status.ok());
  ps.engine->Stop();
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
