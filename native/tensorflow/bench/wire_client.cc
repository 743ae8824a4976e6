#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calls/methods.h"
#include "calls/status.h"
#include "client.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensors/pool_allocator.h"
#include "tensors/tensor_codec.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::bench {
namespace {

// Requests a tensor as the plug-in does, but without a rendezvous.
class WireCall : public wire::Call {
 public:
  explicit WireCall(Client::Done done) : done_(std::move(done)) {}

  wire::Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                                  std::vector<wire::MutableBuffer>* into) override {
    return plugin::ToWire(
        tensor_.Prepare(metadata, payload_bytes, plugin::HostMemoryFor(payload_bytes), into));
  }
  void Done(const wire::Status& status) override {
    done_(plugin::FromWire(status), tensor_.tensor());
  }

 private:
  const Client::Done done_;
  plugin::IncomingTensor tensor_;
};

class WireClient : public Client {
 public:
  explicit WireClient(std::shared_ptr<wire::Channel> channel) : channel_(std::move(channel)) {}

  void Ask(int64_t step_id, const std::string& key, Done done) override {
    wire::Message request(plugin::kRecvTensor);
    request.Put<int64_t>(step_id);
    request.Put<uint64_t>(0);  // no standing order: every tensor is requested
    request.AppendMetadata(key);
    wire::CallOptions options;
    // In a separate worker, this reply would arrive alone.
    options.done_on = wire::RunOn::kReactor;
    channel_->Start(std::move(request), std::make_unique<WireCall>(std::move(done)), options);
  }

 private:
  const std::shared_ptr<wire::Channel> channel_;
};

}  // namespace

absl::Status WireClients(const std::string& address, int count, Clients* out) {
  static auto* const pool = new tensorflow::thread::ThreadPool(
      tensorflow::Env::Default(), "clients", tensorflow::port::NumSchedulableCPUs());
  static std::unique_ptr<wire::Engine>* const engine = new std::unique_ptr<wire::Engine>;
  wire::EngineOptions options;
  options.name = "/job:worker/replica:0/task:0";
  options.executor = [](std::function<void()> closure) { pool->Schedule(std::move(closure)); };
  TF_RETURN_IF_ERROR(plugin::FromWire(wire::ReadEnvironment("worker", count, &options)));
  TF_RETURN_IF_ERROR(plugin::FromWire(wire::Engine::Create(std::move(options), engine)));
  for (int i = 0; i < count; ++i) {
    out->push_back(
        std::make_unique<WireClient>((*engine)->Connect(address, "/job:ps/replica:0/task:0")));
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::bench
