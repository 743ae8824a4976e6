// Messages that a server pushes.

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

// Accepts pushes with even numbers only.
class Inbox : public PushReceiver, public std::enable_shared_from_this<Inbox> {
 public:
  std::unique_ptr<Call> BeginFromReactor(uint64_t what) override {
    ++begun;
    if (what % 2 == 1) return nullptr;
    return std::make_unique<Incoming>(shared_from_this(), what);
  }
  void OnLost(const Status& why) override {
    std::lock_guard lock(mutex);
    lost.push_back(why.code());
  }

  std::atomic<int> begun{0};
  std::mutex mutex;
  std::vector<std::pair<uint64_t, Outcome>> arrived;
  std::vector<Code> lost;

 private:
  class Incoming : public Call {
   public:
    Incoming(std::shared_ptr<Inbox> inbox, uint64_t what) : inbox_(std::move(inbox)), what_(what) {}
    Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                              std::vector<MutableBuffer>* into) override {
      outcome_.metadata = metadata;
      outcome_.payload.resize(payload_bytes);
      into->push_back({outcome_.payload.data(), outcome_.payload.size()});
      return Status();
    }
    void Done(const Status& status) override {
      outcome_.status = status;
      std::lock_guard lock(inbox_->mutex);
      inbox_->arrived.emplace_back(what_, std::move(outcome_));
    }

   private:
    const std::shared_ptr<Inbox> inbox_;
    const uint64_t what_;
    Outcome outcome_;
  };
};

Pusher PusherOf(Task& task) {
  Eventually([&] {
    std::lock_guard lock(task.handler->mutex);
    return !task.handler->kept.empty();
  });
  std::lock_guard lock(task.handler->mutex);
  const Pusher pusher = task.handler->kept.back().pusher();
  task.handler->kept.clear();
  return pusher;
}

Message Large(const std::string& metadata, size_t payload_bytes) {
  Message message;
  message.AppendMetadata(metadata);
  message.SetOwnedPayload(std::string(payload_bytes, 'p'));
  return message;
}

