// Raw RPC over gRPC in C++, as gRPC's users would write it: ByteBuffers, which do not copy,
// completion queues with one thread each, and the asynchronous client. Compiled on the machine that
// uses it, against the gRPC that is installed there.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <thread>
#include <utility>

#include "load.h"

namespace tensorwire::raw {
namespace {

constexpr char kMethod[] = "/tensorwire.Raw/Send";
constexpr int kCallsOfAQueue = 256;  // calls that wait for a request

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

// A tag of a completion queue.
class Event {
 public:
  virtual ~Event() = default;
  virtual void OnEvent(bool ok) = 0;
};

void ServeQueue(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<Event*>(tag)->OnEvent(ok);
}

// The code that grpc_cpp_plugin would generate for one method whose messages stay bytes.
class RawService : public grpc::Service {
 public:
  RawService() {
    AddMethod(
        new grpc::internal::RpcServiceMethod(kMethod, grpc::internal::RpcMethod::NORMAL_RPC,
                                             static_cast<grpc::internal::MethodHandler*>(nullptr)));
    MarkMethodRaw(0);
  }
  void Request(grpc::ServerContext* context, grpc::ByteBuffer* request,
               grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>* writer,
               grpc::ServerCompletionQueue* queue, Event* event) {
    RequestAsyncUnary(0, context, request, writer, queue, queue, event);
  }
};

// Serves calls of one queue, one after another.
class ServedCall : public Event {
 public:
  ServedCall(RawService* service, grpc::ServerCompletionQueue* queue, const std::string* response)
      : service_(service), queue_(queue), response_(response) {
    Wait();
  }
  void OnEvent(bool ok) override {
    if (waiting_ && !ok) {  // the server shuts down
      delete this;
    } else if (waiting_) {
      waiting_ = false;
      call_->request.Clear();  // discarded
      call_->writer.Finish(BufferOf(*response_), grpc::Status::OK, this);
    } else {
      Wait();
    }
  }

 private:
  struct Call {
    Call() : writer(&context) {}
    grpc::ServerContext context;
    grpc::ByteBuffer request;
    grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer;
  };
  void Wait() {
    waiting_ = true;
    call_ = std::make_unique<Call>();
    service_->Request(&call_->context, &call_->request, &call_->writer, queue_, this);
  }

  RawService* const service_;
  grpc::ServerCompletionQueue* const queue_;
  const std::string* const response_;
  std::unique_ptr<Call> call_;
  bool waiting_ = true;
};

class GrpcServer : public Server {
 public:
  std::string Listen(const std::string& host, int port, int threads, int64_t response_bytes,
                     int* bound_port) override {
    response_.assign(static_cast<size_t>(response_bytes), 'a');
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    // Two servers on one port would share its connections.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    const std::string address = (host.empty() ? "[::]" : host) + ":" + std::to_string(port);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), bound_port);
    builder.RegisterService(&service_);
    for (int i = 0; i < threads; ++i) queues_.push_back(builder.AddCompletionQueue());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || *bound_port == 0) return "grpc cannot listen on " + address;
    for (const auto& queue : queues_) {
      for (int i = 0; i < kCallsOfAQueue; ++i) {
        new ServedCall(&service_, queue.get(), &response_);  // lives as long as its queue
      }
      std::thread(ServeQueue, queue.get()).detach();
    }
    return "";
  }

 private:
  std::string response_;
  RawService service_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::unique_ptr<grpc::Server> server_;
};

class GrpcClient : public Client {
 public:
  std::string Connect(const std::string& address, int channels, int threads,
                      double timeout_s) override {
    const auto deadline = std::chrono::system_clock::now() +
                          std::chrono::microseconds(static_cast<int64_t>(timeout_s * 1e6));
    for (int i = 0; i < threads; ++i) {
      queues_.push_back(std::make_unique<grpc::CompletionQueue>());
      std::thread(ServeQueue, queues_.back().get()).detach();
    }
    for (int i = 0; i < channels; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetMaxReceiveMessageSize(-1);
      arguments.SetMaxSendMessageSize(-1);
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
      arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
      const auto channel =
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
      if (!channel->WaitForConnected(deadline)) return "grpc cannot connect to " + address;
      stubs_.push_back(std::make_unique<grpc::GenericStub>(channel));
    }
    return "";
  }
  void Ask(const std::shared_ptr<Load>& load, int channel,
           const std::shared_ptr<const std::string>& payload) override {
    const int64_t number = load->Begin();
    if (number < 0) return;
    auto* const call = new SentCall(this, load, channel, payload, number);
    call->Start(stubs_[static_cast<size_t>(channel)].get(),
                queues_[static_cast<size_t>(channel) % queues_.size()].get());
  }
  int channels() const override { return static_cast<int>(stubs_.size()); }

 private:
  class SentCall : public Event {
   public:
    SentCall(GrpcClient* client, std::shared_ptr<Load> load, int channel,
             std::shared_ptr<const std::string> payload, int64_t number)
        : client_(client),
          load_(std::move(load)),
          payload_(std::move(payload)),
          channel_(channel),
          number_(number) {}
    void Start(grpc::GenericStub* stub, grpc::CompletionQueue* queue) {
      reader_ = stub->PrepareUnaryCall(&context_, kMethod, BufferOf(*payload_), queue);
      reader_->StartCall();
      reader_->Finish(&response_, &status_, this);
    }
    void OnEvent(bool /*ok*/) override {
      const std::unique_ptr<SentCall> owner(this);
      load_->End(number_, response_.Length(),
                 status_.ok() ? "" : "grpc: " + status_.error_message());
      client_->Ask(load_, channel_, payload_);
    }

   private:
    GrpcClient* const client_;
    const std::shared_ptr<Load> load_;
    const std::shared_ptr<const std::string> payload_;
    const int channel_;
    const int64_t number_;
    grpc::ClientContext context_;
    grpc::ByteBuffer response_;
    grpc::Status status_;
    std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader_;
  };

  std::vector<std::unique_ptr<grpc::CompletionQueue>> queues_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
};

}  // namespace

std::unique_ptr<Server> MakeServer() { return std::make_unique<GrpcServer>(); }
std::unique_ptr<Client> MakeClient() { return std::make_unique<GrpcClient>(); }
std::string Implementation() { return "grpc C++ " + grpc::Version(); }

}  // namespace tensorwire::raw
