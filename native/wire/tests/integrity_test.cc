// Checksums: damaged bytes are noticed and end the call, in whichever part of a frame they are.

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "checked.h"
#include "harness.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::wire {
namespace {

constexpr size_t kMb = 1u << 20;
enum class Way { kToServer = 0, kToClient = 1 };

// Relays between a client and a server; flips one bit of the stream when told to.
class Relay {
 public:
  explicit Relay(std::string server) : server_(std::move(server)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Relay() {
    ended_ = true;
    thread_.join();
  }
  const std::string& address() const { return listener_.address(); }
  // Damages a byte that goes this way, after `skip` further bytes.
  void Damage(Way way, size_t skip) {
    std::lock_guard lock(mutex_);
    way_ = way;
    skip_ = skip;
    armed_ = true;
  }
  bool has_damaged() {
    std::lock_guard lock(mutex_);
    return !armed_;
  }

 private:
  struct Link {
    RawStream ends[2];  // of the server and of the client: the destination of each Way
  };
  void Run() {
    std::vector<Link> links;
    while (!ended_) {
      std::vector<pollfd> waits{{listener_.fd(), POLLIN, 0}};
      for (Link& link : links) {
        for (RawStream& end : link.ends) waits.push_back({end.fd(), POLLIN, 0});
      }
      if (::poll(waits.data(), waits.size(), 20) <= 0) continue;
      for (size_t i = 1; i < waits.size(); ++i) {
        if (waits[i].revents != 0) Pass(&links[(i - 1) / 2], static_cast<int>((i - 1) % 2));
      }
      std::erase_if(links, [](Link& link) { return link.ends[0].ended() || link.ends[1].ended(); });
      if (waits[0].revents != 0) links.push_back({{RawStream::To(server_), listener_.Accept()}});
    }
  }
  void Pass(Link* link, int from) {
    std::string bytes = link->ends[from].ReadSome(1u << 20, 0);
    {
      std::lock_guard lock(mutex_);
      if (armed_ && from != static_cast<int>(way_)) {
        if (skip_ < bytes.size()) {
          bytes[skip_] ^= 0x10;
          armed_ = false;
        } else {
          skip_ -= bytes.size();
        }
      }
    }
    link->ends[1 - from].Send(bytes);
  }

  const std::string server_;
  RawServer listener_;
  std::mutex mutex_;
  Way way_ = Way::kToServer;
  size_t skip_ = 0;
  bool armed_ = false;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

struct Pair {
  explicit Pair(bool client_checks = true, bool server_checks = true, int streams = 1)
      : ps("ps:0", 2, [=](EngineOptions* o) { o->checksum = server_checks; }),
        relay(ps.Listen()),
        worker("worker:0", 2, [=](EngineOptions* o) {
          o->checksum = client_checks;
          o->streams = streams;
        }) {
    channel = worker.engine->Connect(relay.address(), "ps:0");
  }
  Outcome Echo(size_t bytes) { return Get(Begin(*channel, kEcho, "key", std::string(bytes, 'x'))); }
  Outcome Fetch(size_t bytes) { return Get(Begin(*channel, kBytes, std::to_string(bytes))); }
  uint64_t DamagedAtWorker() { return worker.engine->stats().peers.at(0).damaged_frames; }
  uint64_t DamagedAtPs() { return ps.engine->stats().peers.at(0).damaged_frames; }

  Task ps;
  Relay relay;
  Task worker;
  std::shared_ptr<Channel> channel;
};

void CheckWhole(const Outcome& outcome, size_t bytes) {
  if (!outcome.status.ok()) check::Fail(__FILE__, __LINE__, outcome.status.message());
  CHECK(outcome.payload == std::string(bytes, 'x'));
}

TEST(payloads_of_all_sizes_arrive_whichever_end_wants_checksums) {
  for (const auto& [client, server] : {std::pair{true, true}, {true, false}, {false, true}}) {
    for (const int streams : {1, 2}) {
      Pair pair(client, server, streams);
      for (const size_t bytes : {0ul, 1ul, 3000ul, 64ul << 10, 256ul << 10, (256ul << 10) - 4,
                                 (256ul << 10) - 3, 700'001ul}) {
        CheckWhole(pair.Echo(bytes), bytes);
      }
      CheckWhole(pair.Fetch(9 * kMb + 7), 9 * kMb + 7);
      CHECK_EQ(pair.DamagedAtWorker() + pair.DamagedAtPs(), 0u);
      CHECK(pair.ps.Log().empty());
    }
  }
}

TEST(many_frames_of_all_sizes_at_once_arrive) {
  Pair pair;
  std::vector<std::future<Outcome>> futures;
  std::vector<size_t> sizes;
  for (size_t i = 0; i < 200; ++i) {
    sizes.push_back(i % 7 == 0 ? 300'000 + i : i * 37);
    futures.push_back(Begin(*pair.channel, kEcho, "key", std::string(sizes.back(), 'x')));
  }
  for (size_t i = 0; i < sizes.size(); ++i) CheckWhole(Get(std::move(futures[i])), sizes[i]);
}

TEST(notices_that_wait_for_another_frame_or_go_alone_arrive) {
  Pair pair;
  CheckWhole(pair.Echo(10), 10);
  for (int i = 0; i < 20; ++i) {
    Message notice(kNever);
    notice.AppendMetadata("lazy");
    pair.channel->Notify(std::move(notice), /*lazy=*/true);
    if (i % 2 == 0) CheckWhole(pair.Echo(10), 10);
    if (i % 4 == 1) SleepMs(5);
  }
  Eventually([&] {
    std::lock_guard lock(pair.ps.handler->mutex);
    return pair.ps.handler->kept.size() == 20;
  });
  CHECK_EQ(pair.DamagedAtPs(), 0u);
}

TEST(one_end_that_wants_checksums_is_enough_to_notice) {
  for (const bool client : {true, false}) {
    Pair pair(client, !client);
    CheckWhole(pair.Echo(5000), 5000);
    pair.relay.Damage(Way::kToClient, 3000);
    CHECK(pair.Echo(5000).status.code() == Code::kDataLoss);
    pair.relay.Damage(Way::kToServer, 3000);
    CHECK(pair.Echo(5000).status.code() == Code::kDataLoss);
    CheckWhole(pair.Echo(5000), 5000);
  }
}

TEST(a_damaged_reply_ends_its_call_with_the_peer_s_name_and_the_next_goes_well) {
  Pair pair;
  for (const size_t bytes : {1ul, 5000ul, 60'000ul, 400'000ul, 3 * kMb}) {
    CheckWhole(pair.Echo(bytes), bytes);
    pair.relay.Damage(Way::kToClient, kCheckedHeaderBytes + 3 + bytes / 2);
    const Status status = pair.Echo(bytes).status;
    CHECK(status.code() == Code::kDataLoss);
    CHECK(Contains(status.message(), "ps:0 (127.0.0.1:"));
    CHECK(Contains(status.message(),
                   "a payload of " + std::to_string(bytes) + " bytes arrived damaged"));
  }
  CheckWhole(pair.Echo(5000), 5000);
  CHECK_EQ(pair.DamagedAtWorker(), 5u);
  CHECK_EQ(pair.worker.engine->stats().peers.at(0).connects, 1u);
  CHECK_EQ(pair.worker.Log().size(), 1u);
  CHECK(Contains(pair.worker.Log()[0], "arrived damaged"));
}

TEST(a_checksum_that_is_damaged_itself_counts_as_damage) {
  Pair pair;
  CheckWhole(pair.Echo(5000), 5000);
  pair.relay.Damage(Way::kToClient, kCheckedHeaderBytes + 3 + 5000 + 1);
  CHECK(pair.Echo(5000).status.code() == Code::kDataLoss);
  CheckWhole(pair.Echo(5000), 5000);
}

TEST(a_damaged_request_is_not_handled) {
  Pair pair;
  CheckWhole(pair.Echo(5000), 5000);
  pair.relay.Damage(Way::kToServer, kCheckedHeaderBytes + 3 + 2500);
  const Status status = pair.Echo(5000).status;
  CHECK(status.code() == Code::kDataLoss);
  CHECK(Contains(status.message(), "worker:0"));
  CHECK_EQ(pair.DamagedAtPs(), 1u);
  CheckWhole(pair.Echo(5000), 5000);
}

TEST(a_damaged_range_of_a_payload_that_is_fetched_ends_its_call) {
  Pair pair(true, true, 2);
  CheckWhole(pair.Fetch(20 * kMb), 20 * kMb);
  CHECK_EQ(pair.ps.engine->stats().peers.at(0).connects, 2u);
  pair.relay.Damage(Way::kToClient, 11 * kMb);
  CHECK(pair.Fetch(20 * kMb).status.code() == Code::kDataLoss);
  CheckWhole(pair.Fetch(20 * kMb), 20 * kMb);
}

TEST(no_byte_of_a_head_can_be_damaged_unnoticed) {
  // No field of a damaged head is used; the reader does not wait for a damaged length either.
  for (const Way way : {Way::kToClient, Way::kToServer}) {
    Pair pair;
    for (size_t at = 0; at < kCheckedHeaderBytes + 3; ++at) {
      CheckWhole(pair.Echo(100), 100);
      pair.relay.Damage(way, at);
      const Outcome outcome = pair.Echo(100);
      CHECK(pair.relay.has_damaged());
      CHECK(outcome.status.code() == Code::kUnavailable);
      CHECK(Contains(outcome.status.message(), "arrived damaged"));
    }
    CheckWhole(pair.Echo(100), 100);
    CHECK_EQ(pair.DamagedAtWorker() + pair.DamagedAtPs(), kCheckedHeaderBytes + 3);
  }
}

TEST(memory_that_is_written_to_while_it_is_sent_is_no_damage) {
#ifndef __SANITIZE_THREAD__  // this test races on purpose
  // Like a variable's memory, to which other workers' steps write without a lock.
  auto memory = std::make_shared<std::vector<uint64_t>>(kMb);
  class Racing : public TestHandler {
   public:
    explicit Racing(std::shared_ptr<std::vector<uint64_t>> memory) : memory_(std::move(memory)) {}
    void Handle(Request request) override {
      Message reply;
      reply.AddPayload(memory_->data(), memory_->size() * 8);
      reply.KeepAlive(memory_);
      request.Reply(std::move(reply));
    }

   private:
    const std::shared_ptr<std::vector<uint64_t>> memory_;
  };
  Pair pair;
  Task ps("ps:1", 1, [](EngineOptions* o) { o->checksum = true; });
  ps.handler = std::make_shared<Racing>(memory);
  const auto channel = pair.worker.engine->Connect(ps.Listen(), "ps:1");
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    for (uint64_t i = 0; !ended; ++i) {
      for (uint64_t& word : *memory) __atomic_store_n(&word, i, __ATOMIC_RELAXED);
    }
  });
  std::vector<Status> outcomes;
  for (int i = 0; i < 10; ++i) outcomes.push_back(Get(Begin(*channel, kEcho, "")).status);
  ended = true;
  writer.join();
  for (const Status& status : outcomes) CHECK(status.ok());
#endif
}

TEST(what_has_a_checksum_is_not_lent) {
  for (const auto& [client, server] : {std::pair{true, false}, {false, true}, {false, false}}) {
    BufferPool::Options shared;
    shared.shared = true;
    BufferPool pool(shared);
    Task ps("ps:0", 1, [&, server = server](EngineOptions* o) {
      o->checksum = server;
      o->pool = &pool;
    });
    RawStream stream = RawStream::To(ps.Listen());
    Hello hello;
    hello.task = "worker:1";
    hello.checksum = client;
    CHECK(stream.Send(Frame(FrameKind::kHello, 0, 0, hello.Encode())));
    CHECK_EQ(stream.ReadSome().find("lane=") != std::string::npos, !client && !server);
  }
}

TEST(a_peer_that_began_with_checksums_goes_on_with_them) {
  Task ps("ps:0");
  RawStream stream = RawStream::To(ps.Listen());
  std::string hello = HelloFrame("worker:0", "ps:0");
  SealHead(&hello);
  CHECK(stream.Send(hello + Frame(FrameKind::kRequest, 1, kEcho, "no checksum")));
  std::string said;
  while (said.find("arrived damaged") == std::string::npos) {
    said += stream.ReadSome();
    CHECK(!stream.ended());
  }
}

}  // namespace
}  // namespace tensorwire::wire

RUN_TESTS()
