// Raw RPC over tensorwire's engine; `bench rpc` calls it grpc++.
#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <queue>
#include <thread>
#include <utility>

#include "load.h"
#include "tensorwire/wire/buffer_pool.h"
#include "tensorwire/wire/clock.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::raw {
namespace {

constexpr char kServerName[] = "raw server";
constexpr uint16_t kSend = 1;
constexpr int kPauseMs = 50;  // between two attempts to reach the server
// Smaller payloads arrive together in one read, and are cheapest where they are.
constexpr uint64_t kPlacedBytes = 64u << 10;

// The thread for work that must not run on a reactor; here that is mainly resolving names.
class Executor {
 public:
  void Run(std::function<void()> closure) {
    {
      std::lock_guard lock(mutex_);
      closures_.push(std::move(closure));
    }
    wake_.notify_one();
  }
  void Start() {
    std::thread([this] {
      for (;;) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return !closures_.empty(); });
        const auto closure = std::move(closures_.front());
        closures_.pop();
        lock.unlock();
        closure();
      }
    }).detach();  // it runs until the process ends
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::queue<std::function<void()>> closures_;
};

std::string MakeEngine(const std::string& name, int threads,
                       std::unique_ptr<wire::Engine>* engine) {
  auto* const executor = new Executor;
  executor->Start();
  wire::EngineOptions options;
  options.name = name;
  options.reactors = threads;
  options.transport = wire::Transport::kTcp;
  options.streams = 1;  // a channel is one connection, as in the other implementations
  options.executor = [executor](std::function<void()> closure) {
    executor->Run(std::move(closure));
  };
  if (const wire::Status s = wire::ReadSecurity(&options); !s.ok()) return s.message();
  return wire::Engine::Create(std::move(options), engine).message();
}

class Discard : public wire::Handler {
 public:
  explicit Discard(int64_t response_bytes)
      : response_(static_cast<size_t>(response_bytes), 'a'), pool_({}) {}

  wire::RunOn HandleOn(const wire::Request& /*request*/) const override {
    return wire::RunOn::kReactor;
  }
  std::shared_ptr<char> PlaceFromReactor(uint16_t /*method*/, uint64_t payload_bytes) override {
    if (payload_bytes < kPlacedBytes) return nullptr;
    return {static_cast<char*>(pool_.Acquire(payload_bytes)),
            [this](char* memory) { pool_.Release(memory); }};
  }
  void Handle(wire::Request request) override {
    wire::Message reply;
    reply.AddPayload(response_.data(), response_.size());
    request.Reply(std::move(reply));
  }
  void OnCancel(uint64_t /*connection_id*/, uint64_t /*request_id*/) override {}
  void OnDisconnect(uint64_t /*connection_id*/) override {}

 private:
  const std::string response_;
  wire::BufferPool pool_;
};

class EngineServer : public Server {
 public:
  std::string Listen(const std::string& host, int port, int threads, int64_t response_bytes,
                     int* bound_port) override {
    if (std::string error = MakeEngine(kServerName, threads, &engine_); !error.empty()) {
      return error;
    }
    return engine_->Listen(host, port, std::make_shared<Discard>(response_bytes), bound_port)
        .message();
  }

 private:
  std::unique_ptr<wire::Engine> engine_;
};

class EngineClient : public Client {
 public:
  std::string Connect(const std::string& address, int channels, int threads,
                      double timeout_s) override {
    if (std::string error = MakeEngine("raw client", threads, &engine_); !error.empty()) {
      return error;
    }
    for (int i = 0; i < channels; ++i) {
      channels_.push_back(engine_->Connect(address, kServerName));
    }
    const int64_t give_up_ms = wire::NowMs() + static_cast<int64_t>(timeout_s * 1e3);
    for (const auto& channel : channels_) {
      if (const wire::Status s = Reach(channel.get(), give_up_ms); !s.ok()) return s.message();
    }
    return "";
  }
  void Ask(const std::shared_ptr<Load>& load, int channel,
           const std::shared_ptr<const std::string>& payload) override {
    const int64_t number = load->Begin();
    if (number < 0) return;
    wire::Message request(kSend);
    request.AddPayload(payload->data(), payload->size());
    request.KeepAlive(payload);
    wire::CallOptions options;
    options.done_on = wire::RunOn::kReactor;
    channels_[static_cast<size_t>(channel)]->Start(
        std::move(request), std::make_unique<Sent>(this, load, channel, payload, number), options);
  }
  int channels() const override { return static_cast<int>(channels_.size()); }

 private:
  // Tries again while the server does not listen yet.
  static wire::Status Reach(wire::Channel* channel, int64_t give_up_ms) {
    for (;;) {
      auto call = std::make_unique<Reached>();
      auto reached = call->reached();
      wire::CallOptions options;
      options.deadline_ms = std::max<int64_t>(1, give_up_ms - wire::NowMs());
      channel->Start(wire::Message(kSend), std::move(call), options);
      wire::Status status = reached.get();
      if (status.code() != wire::Code::kUnavailable || wire::NowMs() >= give_up_ms) return status;
      std::this_thread::sleep_for(std::chrono::milliseconds(kPauseMs));
    }
  }

  // Receives the response to one request.
  class Receiver : public wire::Call {
   public:
    wire::Status PrepareFromReactor(std::string_view /*metadata*/, uint64_t payload_bytes,
                                    std::vector<wire::MutableBuffer>* into) override {
      if (payload_bytes > 0) {
        response_.resize(payload_bytes);
        into->push_back({response_.data(), response_.size()});
      }
      return {};
    }

   protected:
    std::string response_;
  };

  // The first request of a channel: its answer shows that the channel is connected.
  class Reached : public Receiver {
   public:
    std::future<wire::Status> reached() { return reached_.get_future(); }
    void Done(const wire::Status& status) override { reached_.set_value(status); }

   private:
    std::promise<wire::Status> reached_;
  };

  class Sent : public Receiver {
   public:
    Sent(EngineClient* client, std::shared_ptr<Load> load, int channel,
         std::shared_ptr<const std::string> payload, int64_t number)
        : client_(client),
          load_(std::move(load)),
          payload_(std::move(payload)),
          channel_(channel),
          number_(number) {}
    void Done(const wire::Status& status) override {
      load_->End(number_, response_.size(), status.message());
      client_->Ask(load_, channel_, payload_);
    }

   private:
    EngineClient* const client_;
    const std::shared_ptr<Load> load_;
    const std::shared_ptr<const std::string> payload_;
    const int channel_;
    const int64_t number_;
  };

  std::unique_ptr<wire::Engine> engine_;
  std::vector<std::shared_ptr<wire::Channel>> channels_;
};

}  // namespace

std::unique_ptr<Server> MakeServer() { return std::make_unique<EngineServer>(); }
std::unique_ptr<Client> MakeClient() { return std::make_unique<EngineClient>(); }
std::string Implementation() { return "engine"; }

}  // namespace tensorwire::raw
