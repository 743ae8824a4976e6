// Many clients of one server: they do not get a thread each, and each gets its share.

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "harness.h"

namespace tensorwire::wire {
namespace {

constexpr size_t kLargeBytes = 100'000'000;
constexpr size_t kSmallBytes = 4096;

size_t Threads() {
  size_t threads = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ++threads;
  return threads;
}

// The number of connections of which this process may hold both ends, at most 1,000.
size_t MostConnections() {
  rlimit limit{};
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  return std::min<size_t>(1000, (static_cast<size_t>(limit.rlim_cur) - 100) / 2);
}

TEST(a_thousand_clients_are_served_by_the_same_threads_as_one) {
  Task ps("ps:0", /*reactors=*/2);
  const std::string address = ps.Listen();
  const size_t threads = Threads();
  std::vector<RawStream> streams;
  for (size_t i = 0; i < MostConnections(); ++i) {
    streams.push_back(RawStream::To(address));
    CHECK(streams.back().Send(HelloFrame("worker:" + std::to_string(i), "ps:0") +
                              Frame(FrameKind::kRequest, i, kEcho, "", std::to_string(i))));
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    ReadFrame frame;
    CHECK(streams[i].Read(&frame));
    CHECK(frame.header.kind == FrameKind::kHelloAck);
    CHECK(streams[i].Read(&frame));
    CHECK_EQ(frame.payload, std::to_string(i));
  }
  CHECK_EQ(Threads(), threads);
}

// Replies at once with a part of its own memory, large or small as requested.
class MemoryHandler : public TestHandler {
 public:
  RunOn HandleOn(const Request& /*request*/) const override { return RunOn::kReactor; }
  void Handle(Request request) override {
    Message reply;
    reply.AddPayload(memory_.data(), request.metadata == "large" ? kLargeBytes : kSmallBytes);
    request.Reply(std::move(reply));
  }

 private:
  const std::string memory_ = std::string(kLargeBytes, 'x');
};

// Sends requests one after the other and receives into the same memory, until End.
class Asker {
 public:
  Asker(std::shared_ptr<Channel> channel, std::string what)
      : channel_(std::move(channel)),
        what_(std::move(what)),
        memory_(what_ == "large" ? kLargeBytes : kSmallBytes, '\0') {
    AskNext();
  }
  int answers() const { return answers_.load(); }
  void End() {
    ending_ = true;
    Eventually([this] { return ended_.load(); });
  }

 private:
  class NextCall : public Call {
   public:
    explicit NextCall(Asker* asker) : asker_(asker) {}
    Status PrepareFromReactor(std::string_view, uint64_t payload_bytes,
                              std::vector<MutableBuffer>* into) override {
      CHECK_EQ(payload_bytes, asker_->memory_.size());
      into->push_back({asker_->memory_.data(), asker_->memory_.size()});
      return Status();
    }
    void Done(const Status& status) override {
      CHECK(status.ok());
      asker_->Answered();
    }

   private:
    Asker* const asker_;
  };

  void AskNext() {
    Message request(kFromReactor);
    request.AppendMetadata(what_);
    CallOptions options;
    options.done_on = RunOn::kReactor;
    channel_->Start(std::move(request), std::make_unique<NextCall>(this), options);
  }
  void Answered() {
    ++answers_;
    if (ending_) {
      ended_ = true;
    } else {
      AskNext();
    }
  }

  const std::shared_ptr<Channel> channel_;
  const std::string what_;
  std::string memory_;
  std::atomic<int> answers_{0};
  std::atomic<bool> ending_{false};
  std::atomic<bool> ended_{false};
};

TEST(who_pulls_100_mb_again_and_again_leaves_its_turn_to_32_others) {
  Task ps("ps:0");
  ps.handler = std::make_shared<MemoryHandler>();
  const std::string address = ps.Listen();
  Task greedy("worker:0");
  Task modest("worker:1");
  Asker large(greedy.engine->Connect(address, "ps:0"), "large");
  std::vector<std::unique_ptr<Asker>> others;  // each on its own connection
  for (int i = 0; i < 32; ++i) {
    others.push_back(std::make_unique<Asker>(modest.engine->Connect(address, "ps:0"), "small"));
  }
  // An idle machine gives each of them a hundred answers per payload; a busy one may let the modest
  // clients wait for their core while payloads pass, so it goes on until it has let them ask.
  Eventually([&] {
    const int payloads = large.answers();
    return payloads >= 3 && std::all_of(others.begin(), others.end(), [&](const auto& each) {
             return each->answers() >= 10 * payloads;
           });
  });
  for (const auto& each : others) each->End();
  large.End();
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
