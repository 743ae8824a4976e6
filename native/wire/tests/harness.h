#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "fd.h"
#include "hello.h"
#include "lane.h"
#include "pool.h"
#include "socket.h"
#include "tensorwire/wire/engine.h"
#include "tensorwire/wire/frame.h"

// Shared by the tests of the engine. A Task is an engine with its own handler and threads. Begin
// starts a call, and Get waits for its end. A RawStream is one end of a connection without an
// engine; it can send what no engine would send.

namespace tensorwire::wire {

// An executor that runs nothing from Stick until Resume, as if all its threads were busy.
class StuckExecutor {
 public:
  void Run(std::function<void()> closure) {
    std::lock_guard lock(mutex_);
    if (stuck_) {
      held_.push_back(std::move(closure));
    } else {
      pool_.Run(std::move(closure));
    }
  }
  void Stick() {
    std::lock_guard lock(mutex_);
    stuck_ = true;
  }
  void Resume() {
    std::lock_guard lock(mutex_);
    stuck_ = false;
    for (auto& closure : held_) pool_.Run(std::move(closure));
    held_.clear();
  }
  size_t held() {
    std::lock_guard lock(mutex_);
    return held_.size();
  }

 private:
  Pool pool_;
  std::mutex mutex_;
  bool stuck_ = false;
  std::vector<std::function<void()>> held_;
};

enum Method : uint16_t { kEcho = 1, kNever = 2, kFail = 3, kFromReactor = 4, kBytes = 5 };

// Answers with the request's metadata and payload; for kBytes, the payload has as many bytes as the
// metadata says.
class TestHandler : public Handler {
 public:
  RunOn HandleOn(const Request& request) const override {
    return request.method == kFromReactor ? RunOn::kReactor : RunOn::kExecutor;
  }
  void Handle(Request request) override {
    if (request.method == kNever) {
      std::lock_guard lock(mutex);
      kept.push_back(std::move(request));
      return;
    }
    if (request.method == kFail) {
      request.Fail(Status(Code::kOutOfRange, "the end"));
      return;
    }
    Message reply;
    reply.AppendMetadata(request.metadata);
    if (request.method == kBytes) {
      size_t bytes = 0;
      const char* end = request.metadata.data() + request.metadata.size();
      std::from_chars(request.metadata.data(), end, bytes);
      reply.SetOwnedPayload(std::string(std::min<size_t>(bytes, 128u << 20), 'x'));
    } else {
      reply.SetOwnedPayload(request.payload);
    }
    request.Reply(std::move(reply));
  }
  void OnCancel(uint64_t, uint64_t) override { ++cancels; }
  void OnDisconnect(uint64_t) override { ++disconnects; }

  std::mutex mutex;
  std::vector<Request> kept;
  std::atomic<int> cancels{0};
  std::atomic<int> disconnects{0};
};

struct Outcome {
  Status status;
  std::string metadata;
  std::string payload;
};

class TestCall : public Call {
 public:
  explicit TestCall(std::promise<Outcome> promise) : promise_(std::move(promise)) {}
  Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                            std::vector<MutableBuffer>* into) override {
    outcome_.metadata = metadata;
    outcome_.payload.resize(payload_bytes);
    into->push_back({outcome_.payload.data(), outcome_.payload.size()});
    return Status();
  }
  void Done(const Status& status) override {
    outcome_.status = status;
    promise_.set_value(std::move(outcome_));
  }

 private:
  std::promise<Outcome> promise_;
  Outcome outcome_;
};

inline std::future<Outcome> Begin(Channel& channel, Method method, const std::string& metadata,
                                  std::string payload = "", CallOptions options = {},
                                  uint64_t* id = nullptr) {
  std::promise<Outcome> promise;
  auto future = promise.get_future();
  Message request(method);
  request.AppendMetadata(metadata);
  if (!payload.empty()) request.SetOwnedPayload(std::move(payload));
  const uint64_t call =
      channel.Start(std::move(request), std::make_unique<TestCall>(std::move(promise)), options);
  if (id != nullptr) *id = call;
  return future;
}

inline Outcome Get(std::future<Outcome> future) {
  CHECK(future.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  return future.get();
}

inline void Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(condition());
}

// Receives the reply in buffers of mixed sizes, some of them empty.
class ScatterCall : public Call {
 public:
  ScatterCall(size_t buffers, std::promise<std::string> done)
      : buffers_(buffers), done_(std::move(done)) {}
  Status PrepareFromReactor(std::string_view, uint64_t payload_bytes,
                            std::vector<MutableBuffer>* into) override {
    bytes_.resize(payload_bytes);
    size_t at = 0;
    for (size_t i = 0; i < buffers_; ++i) {
      const size_t left = payload_bytes - at;
      const size_t size = i + 1 == buffers_ ? left : std::min(left, (i * 997) % 5000);
      into->push_back({bytes_.data() + at, size});
      into->push_back({nullptr, 0});
      at += size;
    }
    return Status();
  }
  void Done(const Status& status) override {
    done_.set_value(status.ok() ? std::move(bytes_) : status.message());
  }

