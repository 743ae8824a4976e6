#include "tensorwire/wire/engine.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "channel.h"
#include "context.h"
#include "fork.h"
#include "lane.h"
#include "server.h"
#include "socket.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::wire {
namespace {

// The memory of all connections that have not finished their greeting, and of one. A quarter of the
// descriptors may be theirs.
constexpr size_t kStrangersBytes = 64u << 20;
constexpr size_t kStrangerBytes = 16u << 10;
constexpr size_t kTlsStrangerBytes = 128u << 10;

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(EngineOptions options)
      : context_(std::make_shared<Context>(std::move(options))) {}
  ~EngineImpl() override { Stop(); }

  Status Start() {
    if (!context_->options.executor) {
      return Status(Code::kInvalidArgument, "an engine needs an executor");
    }
    // A head must fit into the reactor's buffer.
    if (context_->options.limits.metadata_bytes > Reactor::kScratchBytes / 2) {
      return Status(Code::kInvalidArgument, "an engine's limit of metadata is at most " +
                                                std::to_string(Reactor::kScratchBytes / 2) +
                                                " bytes");
    }
    if (const std::string& token = context_->options.token; !token.empty()) {
      if (Status s = Authenticator::Create(token, &context_->authenticator); !s.ok()) return s;
      if (context_->options.tls) {
        if (Status s = TlsContext::Create(token, &context_->tls); !s.ok()) return s;
      }
    }
    const size_t stranger_bytes = context_->tls != nullptr ? kTlsStrangerBytes : kStrangerBytes;
    const size_t most =
        std::clamp(RaiseDescriptorLimit() / 4, size_t{1}, kStrangersBytes / stranger_bytes);
    const int strangers = context_->options.strangers;
    context_->most_strangers = strangers > 0 ? strangers : static_cast<int>(most);
    for (int i = 0; i < context_->options.reactors; ++i) {
      context_->reactors.push_back(std::make_unique<Reactor>(i, context_->options));
      if (Status s = context_->reactors.back()->Start(); !s.ok()) return s;
    }
    if (context_->reactors.empty())
      return Status(Code::kInvalidArgument, "an engine needs reactors");
    if (context_->options.pool != nullptr) {
      Reactor* const reactor = context_->reactors.front().get();
      reactor->Post([context = context_.get(), reactor] { TrimFromReactor(context, reactor); });
    }
    return Status();
  }

  Status Listen(const std::string& host, int port, std::shared_ptr<Handler> handler,
                int* bound_port) override {
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return EngineStopped();
    }
    Fd fd;
    if (Status s = ListenOn(host, port, &fd, bound_port); !s.ok()) return s;
    Fd lane_fd;
    std::string lane;
    const EngineOptions& options = context_->options;
    if (options.transport != Transport::kTcp && options.pool != nullptr &&
        options.pool->shared_memory() != nullptr) {
      if (Status s = ListenOnLane(options.host_directory, &lane_fd, &lane); !s.ok()) {
        if (!options.host_directory.empty()) return s;
        context_->Log(LogLevel::kWarning, s.message() + ": payloads go by TCP");
        lane.clear();
      }
    }
    for (Fd* const each : {&fd, &lane_fd}) {
      if (!each->valid()) continue;
      Reactor* reactor = context_->NextAccepting();
      auto listener = std::make_shared<Listener>(context_, reactor, std::move(*each), handler, lane,
                                                 each == &lane_fd);
      reactor->Post([listener] { listener->StartFromReactor(); });
    }
    return Status();
  }

  void AddName(const std::string& name) override { context_->AddName(name); }

  void CloseInForks(int port) override {
    std::lock_guard lock(ports_mutex_);
    ports_beside_.push_back(port);
  }

  std::shared_ptr<Channel> Connect(const std::string& address, const std::string& peer_name,
                                   int second_port, const std::string& advice) override {
    auto channel = std::make_shared<ChannelImpl>(context_, context_->NextChannel(), address,
                                                 peer_name, Streams(), second_port, advice);
    std::lock_guard lock(mutex_);
    if (stopped_) {
      channel->Stop();
    } else {
      channels_.push_back(channel);
    }
    return channel;
  }

  void RunAfter(int delay_ms, std::function<void()> closure) override {
    context_->reactors.front()->PostAfter(delay_ms, std::move(closure));
  }

  EngineStats stats() const override { return context_->Stats(); }

  void Stop() override {
    std::vector<std::weak_ptr<ChannelImpl>> channels;
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return;
      stopped_ = true;
      channels.swap(channels_);
    }
    for (const auto& reactor : context_->reactors) reactor->Stop();
    for (const auto& weak : channels) {
      if (auto channel = weak.lock()) channel->Stop();
    }
    context_->copy_threads.Stop();
  }

 private:
  // Trims the pool from time to time, so that a job that pauses, e.g. for an evaluation, gives
  // unused memory back. The context outlives its reactors' timers.
  static void TrimFromReactor(Context* context, Reactor* reactor) {
    constexpr int64_t kShortestMs = 20;
    BufferPool* const pool = context->options.pool;
    const int64_t at_ms = NowMs() + std::max(kShortestMs, pool->kept_ms() / 3);
    reactor->AtFromReactor(at_ms, [context, reactor, pool] {
      context->options.executor([pool] { pool->Trim(); });  // unmapping takes a while
      TrimFromReactor(context, reactor);
    });
  }

  // One stream per reactor, because streams that share a thread gain nothing. Few links need more
  // than four.
  int Streams() const {
    constexpr int kMostStreams = 4;
    if (context_->options.streams > 0) return context_->options.streams;
    return std::min(static_cast<int>(context_->reactors.size()), kMostStreams);
  }

  const std::shared_ptr<Context> context_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<ChannelImpl>> channels_;
  bool stopped_ = false;

  std::mutex ports_mutex_;
  std::vector<int> ports_beside_;
  const ForkGuard fork_guard_{&ports_mutex_, [this] {
                                for (const int port : ports_beside_) DropSocketsOfPort(port);
                              }};
};

}  // namespace

Status Engine::Create(EngineOptions options, std::unique_ptr<Engine>* out) {
  auto engine = std::make_unique<EngineImpl>(std::move(options));
  if (Status s = engine->Start(); !s.ok()) return s;
  *out = std::move(engine);
  return Status();
}

}  // namespace tensorwire::wire
