// Calls of all kinds from many threads, with random cancellations and deadlines, to servers that
// are killed and restarted. Each call ends exactly once, and nothing leaks. Run it under the
// sanitizers.

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

struct Tally {
  std::atomic<int> started{0};
  std::atomic<int> ok{0};
  std::atomic<int> failed{0};
  std::atomic<int> alive{0};
};

// Counts how often it ends, and checks its reply.
class TalliedCall : public Call {
 public:
  TalliedCall(Tally* tally, std::string expected) : tally_(tally), expected_(std::move(expected)) {
    ++tally_->started;
    ++tally_->alive;
  }
  ~TalliedCall() override {
    CHECK_EQ(ends_, 1);
    --tally_->alive;
  }
  Status PrepareFromReactor(std::string_view, uint64_t payload_bytes,
                            std::vector<MutableBuffer>* into) override {
    CHECK_EQ(ends_, 0);
    payload_.resize(payload_bytes);
    const size_t half = payload_bytes / 2;
    into->push_back({payload_.data(), half});
    into->push_back({payload_.data() + half, payload_bytes - half});
    return Status();
  }
  void Done(const Status& status) override {
    CHECK_EQ(++ends_, 1);
    if (status.ok()) {
      CHECK(payload_ == expected_);
      ++tally_->ok;
      return;
    }
    const Code code = status.code();
    CHECK(code == Code::kCancelled || code == Code::kDeadlineExceeded ||
          code == Code::kUnavailable || code == Code::kOutOfRange);
    ++tally_->failed;
  }

 private:
  Tally* const tally_;
  const std::string expected_;
  std::string payload_;
  int ends_ = 0;
};

void Hammer(const std::vector<std::shared_ptr<Channel>>& channels, int seed, Tally* tally,
            const std::atomic<bool>& ended) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<std::pair<Channel*, uint64_t>> recent;
  while (!ended) {
    Channel* channel = channels[random() % channels.size()].get();
    static constexpr Method kMethods[] = {kEcho, kEcho, kFromReactor, kNever, kFail, kBytes};
    const Method method = kMethods[random() % std::size(kMethods)];
    Message request(method);
    std::string expected;
    if (method == kBytes) {
      const size_t bytes = random() % 20 == 0 ? 3'000'000 : random() % 100'000;
      request.AppendMetadata(std::to_string(bytes));
      expected.assign(bytes, 'x');
    } else {
      expected.assign(random() % 10 == 0 ? 200'000 : random() % 2000,
                      static_cast<char>('a' + random() % 26));
      request.SetOwnedPayload(expected);
    }
    CallOptions options;
    options.done_on = random() % 2 == 0 ? RunOn::kReactor : RunOn::kExecutor;
    // A call that is never answered needs a deadline.
    if (method == kNever || random() % 4 == 0) options.deadline_ms = 1 + random() % 30;
    const uint64_t id = channel->Start(
        std::move(request), std::make_unique<TalliedCall>(tally, std::move(expected)), options);
    recent.emplace_back(channel, id);
    if (random() % 3 == 0) {
      const auto& [of, victim] = recent[random() % recent.size()];
      of->Cancel(victim);
    }
    if (recent.size() > 20) recent.erase(recent.begin());
    if (random() % 5 == 0) channel->Notify(Message(kEcho), random() % 2 == 0);
    while (tally->alive > 200 && !ended) SleepMs(1);
    if (random() % 50 == 0) SleepMs(1);
  }
}

TEST(every_call_ends_exactly_once_whatever_happens_to_its_server) {
  Tally tally;
  std::atomic<bool> ended{false};
  auto first = std::make_unique<Task>("ps:0", 2);
  auto second = std::make_unique<Task>("ps:1", 1);
  const std::string first_at = first->Listen();
  const std::string second_at = second->Listen();
  Task workers[2] = {Task("worker:0", 2), Task("worker:1", 1)};
  std::vector<std::thread> threads;
  std::vector<std::vector<std::shared_ptr<Channel>>> channels;
  for (Task& worker : workers) {
    channels.push_back(
        {worker.engine->Connect(first_at, "ps:0"), worker.engine->Connect(second_at, "ps:1")});
  }
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] { Hammer(channels[t % 2], t, &tally, ended); });
  }
  const int64_t end = SteadyMs() + (kSanitized ? 8000 : 4000);
  for (int round = 0; SteadyMs() < end; ++round) {
    SleepMs(100);
    const bool even = round % 2 == 0;
    auto& victim = even ? first : second;
    const std::string& address = even ? first_at : second_at;
    victim.reset();
    victim = std::make_unique<Task>(even ? "ps:0" : "ps:1", 1 + round % 3);
    victim->Listen(std::stoi(address.substr(address.rfind(':') + 1)));
    std::lock_guard lock(victim->handler->mutex);
    victim->handler->kept.clear();
  }
  ended = true;
  for (auto& thread : threads) thread.join();
  // Calls without a deadline end by their replies.
  Eventually([&] { return tally.alive == 0; });
  CHECK_EQ(tally.ok + tally.failed, tally.started.load());
  CHECK(tally.ok > tally.started / 20);
  std::fprintf(stderr, "%d calls, %d with a reply\n", tally.started.load(), tally.ok.load());
}

TEST(stopping_under_load_ends_every_call_exactly_once) {
  for (int round = 0; round < (kSanitized ? 5 : 15); ++round) {
    Tally tally;
    std::atomic<bool> ended{false};
    {
      Task ps("ps:0", 2);
      Task worker("worker:0", 2);
      const std::vector<std::shared_ptr<Channel>> channels = {
          worker.engine->Connect(ps.Listen(), "ps:0")};
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] { Hammer(channels, round * 10 + t, &tally, ended); });
      }
      SleepMs(20 + 7 * round);
      (round % 2 == 0 ? worker : ps).engine->Stop();
      SleepMs(10);
      ended = true;
      for (auto& thread : threads) thread.join();
    }
    CHECK_EQ(tally.alive.load(), 0);
    CHECK_EQ(tally.ok + tally.failed, tally.started.load());
  }
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