TEST(pushes_arrive_whole_between_replies_and_what_nobody_wants_is_dropped) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  auto inbox = std::make_shared<Inbox>();
  channel->SetPushReceiver(inbox);
  auto never = Begin(*channel, kNever, "");
  const Pusher pusher = PusherOf(ps);
  constexpr size_t kPushes = 40;
  std::vector<std::future<Outcome>> replies;
  for (uint64_t what = 0; what < kPushes; ++what) {
    CHECK(pusher.Push(what, Large(std::to_string(what), what * 20'000)));
    replies.push_back(Begin(*channel, kEcho, "", std::string(30'000, 'r')));
  }
  for (auto& reply : replies) CHECK_EQ(Get(std::move(reply)).payload.size(), 30'000u);
  Eventually([&] {
    std::lock_guard lock(inbox->mutex);
    return inbox->arrived.size() == kPushes / 2;
  });
  CHECK_EQ(inbox->begun.load(), static_cast<int>(kPushes));
  for (const auto& [what, outcome] : inbox->arrived) {
    CHECK(outcome.status.ok());
    CHECK_EQ(outcome.metadata, std::to_string(what));
    CHECK_EQ(outcome.payload.size(), what * 20'000);
  }
}

TEST(a_channel_without_a_receiver_drops_pushes) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  auto never = Begin(*channel, kNever, "");
  const Pusher pusher = PusherOf(ps);
  for (uint64_t what = 0; what < 5; ++what) CHECK(pusher.Push(what, Large("", 300'000)));
  CHECK(Get(Begin(*channel, kEcho, "still")).status.ok());
}

TEST(a_lost_connection_ends_the_push_that_was_arriving_and_is_told) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto inbox = std::make_shared<Inbox>();
  channel->SetPushReceiver(inbox);
  auto future = Begin(*channel, kNever, "");
  {
    RawStream stream = server.AcceptAndGreet();
    const std::string push = Frame(FrameKind::kPush, 2, 0, "half", std::string(100'000, 'p'));
    CHECK(stream.Send(push.substr(0, 50'000)));
    Eventually([&] { return inbox->begun == 1; });
  }
  CHECK(Get(std::move(future)).status.code() == Code::kUnavailable);
  Eventually([&] {
    std::lock_guard lock(inbox->mutex);
    return inbox->arrived.size() == 1 && inbox->lost.size() == 1;
  });
  CHECK(inbox->arrived[0].second.status.code() == Code::kUnavailable);
  CHECK(inbox->lost[0] == Code::kUnavailable);
}

TEST(who_has_gone_is_not_pushed_to) {
  Task ps("ps:0");
  auto worker = std::make_unique<Task>("worker:0");
  auto channel = worker->engine->Connect(ps.Listen(), "ps:0");
  auto inbox = std::make_shared<Inbox>();
  channel->SetPushReceiver(inbox);
  auto never = Begin(*channel, kNever, "");
  const Pusher pusher = PusherOf(ps);
  CHECK(pusher.connection_id() != 0);
  worker->engine->Stop();
  CHECK(!inbox->lost.empty());
  CHECK(inbox->lost[0] == Code::kCancelled);
  Eventually([&] { return !pusher.Push(0, Large("", 100)); });
  CHECK(!Pusher().Push(0, Message()));
  CHECK_EQ(Pusher().connection_id(), 0u);
}

TEST(a_push_is_not_mistaken_for_the_reply_with_its_number) {
  RawServer server;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(server.address(), "ps:0");
  auto inbox = std::make_shared<Inbox>();
  channel->SetPushReceiver(inbox);
  auto first = Begin(*channel, kNever, "");
  RawStream stream = server.AcceptAndGreet();
  ReadFrame request;
  CHECK(stream.Read(&request));
  const uint64_t id = request.header.request_id;  // of the first call; an even number
  CHECK_EQ(id % 2, 0u);
  const std::string push = Frame(FrameKind::kPush, id, 0, "", std::string(100'000, 'p'));
  CHECK(stream.Send(push.substr(0, 50'000)));
  Eventually([&] { return inbox->begun == 1; });
  channel->Cancel(id);  // cancels the call, and again when there is none
  channel->Cancel(id);
  CHECK(Get(std::move(first)).status.code() == Code::kCancelled);
  std::promise<void> reactor_is_through;
  channel->RunAfter(0, [&] { reactor_is_through.set_value(); });
  reactor_is_through.get_future().get();
  CHECK(stream.Send(push.substr(50'000)));
  Eventually([&] {
    std::lock_guard lock(inbox->mutex);
    return inbox->arrived.size() == 1;
  });
  CHECK(inbox->arrived[0].second.status.ok());
}

TEST(a_push_before_the_greeting_or_from_a_client_is_refused) {
  {
    RawServer server;
    Task worker("worker:0");
    auto channel = worker.engine->Connect(server.address(), "ps:0");
    auto future = Begin(*channel, kEcho, "");
    RawStream stream = server.Accept();
    CHECK(stream.Send(Frame(FrameKind::kPush, 2)));
    shutdown(stream.fd(), SHUT_WR);
    CHECK(Contains(Get(std::move(future)).status.message(), "a frame before the greeting"));
  }
  Task ps("ps:0");
  RawStream stream = RawStream::To(ps.Listen());
  stream.Greet("worker:0", "ps:0");
  CHECK(stream.Send(Frame(FrameKind::kPush, 2)));
  ReadFrame goodbye;
  CHECK(stream.Read(&goodbye));
  CHECK(Contains(goodbye.metadata, "a frame that a client does not send"));
}

TEST(a_closure_runs_after_its_delay_and_not_after_the_end) {
  auto captured = std::make_shared<int>(0);
  std::atomic<bool> too_late{false};
  {
    Task worker("worker:0");
    auto channel = worker.engine->Connect("127.0.0.1:1", "ps:0");
    std::promise<int64_t> ran;
    const int64_t begin = SteadyMs();
    channel->RunAfter(50, [&] { ran.set_value(SteadyMs() - begin); });
    CHECK(ran.get_future().get() >= 49);
    std::promise<void> at_once;
    channel->RunAfter(0, [&] { at_once.set_value(); });
    at_once.get_future().get();
    channel->RunAfter(60'000, [captured, &too_late] { too_late = true; });
    worker.engine->Stop();
    channel->RunAfter(0, [captured, &too_late] { too_late = true; });
  }
  CHECK(!too_late);
  CHECK_EQ(captured.use_count(), 1);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
