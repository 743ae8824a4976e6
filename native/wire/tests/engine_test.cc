#include "tensorwire/wire/engine.h"

#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace tensorwire::wire {
namespace {

// Runs closures on two threads of its own, and joins them.
class Pool {
 public:
  Pool() {
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { Loop(); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  void Run(std::function<void()> closure) {
    {
      std::lock_guard lock(mutex_);
      closures_.push(std::move(closure));
    }
    wake_.notify_one();
  }

 private:
  void Loop() {
    for (;;) {
      std::function<void()> closure;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return ended_ || !closures_.empty(); });
        if (closures_.empty()) return;
        closure = std::move(closures_.front());
        closures_.pop();
      }
      closure();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::queue<std::function<void()>> closures_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

enum Method : uint16_t { kEcho = 1, kNever = 2, kFail = 3, kFromReactor = 4, kBytes = 5 };

// Answers with the request's metadata as metadata and its payload (or, for kBytes, as many bytes as
// the metadata says) as payload.
class TestHandler : public Handler {
 public:
  RunOn HandleOn(const Request& request) const override {
    return request.method == kFromReactor ? RunOn::kReactor : RunOn::kExecutor;
  }
  void Handle(Request request) override {
    if (request.method == kNever) {
      std::lock_guard lock(mutex);
      kept.push_back(std::move(request));
      return;
    }
    if (request.method == kFail) {
      request.Fail(Status(Code::kOutOfRange, "the end"));
      return;
    }
    Message reply;
    reply.AppendMetadata(request.metadata);
    if (request.method == kBytes) {
      reply.SetOwnedPayload(std::string(std::stoull(request.metadata), 'x'));
    } else {
      reply.SetOwnedPayload(request.payload);
    }
    request.Reply(std::move(reply));
  }
  void OnCancel(uint64_t, uint64_t) override { ++cancels; }
  void OnDisconnect(uint64_t) override { ++disconnects; }

  std::mutex mutex;
  std::vector<Request> kept;
  std::atomic<int> cancels{0};
  std::atomic<int> disconnects{0};
};

struct Outcome {
  Status status;
  std::string metadata;
  std::string payload;
};

class TestCall : public Call {
 public:
  explicit TestCall(std::promise<Outcome> promise) : promise_(std::move(promise)) {}
  Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                            std::vector<MutableBuffer>* into) override {
    outcome_.metadata = metadata;
    outcome_.payload.resize(payload_bytes);
    into->push_back({outcome_.payload.data(), outcome_.payload.size()});
    return Status();
  }
  void Done(const Status& status) override {
    outcome_.status = status;
    promise_.set_value(std::move(outcome_));
  }

 private:
  std::promise<Outcome> promise_;
  Outcome outcome_;
};

std::future<Outcome> Begin(Channel& channel, Method method, const std::string& metadata,
                           std::string payload = "", CallOptions options = {},
                           uint64_t* id = nullptr) {
  std::promise<Outcome> promise;
  auto future = promise.get_future();
  Message request(method);
  request.AppendMetadata(metadata);
  if (!payload.empty()) request.SetOwnedPayload(std::move(payload));
  const uint64_t call =
      channel.Start(std::move(request), std::make_unique<TestCall>(std::move(promise)), options);
  if (id != nullptr) *id = call;
  return future;
}

Outcome Get(std::future<Outcome> future) {
  CHECK(future.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  return future.get();
}

void Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(condition());
}

struct Task {
  explicit Task(const std::string& name, int reactors = 1,
                const std::function<void(EngineOptions*)>& change = {}) {
    EngineOptions options;
    options.name = name;
    options.reactors = reactors;
    options.executor = [this](std::function<void()> closure) { pool.Run(std::move(closure)); };
    options.log = [this](LogLevel, const std::string& line) {
      std::lock_guard lock(log_mutex);
      log.push_back(line);
    };
    if (change) change(&options);
    CHECK(Engine::Create(std::move(options), &engine).ok());
  }
  ~Task() { engine->Stop(); }
  std::string Listen(int port = 0) {
    int bound = 0;
    const Status status = engine->Listen("127.0.0.1", port, handler, &bound);
    if (!status.ok()) check::Fail(__FILE__, __LINE__, status.message());
    return "127.0.0.1:" + std::to_string(bound);
  }
  std::vector<std::string> Log() {
    std::lock_guard lock(log_mutex);
    return log;
  }

  Pool pool;
  std::mutex log_mutex;
  std::vector<std::string> log;
  std::shared_ptr<TestHandler> handler = std::make_shared<TestHandler>();
  std::unique_ptr<Engine> engine;
};

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

TEST(a_cancelled_call_ends_once_and_its_late_reply_is_dropped) {
  Task ps("ps:0");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  uint64_t id = 0;
  auto future = Begin(*channel, kNever, "", "", {}, &id);
  Eventually([&] {
    std::lock_guard lock(ps.handler->mutex);
    return ps.handler->kept.size() == 1;
  });
  channel->Cancel(id);
  channel->Cancel(id);
  CHECK(Get(std::move(future)).status.code() == Code::kCancelled);
  Message late;
  late.SetOwnedPayload(std::string(500'000, 'z'));
  ps.handler->kept[0].Reply(std::move(late));
  CHECK(Get(Begin(*channel, kEcho, "next")).status.ok());
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
  // While it is away a call waits for it...
  auto waiting = Begin(*channel, kEcho, "again");
  ps = std::make_unique<Task>("ps:0");
  ps->Listen(port);
  CHECK(Get(std::move(waiting)).status.ok());
}

TEST(a_peer_that_never_comes_is_unavailable_within_the_connect_timeout) {
  Task worker("worker:0", 1, [](EngineOptions* options) { options->connect_timeout_ms = 200; });
  auto channel = worker.engine->Connect("127.0.0.1:1", "ps:0");
  const Outcome outcome = Get(Begin(*channel, kEcho, ""));
  CHECK(outcome.status.code() == Code::kUnavailable);
  CHECK(outcome.status.message().find("ps:0 at 127.0.0.1:1") != std::string::npos);
  CHECK(outcome.status.message().find("refused") != std::string::npos);
}

TEST(a_server_with_another_name_refuses) {
  Task ps("ps:1");
  Task worker("worker:0");
  auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
  const Outcome outcome = Get(Begin(*channel, kEcho, ""));
  CHECK(outcome.status.code() == Code::kFailedPrecondition);
  CHECK(outcome.status.message().find("wants ps:0, and this is ps:1") != std::string::npos);
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
    worker.engine->Stop();
    CHECK(Get(Begin(*channel, kEcho, "")).status.code() == Code::kCancelled);
  }
  const Status status = Get(std::move(future)).status;
  CHECK(status.code() == Code::kCancelled || status.code() == Code::kUnavailable);
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