 private:
  const size_t buffers_;
  std::promise<std::string> done_;
  std::string bytes_;
};

struct Task {
  explicit Task(const std::string& name, int reactors = 1,
                const std::function<void(EngineOptions*)>& change = {}) {
    EngineOptions options;
    options.name = name;
    options.reactors = reactors;
    options.executor = [this](std::function<void()> closure) { pool.Run(std::move(closure)); };
    options.log = [this](LogLevel, const std::string& line) {
      std::lock_guard lock(log_mutex);
      log.push_back(line);
    };
    if (change) change(&options);
    CHECK(Engine::Create(std::move(options), &engine).ok());
  }
  ~Task() { engine->Stop(); }
  std::string Listen(int port = 0) {
    int bound = 0;
    const Status status = engine->Listen("127.0.0.1", port, handler, &bound);
    if (!status.ok()) check::Fail(__FILE__, __LINE__, status.message());
    return "127.0.0.1:" + std::to_string(bound);
  }
  std::vector<std::string> Log() {
    std::lock_guard lock(log_mutex);
    return log;
  }

  Pool pool;  // first member, so destroyed last: it may still have closures of the engine
  std::mutex log_mutex;
  std::vector<std::string> log;
  std::shared_ptr<TestHandler> handler = std::make_shared<TestHandler>();
  std::unique_ptr<Engine> engine;
};

// --- without an engine -------------------------------------------------------------------------

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline std::string Frame(FrameKind kind, uint64_t id, uint16_t method = 0,
                         std::string_view metadata = "", std::string_view payload = "",
                         uint16_t flags = 0) {
  FrameHeader header;
  header.kind = kind;
  header.flags = flags;
  header.method = method;
  header.request_id = id;
  header.metadata_bytes = static_cast<uint32_t>(metadata.size());
  header.payload_bytes = payload.size();
  std::string bytes(kHeaderBytes, '\0');
  EncodeHeader(header, bytes.data());
  bytes.append(metadata);
  bytes.append(payload);
  return bytes;
}

inline std::string HelloFrame(const std::string& task, const std::string& peer) {
  return Frame(FrameKind::kHello, 0, 0, "task=" + task + "\npeer=" + peer + "\n");
}

struct ReadFrame {
  FrameHeader header;
  std::string metadata;
  std::string payload;
};

// `address` must be of loopback.
inline void ConnectTo(const std::string& address, const Fd& fd) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  CHECK_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
}

// A TCP stream; every operation has a time limit.
class RawStream {
 public:
  explicit RawStream(Fd fd) : fd_(std::move(fd)) {
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    fcntl(fd_.get(), F_SETFL, fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
  }
  static RawStream To(const std::string& address, int receive_buffer_bytes = 0) {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CHECK(fd.valid());
    if (receive_buffer_bytes > 0) {
      setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof(receive_buffer_bytes));
    }
    ConnectTo(address, fd);
    return RawStream(std::move(fd));
  }

