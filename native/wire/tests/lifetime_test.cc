// Engines, channels and connections are made and destroyed in any order, and leak nothing. Run this
// under AddressSanitizer, whose leak check is part of the test.

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

size_t EntriesOf(const char* directory) {
  DIR* dir = opendir(directory);
  CHECK(dir != nullptr);
  size_t entries = 0;
  while (readdir(dir) != nullptr) ++entries;
  closedir(dir);
  return entries;
}

TEST(an_engine_can_be_made_and_stopped_again_and_again) {
  const size_t descriptors = EntriesOf("/proc/self/fd");
  const size_t threads = EntriesOf("/proc/self/task");
  for (int i = 0; i < 60; ++i) {
    Task ps("ps:0", 1 + i % 3);
    Task worker("worker:0", 1 + i % 2);
    auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
    std::vector<std::future<Outcome>> futures;
    for (int k = 0; k < i % 7; ++k) {
      futures.push_back(
          Begin(*channel, k % 2 == 0 ? kNever : kEcho, "", std::string(k * 40'000, 'x')));
    }
    if (i % 3 == 0) SleepMs(2);
    if (i % 4 == 0) ps.engine->Stop();
    worker.engine->Stop();
    worker.engine->Stop();
    for (auto& future : futures) Get(std::move(future));
  }
  CHECK_EQ(EntriesOf("/proc/self/fd"), descriptors);
  // A sanitizer starts its own thread. Joined threads take a moment to leave the list.
  Eventually([&] { return EntriesOf("/proc/self/task") <= threads + (kSanitized ? 1 : 0); });
}

TEST(threads_that_call_while_the_engine_stops_get_an_end_for_every_call) {
  for (int i = 0; i < 20; ++i) {
    Task ps("ps:0", 2);
    Task worker("worker:0", 2);
    auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (int k = 0; k < 200; ++k) {
          Message notice(kNever);
          channel->Notify(std::move(notice), /*lazy=*/k % 2 == 0);
          const Status status = Get(Begin(*channel, kEcho, "", std::string(1000, 'x'))).status;
          if (status.ok()) continue;
          CHECK(status.code() == Code::kCancelled);
          return;
        }
      });
    }
    SleepMs(i % 5);
    worker.engine->Stop();
    for (auto& thread : threads) thread.join();
  }
}

TEST(requests_outlive_their_connection_and_their_engine) {
  std::vector<Request> kept;
  {
    Task ps("ps:0");
    Task worker("worker:0");
    auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
    auto future = Begin(*channel, kNever, "question");
    Eventually([&] {
      std::lock_guard lock(ps.handler->mutex);
      return ps.handler->kept.size() == 1;
    });
    worker.engine->Stop();
    CHECK(Get(std::move(future)).status.code() == Code::kCancelled);
    Eventually([&] { return ps.handler->disconnects == 1; });
    std::lock_guard lock(ps.handler->mutex);
    kept.swap(ps.handler->kept);
    kept[0].Reply(Message());
  }
  Message reply;
  reply.SetOwnedPayload(std::string(1'000'000, 'r'));
  kept[0].Reply(std::move(reply));
  kept[0].Fail(Status(Code::kAborted, "too late"));
  CHECK_EQ(kept[0].metadata, std::string("question"));
  CHECK(Contains(kept[0].peer(), "worker:0"));
}

TEST(what_a_message_keeps_alive_goes_with_its_frame) {
  auto owner = std::make_shared<int>(0);
  {
    Task ps("ps:0");
    Task worker("worker:0");
    auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
    const std::string bytes(300'000, 'b');
    for (int i = 0; i < 5; ++i) {
      Message request(kEcho);
      request.AddPayload(bytes.data(), bytes.size());
      request.KeepAlive(owner);
      std::promise<Outcome> promise;
      auto future = promise.get_future();
      channel->Start(std::move(request), std::make_unique<TestCall>(std::move(promise)), {});
      CHECK(Get(std::move(future)).status.ok());
    }
    Eventually([&] { return owner.use_count() == 1; });

    // The same holds for a message that was never sent.
    RawServer server;
    auto silent = worker.engine->Connect(server.address(), "ps:0");
    Message request(kEcho);
    request.AddPayload(bytes.data(), bytes.size());
    request.KeepAlive(owner);
    std::promise<Outcome> promise;
    auto future = promise.get_future();
    CallOptions options;
    options.deadline_ms = 20;
    silent->Start(std::move(request), std::make_unique<TestCall>(std::move(promise)), options);
    CHECK(Get(std::move(future)).status.code() == Code::kDeadlineExceeded);
    Eventually([&] { return owner.use_count() == 1; });
  }
}

TEST(a_channel_may_outlive_its_engine) {
  std::shared_ptr<Channel> channel;
  Pool pool;
  {
    EngineOptions options;
    options.executor = [&pool](std::function<void()> closure) { pool.Run(std::move(closure)); };
    std::unique_ptr<Engine> engine;
    CHECK(Engine::Create(std::move(options), &engine).ok());
    channel = engine->Connect("127.0.0.1:1", "ps:0");
  }
  CHECK(Get(Begin(*channel, kEcho, "")).status.code() == Code::kCancelled);
  channel->Notify(Message(kEcho), true);
  channel->Cancel(12345);
}

TEST(a_stopped_engine_listens_no_more) {
  Task ps("ps:0");
  const std::string address = ps.Listen();
  ps.engine->Stop();
  int bound = 0;
  CHECK(ps.engine->Listen("127.0.0.1", 0, ps.handler, &bound).code() == Code::kCancelled);
  Task again("ps:0");
  again.Listen(std::stoi(address.substr(address.rfind(':') + 1)));  // the port is free
}

TEST(signals_that_interrupt_system_calls_do_no_harm) {
  struct sigaction handler{};
  struct sigaction before{};
  handler.sa_handler = [](int) {};  // without SA_RESTART
  sigaction(SIGUSR1, &handler, &before);
  {
    Task ps("ps:0", 2);
    Task worker("worker:0", 2);
    auto channel = worker.engine->Connect(ps.Listen(), "ps:0");
    std::atomic<bool> ended{false};
    std::thread pest([&] {
      while (!ended) {
        kill(getpid(), SIGUSR1);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
    for (int i = 0; i < 300; ++i) {
      const size_t size = i % 10 == 0 ? 2'000'000 : 100;
      CHECK_EQ(Get(Begin(*channel, kEcho, "", std::string(size, 's'))).payload.size(), size);
    }
    ended = true;
    pest.join();
  }
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(an_engine_that_cannot_be_is_refused) {
  std::unique_ptr<Engine> engine;
  EngineOptions options;
  CHECK(Engine::Create(options, &engine).code() == Code::kInvalidArgument);  // no executor
  options.executor = [](std::function<void()>) {};
  options.reactors = 0;
  CHECK(Engine::Create(options, &engine).code() == Code::kInvalidArgument);
  options.reactors = 1;
  options.limits.metadata_bytes = 10u << 20;  // more than fits into a reactor's buffer
  CHECK(Engine::Create(options, &engine).code() == Code::kInvalidArgument);
  CHECK(engine == nullptr);
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
