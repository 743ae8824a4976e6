// Raw RPC over ZeroMQ, for benchmarks/peers: the two ends that native/raw/load.h asks for. Requests
// go from a DEALER socket a channel to one ROUTER; messages are sent from where they are.
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <deque>
#include <thread>
#include <utility>

#include "load.h"

namespace tensorwire::raw {
namespace {

void KeepNothing(void* /*data*/, void* /*hint*/) {}

std::string LastError(const std::string& what) { return what + ": " + zmq_strerror(zmq_errno()); }

void* Unlimited(void* context, int type) {
  void* const socket = zmq_socket(context, type);
  const int none = 0;
  zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof(none));
  zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof(none));
  return socket;
}

// Without a copy; `bytes` outlive the message.
void Send(void* socket, const std::string& bytes) {
  zmq_msg_t message;
  zmq_msg_init_data(&message, const_cast<char*>(bytes.data()), bytes.size(), KeepNothing, nullptr);
  zmq_msg_send(&message, socket, 0);
}

class ZeromqServer : public Server {
 public:
  std::string Listen(const std::string& host, int port, int threads, int64_t response_bytes,
                     int* bound_port) override {
    response_.assign(static_cast<size_t>(response_bytes), 'a');
    void* const context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_IO_THREADS, threads);
    void* const socket = Unlimited(context, ZMQ_ROUTER);
    const std::string address =
        "tcp://" + (host.empty() ? "*" : host) + ":" + (port == 0 ? "*" : std::to_string(port));
    if (zmq_bind(socket, address.c_str()) != 0) return LastError("zeromq cannot listen");
    char bound[256];
    size_t size = sizeof(bound);
    zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size);
    const std::string at(bound);
    *bound_port = std::stoi(at.substr(at.rfind(':') + 1));
    std::thread([this, socket] {
      for (;;) {
        zmq_msg_t peer;
        zmq_msg_init(&peer);
        zmq_msg_recv(&peer, socket, 0);
        zmq_msg_t request;
        zmq_msg_init(&request);
        zmq_msg_recv(&request, socket, 0);
        zmq_msg_close(&request);  // thrown away
        zmq_msg_send(&peer, socket, ZMQ_SNDMORE);
        Send(socket, response_);
      }
    }).detach();
    return "";
  }

 private:
  std::string response_;
};

// One thread has the sockets: who asks leaves the request to it.
class ZeromqClient : public Client {
 public:
  std::string Connect(const std::string& address, int channels, int threads,
                      double /*timeout_s*/) override {
    void* const context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_IO_THREADS, threads);
    for (int i = 0; i < channels; ++i) {
      channels_.emplace_back();
      channels_.back().socket = Unlimited(context, ZMQ_DEALER);
      if (zmq_connect(channels_.back().socket, ("tcp://" + address).c_str()) != 0) {
        return LastError("zeromq cannot connect");
      }
    }
    wake_ = eventfd(0, EFD_CLOEXEC);
    std::thread([this] { Loop(); }).detach();
    return "";
  }
  void Ask(const std::shared_ptr<Load>& load, int channel,
           const std::shared_ptr<const std::string>& payload) override {
    {
      std::lock_guard lock(mutex_);
      inbox_.push_back({load, channel, payload, 0});
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(wake_, &one, sizeof(one));
  }
  int channels() const override { return static_cast<int>(channels_.size()); }

 private:
  struct Asked {
    std::shared_ptr<Load> load;
    int channel;
    std::shared_ptr<const std::string> payload;
    int64_t number;
  };
  struct Channel {
    void* socket = nullptr;
    std::deque<Asked> unanswered;  // answers come in the order of their requests
  };

  void Begin(Asked asked) {
    asked.number = asked.load->Begin();
    if (asked.number < 0) return;
    Channel& channel = channels_[static_cast<size_t>(asked.channel)];
    Send(channel.socket, *asked.payload);
    channel.unanswered.push_back(std::move(asked));
  }

  void Loop() {
    std::vector<zmq_pollitem_t> items;
    for (const Channel& channel : channels_) items.push_back({channel.socket, 0, ZMQ_POLLIN, 0});
    items.push_back({nullptr, wake_, ZMQ_POLLIN, 0});
    for (;;) {
      zmq_poll(items.data(), static_cast<int>(items.size()), -1);
      if (items.back().revents != 0) TakeInbox();
      for (size_t i = 0; i < channels_.size(); ++i) {
        while (items[i].revents != 0 && TakeAnswer(&channels_[i])) {
        }
      }
    }
  }

  void TakeInbox() {
    uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t read = ::read(wake_, &ignored, sizeof(ignored));
    std::deque<Asked> asked;
    {
      std::lock_guard lock(mutex_);
      asked.swap(inbox_);
    }
    for (Asked& each : asked) Begin(std::move(each));
  }

  bool TakeAnswer(Channel* channel) {
    zmq_msg_t answer;
    zmq_msg_init(&answer);
    if (zmq_msg_recv(&answer, channel->socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&answer);
      return false;
    }
    Asked asked = std::move(channel->unanswered.front());
    channel->unanswered.pop_front();
    asked.load->End(asked.number, zmq_msg_size(&answer));
    zmq_msg_close(&answer);
    Begin(std::move(asked));
    return true;
  }

  std::vector<Channel> channels_;
  int wake_ = -1;
  std::mutex mutex_;
  std::deque<Asked> inbox_;
};

}  // namespace

std::unique_ptr<Server> MakeServer() { return std::make_unique<ZeromqServer>(); }
std::unique_ptr<Client> MakeClient() { return std::make_unique<ZeromqClient>(); }
std::string Implementation() {
  return "ZeroMQ " + std::to_string(ZMQ_VERSION_MAJOR) + "." + std::to_string(ZMQ_VERSION_MINOR) +
         "." + std::to_string(ZMQ_VERSION_PATCH);
}

}  // namespace tensorwire::raw
