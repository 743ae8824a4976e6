#include "tensorwire/wire/engine.h"

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

TEST(a_request_gets_its_reply) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  const Outcome outcome = Get(Begin(*channel, kEcho, "key", "value"));
  CHECK(outcome.status.ok());
  CHECK_EQ(outcome.metadata, std::string("key"));
  CHECK_EQ(outcome.payload, std::string("value"));
}

TEST(payloads_of_all_sizes_arrive_whole) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  for (size_t size : {0u, 1u, 31u, 32u, 4096u, 65535u, 65536u, 262143u, 262144u, 262145u, 1u << 20,
                      (100u << 20) + 7}) {
    std::string payload(size, '\0');
    for (size_t i = 0; i < size; i += 97) payload[i] = static_cast<char>(i * 31);
    const Outcome outcome = Get(Begin(*channel, kEcho, std::to_string(size), payload));
    CHECK(outcome.status.ok());
    CHECK(outcome.payload == payload);
  }
}

// Provides memory for payloads, and counts the memory that is in use.
class PlacingHandler : public TestHandler {
 public:
  std::shared_ptr<char> PlaceFromReactor(uint16_t method, uint64_t payload_bytes) override {
    if (method != kEcho) return nullptr;
    ++out;
    return {new char[payload_bytes], [this](char* memory) {
              delete[] memory;
              --out;
            }};
  }
  void Handle(Request request) override {
    if (request.placed != nullptr) {
      CHECK(request.payload.empty());
      request.payload.assign(request.placed.get(), std::stoul(request.metadata));
    }
    TestHandler::Handle(std::move(request));
  }
  std::atomic<int> out{0};
};

TEST(a_handler_may_say_where_a_request_s_payload_goes) {
  Task ps("ps:0", 2);
  auto handler = std::make_shared<PlacingHandler>();
  ps.handler = handler;
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  for (const Method method : {kEcho, kFromReactor}) {
    for (size_t size : {0u, 1u, 4096u, 262143u, 262144u, 262145u, (10u << 20) + 7}) {
      std::string payload(size, '\0');
      for (size_t i = 0; i < size; i += 97) payload[i] = static_cast<char>(i * 31);
      const Outcome outcome = Get(Begin(*channel, method, std::to_string(size), payload));
      CHECK(outcome.status.ok());
      CHECK(outcome.payload == payload);
    }
  }
  Eventually([&] { return handler->out == 0; });
}

