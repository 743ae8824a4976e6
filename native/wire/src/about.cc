#include "about.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <queue>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tensorwire/wire/clock.h"
#include "tensorwire/wire/engine.h"

#ifndef TENSORWIRE_VERSION
#define TENSORWIRE_VERSION "unknown"
#endif

namespace tensorwire::wire {
namespace {

constexpr int kQuestions = 5;
constexpr int kConnectMs = 3000;  // longer than the attempt on the second port
constexpr size_t kRatePieceBytes = 1 << 20;
constexpr size_t kMostRatePieces = 256;

int64_t UnixUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A thread that runs closures in the order in which they are added, until it is destroyed.
class Executor {
 public:
  Executor() : thread_([this] { Run(); }) {}
  ~Executor() {
    Add(nullptr);
    thread_.join();
  }
  void Add(std::function<void()> closure) {
    {
      std::lock_guard lock(mutex_);
      closures_.push(std::move(closure));
    }
    wake_.notify_one();
  }

 private:
  void Run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return !closures_.empty(); });
      const auto closure = std::move(closures_.front());
      closures_.pop();
      lock.unlock();
      if (closure == nullptr) return;
      closure();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::queue<std::function<void()>> closures_;
  std::thread thread_;  // last: it uses the others
};

struct Answer {
  Status status;
  std::string metadata;
};

class Question : public Call {
 public:
  explicit Question(std::promise<Answer> answered) : answered_(std::move(answered)) {}
  Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                            std::vector<MutableBuffer>* into) override {
    if (payload_bytes > 0) return Status(Code::kInvalidArgument, "an answer with a payload");
    answer_.metadata = metadata;
    into->clear();
    return Status();
  }
  void Done(const Status& status) override {
    answer_.status = status;
    answered_.set_value(std::move(answer_));
  }

 private:
  std::promise<Answer> answered_;
  Answer answer_;
};

std::future<Answer> Ask(Channel* channel, int64_t give_up_ms,
                        const std::shared_ptr<const std::string>& payload = nullptr) {
  std::promise<Answer> answered;
  auto answer = answered.get_future();
  Message request(kAbout);
  if (payload != nullptr) {
    request.AddPayload(payload->data(), payload->size());
    request.KeepAlive(payload);
  }
  CallOptions options;
  options.deadline_ms = std::max<int64_t>(1, give_up_ms - NowMs());
  options.done_on = RunOn::kReactor;
  channel->Start(std::move(request), std::make_unique<Question>(std::move(answered)), options);
  return answer;
}

// Doubles the number of pieces until sending them takes long enough to compute a rate.
Status MeasureRate(Channel* channel, int rate_ms, int64_t give_up_ms, Reached* out) {
  const auto piece = std::make_shared<const std::string>(kRatePieceBytes, '\0');
  for (size_t pieces = 1; pieces <= kMostRatePieces; pieces *= 2) {
    const int64_t began_us = NowUs();
    std::vector<std::future<Answer>> answers;
    answers.reserve(pieces);
    for (size_t i = 0; i < pieces; ++i) answers.push_back(Ask(channel, give_up_ms, piece));
    for (auto& answer : answers) {
      if (Status s = answer.get().status; !s.ok()) return s;
    }
    const double took_s = static_cast<double>(NowUs() - began_us) * 1e-6;
    out->bytes_per_s = static_cast<double>(pieces * kRatePieceBytes) / took_s;
    if (took_s * 2e3 >= rate_ms) return Status();  // the next would take twice as long
  }
  return Status();
}

}  // namespace

Message About() {
  Message about;
  about.Put(UnixUs());
  about.AppendMetadata(TENSORWIRE_VERSION);
  return about;
}

Status Reach(const std::string& address, int second_port, const std::string& peer, int timeout_ms,
             int rate_ms, Reached* out) {
  *out = Reached();
  Executor executor;
  EngineOptions options;
  options.name = "tensorwire check";
  options.transport = Transport::kTcp;
  options.streams = 1;
  options.connect_timeout_ms = timeout_ms;
  options.log = [](LogLevel, const std::string&) {};  // errors are in the status
  options.executor = [&executor](std::function<void()> closure) {
    executor.Add(std::move(closure));
  };
  if (Status s = ReadSecurity(&options); !s.ok()) return s;
  std::unique_ptr<Engine> engine;
  if (Status s = Engine::Create(std::move(options), &engine); !s.ok()) return s;
  const auto channel = engine->Connect(address, peer, second_port);

  // An attempt to connect ends by itself with a reason, so the deadline is later than that.
  const int64_t give_up_ms = NowMs() + timeout_ms + kConnectMs;
  Status status;
  for (int i = 0; i <= kQuestions && status.ok(); ++i) {
    const int64_t asked_us = UnixUs();
    const int64_t began_us = NowUs();
    const Answer answer = Ask(channel.get(), give_up_ms).get();
    const int64_t took_us = NowUs() - began_us;
    status = answer.status;
    MetadataReader reader(answer.metadata);
    int64_t there_us = 0;
    if (!status.ok() || !reader.Get(&there_us)) break;
    if (i == 0) continue;  // this one includes connecting
    out->version = reader.rest();
    if (out->round_trip_us != 0 && took_us >= out->round_trip_us) continue;
    out->round_trip_us = std::max<int64_t>(1, took_us);
    out->clock_ahead_us = there_us - (asked_us + took_us / 2);
  }
  // A task of another version, which does not know kAbout, was reached all the same.
  if (status.code() == Code::kUnimplemented) status = Status();
  if (status.ok() && rate_ms > 0 && out->round_trip_us > 0) {
    status = MeasureRate(channel.get(), rate_ms, NowMs() + timeout_ms + rate_ms, out);
  }
  engine->Stop();
  return status;
}

}  // namespace tensorwire::wire
