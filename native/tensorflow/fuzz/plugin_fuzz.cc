// Input from a peer. The plug-in's files and this one are compiled as one unit
// (tests/plugin_unit.py). The environment variable FUZZ_TARGET selects what an input is:
//
//   tensor    a reply or a push: a tensor, a protobuf, an error
//   fused     the bytes of a fused tensor
//   requests  a request of any method to a running server, with its metadata and payload

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorwire::plugin {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);  // for work of microseconds
constexpr uint64_t kMostAnnounced = 4 << 20;          // payloads that do not arrive

[[noreturn]] void Broken(const char* what) {
  std::fprintf(stderr, "BROKEN: %s\n", what);
  std::abort();
}

tensorflow::Device* Cpu() {
  static tensorflow::Device* const cpu =
      tensorflow::DeviceFactory::NewDevice("CPU", tensorflow::SessionOptions(),
                                           "/job:fuzz/replica:0/task:0")
          .release();
  return cpu;
}

// Reads every byte, so that a sanitizer notices invalid memory.
void ReadThrough(const Tensor& tensor) {
  static volatile uint64_t sum = 0;
  if (!tensor.IsInitialized()) return;
  if (tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) {
    for (const char byte : tensor.tensor_data()) sum = sum + static_cast<unsigned char>(byte);
  } else if (tensor.dtype() == tensorflow::DT_STRING) {
    const auto strings = tensor.flat<tensorflow::tstring>();
    for (int64_t i = 0; i < strings.size(); ++i) {
      for (const char byte : std::string_view(strings(i).data(), strings(i).size())) {
        sum = sum + static_cast<unsigned char>(byte);
      }
    }
  }
}