  // Returns the number of bytes that the peer took within the time.
  size_t SendWithin(std::string_view bytes, int timeout_ms) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n > 0) {
        sent += static_cast<size_t>(n);
        continue;
      }
      if (errno != EAGAIN || !Wait(POLLOUT, timeout_ms)) break;
    }
    return sent;
  }
  bool Send(std::string_view bytes) { return SendWithin(bytes, 10'000) == bytes.size(); }

  // Returns up to `most` received bytes; "" if the stream has ended or nothing came in time.
  std::string ReadSome(size_t most = 64u << 10, int timeout_ms = 10'000) {
    std::string bytes(most, '\0');
    if (!Wait(POLLIN, timeout_ms)) return "";
    const ssize_t n = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (n <= 0) ended_ = true;
    bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return bytes;
  }
  // False if the stream ends first.
  bool Read(ReadFrame* frame) {
    if (!Fill(kHeaderBytes)) return false;
    CHECK(ParseHeader(buffer_.data() + at_, FrameLimits(), &frame->header).ok());
    const size_t head = kHeaderBytes + frame->header.metadata_bytes;
    const size_t whole = head + frame->header.payload_bytes;
    if (!Fill(whole)) return false;
    frame->metadata = buffer_.substr(at_ + kHeaderBytes, frame->header.metadata_bytes);
    frame->payload = buffer_.substr(at_ + head, frame->header.payload_bytes);
    at_ += whole;
    return true;
  }
  // Returns everything until the peer closes.
  std::string ReadToEnd() {
    while (!ended_) {
      const std::string more = ReadSome();
      if (more.empty() && !ended_) check::Fail(__FILE__, __LINE__, "the peer does not close");
      buffer_ += more;
    }
    return std::exchange(buffer_, {}).substr(std::exchange(at_, 0));
  }
  bool ended() const { return ended_; }
  int fd() const { return fd_.get(); }

  void Greet(const std::string& task, const std::string& peer) {
    CHECK(Send(HelloFrame(task, peer)));
    ReadFrame ack;
    CHECK(Read(&ack));
    CHECK(ack.header.kind == FrameKind::kHelloAck);
  }

 private:
  bool Wait(short events, int timeout_ms) {
    pollfd wait{fd_.get(), events, 0};
    return ::poll(&wait, 1, timeout_ms) > 0;
  }
  // Reads until buffer_ has this many bytes from at_ on.
  bool Fill(size_t bytes) {
    while (buffer_.size() - at_ < bytes && !ended_) {
      buffer_.erase(0, std::exchange(at_, 0));
      const std::string more = ReadSome();
      if (more.empty() && !ended_) check::Fail(__FILE__, __LINE__, "nothing came");
      buffer_ += more;
    }
    return buffer_.size() - at_ >= bytes;
  }

  Fd fd_;
  std::string buffer_;
  size_t at_ = 0;  // the bytes before it have been consumed
  bool ended_ = false;
};

// A listening socket on loopback.
class RawServer {
 public:
  RawServer() {
    int port = 0;
    CHECK(ListenOn("127.0.0.1", 0, &fd_, &port).ok());
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  const std::string& address() const { return address_; }
  int fd() const { return fd_.get(); }
  void Close() { fd_ = Fd(); }
  RawStream Accept() {
    pollfd wait{fd_.get(), POLLIN, 0};
    CHECK(::poll(&wait, 1, 10'000) > 0);
    return RawStream(Fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }
  // Accepts, and answers the greeting. `lines` are added to the answer, each ended by "
  // ".
  RawStream AcceptAndGreet(const std::string& lines = "") {
    RawStream stream = Accept();
    ReadFrame hello;
    CHECK(stream.Read(&hello));
    CHECK(hello.header.kind == FrameKind::kHello);
    CHECK(stream.Send(Frame(FrameKind::kHelloAck, 0, 0, "task=raw\n" + lines)));
    return stream;
  }

 private:
  Fd fd_;
  std::string address_;
};

// A lane (lane.h) without an engine.
class RawLane {
 public:
  explicit RawLane(const std::string& directory = "") {
    CHECK(ListenOnLane(directory, &fd_, &name_).ok());
  }
  // For RawServer::AcceptAndGreet.
  std::string line() const { return "lane=" + name_ + "\n"; }
  const std::string& name() const { return name_; }
  // Accepts, answers the greeting, and passes `file`.
  RawStream AcceptAndGreet(int file) {
    pollfd wait{fd_.get(), POLLIN, 0};
    CHECK(::poll(&wait, 1, 10'000) > 0);
    RawStream stream(Fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    ReadFrame hello;
    CHECK(stream.Read(&hello));
    CHECK(hello.header.kind == FrameKind::kHello);
    std::string ack = Frame(FrameKind::kHelloAck, 0, 0, "task=raw\n");
    iovec part{ack.data(), ack.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const DescriptorRoom room(&message);
    PutDescriptor(file, &message);
    CHECK_EQ(::sendmsg(stream.fd(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(ack.size()));
    return stream;
  }

 private:
  Fd fd_;
  std::string name_;
};

// While it lives, this process has only `free` free descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(size_t free) {
    RaiseDescriptorLimit();  // or the first engine would
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit few{std::min<rlim_t>(before_.rlim_cur, 256), before_.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (;;) {
      Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!fd.valid()) break;
      taken_.push_back(std::move(fd));
    }
    CHECK(taken_.size() >= free);
    taken_.resize(taken_.size() - free);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<Fd> taken_;
};

inline bool Contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "\"%s\" is not in \"%s\"\n", part.c_str(), text.c_str());
  return false;
}

inline int64_t SteadyMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void SleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

inline int64_t ResidentBytes() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  long total = 0;
  long resident = 0;
  CHECK(file != nullptr && std::fscanf(file, "%ld %ld", &total, &resident) == 2);
  std::fclose(file);
  return static_cast<int64_t>(resident) * sysconf(_SC_PAGESIZE);
}

}  // namespace tensorwire::wire