TEST(the_memory_of_a_request_that_is_lost_in_the_middle_is_let_go) {
  Task ps("ps:0");
  auto handler = std::make_shared<PlacingHandler>();
  ps.handler = handler;
  {
    RawStream stream = RawStream::To(ps.Listen());
    stream.Greet("worker:0", "ps:0");
    const std::string request =
        Frame(FrameKind::kRequest, 1, kEcho, "1000000", std::string(1'000'000, 'x'));
    CHECK(stream.Send(request.substr(0, 500'000)));
    Eventually([&] { return handler->out == 1; });
  }
  Eventually([&] { return handler->out == 0; });
}

TEST(many_threads_share_a_channel) {
  Task ps("ps:0", 2);
  Task worker("worker:0", 2);
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&channel, t] {
      for (int round = 0; round < 20; ++round) {
        std::vector<std::future<Outcome>> futures;
        for (int i = 0; i < 50; ++i) {
          const Method method = i % 2 == 0 ? kEcho : kFromReactor;
          futures.push_back(Begin(*channel, method, std::to_string(t * 100 + i),
                                  std::string(i % 10 == 0 ? 200'000 : 100, 'a')));
        }
        for (int i = 0; i < 50; ++i) {
          const Outcome outcome = Get(std::move(futures[i]));
          CHECK(outcome.status.ok());
          CHECK_EQ(outcome.metadata, std::to_string(t * 100 + i));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(an_error_keeps_its_code_and_message) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  const Outcome outcome = Get(Begin(*channel, kFail, ""));
  CHECK(outcome.status.code() == Code::kOutOfRange);
  CHECK_EQ(outcome.status.message(), std::string("the end"));
}

TEST(a_deadline_ends_a_call_and_tells_the_server) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  CallOptions options;
  options.deadline_ms = 50;
  const Outcome outcome = Get(Begin(*channel, kNever, "", "", options));
  CHECK(outcome.status.code() == Code::kDeadlineExceeded);
  Eventually([&] { return ps.handler->cancels == 1; });
}

// A call that the server keeps, as the client sees it.
struct KeptCall {
  explicit KeptCall(const CallOptions& options = {}) {
    future = Begin(*channel, kNever, "", "", options, &id);
    Eventually([&] {
      std::lock_guard lock(ps.handler->mutex);
      return ps.handler->kept.size() == 1;
    });
  }

  Task ps{"ps:0"};
  Task worker{"worker:0"};
  std::shared_ptr<Channel> channel = worker.engine->Connect(ps.Listen(), "ps:0");
  uint64_t id = 0;
  std::future<Outcome> future;
};

TEST(a_cancelled_call_ends_once_and_its_late_reply_is_dropped) {
  KeptCall call;
  call.channel->Cancel(call.id);
  call.channel->Cancel(call.id);
  CHECK(Get(std::move(call.future)).status.code() == Code::kCancelled);
  Message late;
  late.SetOwnedPayload(std::string(500'000, 'z'));
  call.ps.handler->kept[0].Reply(std::move(late));
  CHECK(Get(Begin(*call.channel, kEcho, "next")).status.ok());
}

constexpr int64_t kAnHourMs = 3'600'000;

TEST(a_call_that_is_cancelled_patiently_ends_with_what_the_server_says) {
  KeptCall call;
  call.channel->CancelPatiently(call.id, kAnHourMs);
  Eventually([&] { return call.ps.handler->cancels == 1; });
  call.ps.handler->kept[0].Fail(Status(Code::kOutOfRange, "what was wrong before"));
  const Outcome outcome = Get(std::move(call.future));
  CHECK(outcome.status.code() == Code::kOutOfRange);
  CHECK_EQ(outcome.status.message(), std::string("what was wrong before"));
  call.channel->CancelPatiently(call.id, kAnHourMs);
}

TEST(patience_with_a_server_that_says_nothing_ends) {
  CallOptions options;
  options.deadline_ms = kAnHourMs;
  KeptCall call(options);
  call.channel->CancelPatiently(call.id, 30);
  CHECK(Get(std::move(call.future)).status.code() == Code::kCancelled);
  CHECK(Get(Begin(*call.channel, kEcho, "behind whatever was sent")).status.ok());
  CHECK_EQ(call.ps.handler->cancels.load(), 1);
}

TEST(a_deadline_ends_patience) {
  CallOptions options;
  options.deadline_ms = 100;
  KeptCall call(options);
  call.channel->CancelPatiently(call.id, kAnHourMs);
  CHECK(Get(std::move(call.future)).status.code() == Code::kCancelled);
}

TEST(a_lost_peer_ends_its_calls_and_is_found_again) {
  auto ps = std::make_unique<Task>("ps:0");
  Task worker("worker:0");
  const std::string address = ps->Listen();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  auto channel = worker.engine->Connect(address, "ps:0");
  auto future = Begin(*channel, kNever, "");
  Eventually([&] {
    std::lock_guard lock(ps->handler->mutex);
    return ps->handler->kept.size() == 1;
  });
  ps->handler->kept.clear();
  ps.reset();
  CHECK(Get(std::move(future)).status.code() == Code::kUnavailable);
  CHECK(Get(Begin(*channel, kEcho, "away")).status.code() == Code::kUnavailable);
  ps = std::make_unique<Task>("ps:0");
  ps->Listen(port);
  CHECK(Get(Begin(*channel, kEcho, "again")).status.ok());
}

// Fails with a message of as many letters as the metadata says.
class WordyHandler : public TestHandler {
 public:
  void Handle(Request request) override {
    request.Fail(Status(Code::kAborted, std::string(std::stoul(request.metadata), 'w')));
  }
};

TEST(a_long_error_arrives_whole) {
  for (const bool checksum : {false, true}) {
    Task ps("ps:0", 1, [&](EngineOptions* options) { options->checksum = checksum; });
    ps.handler = std::make_shared<WordyHandler>();
    Task worker("worker:0");
    auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
    for (const size_t bytes : {size_t{1}, kMaxErrorMetadataBytes, kMaxErrorMetadataBytes + 1,
                               size_t{1'000'000}, size_t{kMaxErrorBytes}}) {
      const Status status = Get(Begin(*channel, kEcho, std::to_string(bytes))).status;
      CHECK(status.code() == Code::kAborted);
      CHECK(status.message() == std::string(bytes, 'w'));
    }
    const Status cut = Get(Begin(*channel, kEcho, std::to_string(kMaxErrorBytes + 1))).status;
    CHECK(cut.message() == std::string(kMaxErrorBytes, 'w'));
  }
}

TEST(a_server_with_another_name_refuses) {
  Task ps("ps:1");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  const Outcome outcome = Get(Begin(*channel, kEcho, ""));
  CHECK(outcome.status.code() == Code::kFailedPrecondition);
  CHECK(outcome.status.message().find("wants ps:0, and this is ps:1") != std::string::npos);
  ps.engine->AddName("ps:0");
  CHECK(Get(Begin(*channel, kEcho, "")).status.ok());
}

TEST(a_lazy_notice_arrives_alone_and_before_what_follows) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  CHECK(Get(Begin(*channel, kEcho, "up")).status.ok());
  auto notice = [&] {
    Message message(kNever);
    message.AppendMetadata("notice");
    channel->Notify(std::move(message), /*lazy=*/true);
  };
  auto arrived = [&] {
    std::lock_guard lock(ps.handler->mutex);
    return ps.handler->kept.size();
  };
  notice();
  Eventually([&] { return arrived() == 1; });
  notice();
  CHECK(Get(Begin(*channel, kEcho, "with it")).status.ok());
  Eventually([&] { return arrived() == 2; });
}

TEST(stopping_ends_calls_with_cancelled) {
  Task ps("ps:0");
  std::future<Outcome> future;
  {
    Task worker("worker:0");
    auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
    future = Begin(*channel, kNever, "");
    Eventually([&] {
      std::lock_guard lock(ps.handler->mutex);
      return ps.handler->kept.size() == 1;
    });
    worker.engine->Stop();
    CHECK(Get(Begin(*channel, kEcho, "")).status.code() == Code::kCancelled);
  }
  const Status status = Get(std::move(future)).status;
  CHECK(status.code() == Code::kCancelled);
}

TEST(polling_and_pinned_reactors_serve_too) {
  const auto polling = [](EngineOptions* options) {
    options->polling = true;
    options->pin = true;
  };
  Task ps("ps:0", 1, polling);
  Task worker("worker:0", 1, polling);
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  for (int i = 0; i < 20; ++i) CHECK(Get(Begin(*channel, kEcho, "x", "y")).status.ok());
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