// Takes the bytes of an input from its beginning.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  template <typename T>
  T Number() {
    T value{};
    const std::string_view bytes = Take(sizeof(T));
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::string_view Take(size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// Gives `call` the reply as the engine does: the head and then the payload, unless the connection
// is lost in between.
void Deliver(wire::Call* call, std::string_view metadata, std::string_view payload, bool lost) {
  const uint64_t announced =
      lost ? payload.size() * uint64_t{4099} % kMostAnnounced : payload.size();
  std::vector<wire::MutableBuffer> into;
  wire::Status status = call->PrepareFromReactor(metadata, announced, &into);
  uint64_t room = 0;
  for (const wire::MutableBuffer& buffer : into) room += buffer.size;
  if (status.ok() && room != announced) {
    status = wire::Status(wire::Code::kInternal, "a reply of another size than it announced");
  }
  if (status.ok() && lost)
    status = wire::Status(wire::Code::kUnavailable, "the connection is lost");
  if (status.ok()) {
    for (const wire::MutableBuffer& buffer : into) {
      std::memcpy(buffer.data, payload.data(), buffer.size);
      payload.remove_prefix(buffer.size);
    }
  }
  call->Done(status);
}

void Decode(const IncomingTensor& incoming, size_t payload_bytes) {
  if (!incoming.is_encoded()) return ReadThrough(incoming.tensor());
  Tensor tensor;
  if (!incoming.Decode(Cpu(), tensorflow::AllocatorAttributes(), &tensor).ok()) return;
  ReadThrough(tensor);
  // A tensor never has more elements than were sent.
  if (tensor.NumElements() > static_cast<int64_t>(payload_bytes)) Broken("elements from nowhere");
}

// A call like that of a Recv, without a step.
class TensorCall : public wire::Call {
 public:
  explicit TensorCall(size_t payload_bytes) : payload_bytes_(payload_bytes) {}
  wire::Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                                  std::vector<wire::MutableBuffer>* into) override {
    return ToWire(tensor_.Prepare(metadata, payload_bytes, HostMemoryFor(payload_bytes), into));
  }
  void Done(const wire::Status& status) override {
    if (status.ok()) Decode(tensor_, payload_bytes_);
  }

 private:
  const size_t payload_bytes_;
  IncomingTensor tensor_;
};

class PushWaiter : public PushInbox::Waiter {
 public:
  explicit PushWaiter(size_t payload_bytes) : payload_bytes_(payload_bytes) {}
  void OnPush(Pushed pushed) override {
    if (pushed.status.ok()) Decode(pushed.tensor, payload_bytes_);
  }
  void OnLost(const absl::Status&) override {}
  void Ask() override {}

 private:
  const size_t payload_bytes_;
};

void Push(std::string_view metadata, std::string_view payload, bool lost, uint8_t order) {
  constexpr int64_t kStep = 7;
  PushSteps steps;
  auto alive = std::make_shared<const int>(0);
  auto begin = [&](int64_t step_id, uint64_t scope) {
    return steps.Begin(step_id, scope, [&] { return std::weak_ptr<const void>(alive); })->session;
  };
  const auto session = begin(kStep, /*scope=*/1);
  const auto inbox = std::make_shared<PushInbox>(&steps);
  const auto waiter = std::make_shared<PushWaiter>(payload.size());
  Pushed here;
  const auto given = inbox->NewOrder(session);
  inbox->Expect(kStep, given, waiter, &here);
  if (order % 2 == 0) inbox->AcceptFromReactor(given, {1}, 100);
  if (order % 8 >= 4) {
    alive = std::make_shared<const int>(1);
    begin(kStep - 1, /*scope=*/2);
  }
  const uint64_t numbers[] = {given.number, given.number + 1, AllOrdersOf(given.number), 0};
  const auto call = inbox->BeginFromReactor(numbers[order % 4]);
  Deliver(call.get(), metadata, payload, lost);
  if (inbox->Expect(kStep + 1, given, waiter, &here) == PushInbox::Expected::kHere) {
    waiter->OnPush(std::move(here));
  }
  steps.EndStep(kStep);
  inbox->OnLost(wire::Status(wire::Code::kUnavailable, "the end"));
}

void FuzzTensor(Bytes bytes) {
  const auto kind = bytes.Number<uint8_t>();
  const bool lost = (kind & 0x80) != 0;
  const std::string_view metadata = bytes.Take(bytes.Number<uint8_t>());
  const std::string_view payload = bytes.rest();
  switch (kind % 4) {
    case 0: {
      TensorCall call(payload.size());
      return Deliver(&call, metadata, payload, lost);
    }
    case 1:
      return Push(metadata, payload, lost, kind >> 2);
    case 2: {
      tensorflow::RunGraphResponse response;
      ProtoCall call(&response, [](const absl::Status&) {});
      return Deliver(&call, metadata, payload, lost);
    }
    default:
      FromWire(wire::Status(static_cast<wire::Code>(kind >> 2 & 15), std::string(payload)))
          .ToString();
  }
}

void FuzzFused(Bytes bytes) {
  const auto vector_of = [](std::string_view data) {
    Tensor vector(tensorflow::DT_UINT8, {static_cast<int64_t>(data.size())});
    if (!data.empty()) std::memcpy(MemoryOf(vector), data.data(), data.size());
    return vector;
  };
  FusedBytes fused;
  for (int large = bytes.Number<uint8_t>() % 4; large > 0; --large) {
    fused.large.push_back(vector_of(bytes.Take(bytes.Number<uint8_t>())));
  }
  const auto size = static_cast<int64_t>(bytes.rest().size());
  fused.block = vector_of(bytes.rest());
  Tensor out;
  if (!DecodeFused(fused, Cpu(), &out).ok()) return;
  fused = FusedBytes();
  for (const Tensor& tensor : FusedIn(out)->tensors) {
    ReadThrough(tensor);
    if (tensor.NumElements() > std::max<int64_t>(size, UINT8_MAX)) Broken("elements from nowhere");
  }
}

class AnyCall : public wire::Call {
 public:
  std::future<void> Ended() { return ended_.get_future(); }
  wire::Status PrepareFromReactor(std::string_view, uint64_t payload_bytes,
                                  std::vector<wire::MutableBuffer>* into) override {
    bytes_.resize(payload_bytes);
    into->push_back({bytes_.data(), bytes_.size()});
    return wire::Status();
  }
  void Done(const wire::Status&) override { ended_.set_value(); }

 private:
  std::promise<void> ended_;
  std::string bytes_;
};

// A task with a real worker and a real eager service, and a client of its data port.
class OpenServer : public Server {
 public:
  using Server::Server;
  using tensorflow::GrpcServer::worker_env;
};

class Task {
 public:
  Task() {
    setenv("TENSORWIRE_TRANSPORT", "tcp", 1);
    tensorflow::ServerDef def;
    def.set_protocol("grpc++");
    def.set_job_name("fuzz");
    (*(*def.mutable_cluster()->add_job()).mutable_tasks())[0] = "localhost:0";
    def.mutable_cluster()->mutable_job(0)->set_name("fuzz");
    server_ = new OpenServer(def, tensorflow::Env::Default());
    if (absl::Status s = server_->Init(nullptr); !s.ok()) Broken(s.ToString().c_str());
    if (!server_->Start().ok()) Broken("the server does not start");
    const std::string target = server_->target();
    const int port = std::atoi(target.c_str() + target.rfind(':') + 1);
    wire::EngineOptions options;
    options.name = "client";
    options.transport = wire::Transport::kTcp;
    options.executor = [](std::function<void()> closure) {
      tensorflow::Env::Default()->SchedClosure(std::move(closure));
    };
    std::unique_ptr<wire::Engine> engine;
    if (!wire::Engine::Create(std::move(options), &engine).ok()) Broken("no engine");
    engine_ = engine.release();
    channel_ = engine_->Connect("127.0.0.1:" + std::to_string(wire::DataPort(port)),
                                "/job:fuzz/replica:0/task:0");
    char text[17];
    std::snprintf(
        text, sizeof(text), "%016llx",
        static_cast<unsigned long long>(
            server_->worker_env()->device_mgr->ListDevices().front()->attributes().incarnation()));
    incarnation_ = text;
  }
  wire::Channel* channel() const { return channel_.get(); }
  // The future is ready when the call has ended.
  std::future<void> Start(wire::Message request, uint64_t* id = nullptr) const {
    auto call = std::make_unique<AnyCall>();
    std::future<void> end = call->Ended();
    const uint64_t started = channel_->Start(std::move(request), std::move(call), {});
    if (id != nullptr) *id = started;
    return end;
  }
  // The incarnation of the task's device. Inputs cannot know it and have 16 zeros in its place.
  const std::string& incarnation() const { return incarnation_; }

 private:
  OpenServer* server_ = nullptr;  // both live as long as the process
  wire::Engine* engine_ = nullptr;
  std::shared_ptr<wire::Channel> channel_;
  std::string incarnation_;
};

void FuzzRequests(Bytes bytes) {
  static constexpr uint16_t kMethods[] = {kRecvTensor,   kRunGraph,         kCleanupGraph,
                                          kEagerEnqueue, kEagerRunFunction, kEagerCloseContext};
  static const auto* const task = new Task;
  const auto kind = bytes.Number<uint8_t>();
  wire::Message message(kind % 8 < 6 ? kMethods[kind % 8] : kind);
  std::string metadata(bytes.Take(bytes.Number<uint8_t>()));
  if (const auto at = metadata.find("0000000000000000"); at != std::string::npos) {
    metadata.replace(at, task->incarnation().size(), task->incarnation());
  }
  message.AppendMetadata(metadata);
  message.SetOwnedPayload(std::string(bytes.rest()));
  wire::Channel* const channel = task->channel();
  if (message.method() == kCleanupGraph) return channel->Notify(std::move(message), false);
  const bool asks_for_tensor = message.method() == kRecvTensor;
  uint64_t id = 0;
  const std::future<void> end = task->Start(std::move(message), &id);
  if (asks_for_tensor) {
    // The tensor is never made. When the next request, which is malformed, has ended, the task has
    // looked for the tensor.
    task->Start(wire::Message(kRecvTensor)).wait_for(kPatience);
    channel->Cancel(id);
    wire::Message cleanup(kCleanupGraph);
    cleanup.AppendMetadata(std::string_view(metadata).substr(0, sizeof(int64_t)));
    channel->Notify(std::move(cleanup), false);
  }
  // Some requests wait for earlier ones of their stream.
  if (end.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) {
    channel->Cancel(id);
    if (end.wait_for(kPatience) != std::future_status::ready) Broken("a call does not end");
  }
}

}  // namespace
}  // namespace tensorwire::plugin

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tensorwire::plugin;
  static const std::string target = [] {
    const char* named = std::getenv("FUZZ_TARGET");
    return std::string(named == nullptr ? "" : named);
  }();
  const Bytes bytes(data, size);
  if (target == "tensor") {
    FuzzTensor(bytes);
  } else if (target == "fused") {
    FuzzFused(bytes);
  } else if (target == "requests") {
    FuzzRequests(bytes);
  } else {
    Broken("FUZZ_TARGET is to be tensor, fused or requests");
  }
  return 0;
}
