#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorwire/wire/export.h"
#include "tensorwire/wire/message.h"
#include "tensorwire/wire/options.h"
#include "tensorwire/wire/stats.h"
#include "tensorwire/wire/status.h"

// The engine in four nouns. An Engine owns the reactors. Through a Channel, a client starts Calls
// to one peer. A Handler answers the Requests that a server receives.
//
// Threads: methods whose names end in FromReactor run on a reactor and must neither block nor take
// long. All others may be called from any thread.

namespace tensorwire::wire {

class Connection;

// The time (as NowUs) at which the bytes that the calling reactor now handles were read.
TENSORWIRE_API int64_t ArrivedUs();

// A request in flight, as the client sees it. The engine owns it from Channel::Start to Done.
class Call {
 public:
  virtual ~Call() = default;

  // The reply's head has arrived. Sets the memory that the payload is read into: buffers that add
  // up to `payload_bytes` and stay valid until Done. An error status drops the payload and ends the
  // call with that status.
  virtual Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                                    std::vector<MutableBuffer>* into) = 0;

  // Called exactly once: when the reply is complete, or with the reason why there is none. The
  // engine deletes the call afterwards.
  virtual void Done(const Status& status) = 0;
};

// The thread that runs work which arrived at a reactor. Waking another thread costs more than a
// little work; much work keeps the reactor from its sockets.
enum class RunOn {
  kExecutor,          // the work may take long
  kReactorWhenAlone,  // it never blocks: runs on the reactor if it arrived alone
  kReactor,           // it never blocks and takes a microsecond or two
};

struct CallOptions {
  int64_t deadline_ms = 0;  // from now; 0: none (a lost connection still ends the call)
  RunOn done_on = RunOn::kExecutor;
};

// Receives a server's pushes, and is told when no more can come.
class PushReceiver {
 public:
  virtual ~PushReceiver() = default;

  // The head of a push has arrived. Returns the call that receives the rest, or null to drop it.
  virtual std::unique_ptr<Call> BeginFromReactor(uint64_t what) = 0;

  // The connection is gone, and with it all that the server knew about this client.
  virtual void OnLost(const Status& why) = 0;
};

class TENSORWIRE_API Channel {
 public:
  virtual ~Channel() = default;

  // Must be called before the first call.
  virtual void SetPushReceiver(std::shared_ptr<PushReceiver> receiver) = 0;

  // Runs a short closure on this channel's reactor, `delay_ms` from now.
  virtual void RunAfter(int delay_ms, std::function<void()> closure) = 0;

  // Sends a request. Connects first if needed. A call to a peer that refuses ends at once with
  // kUnavailable; a caller that wants to wait for the peer has to call again. Returns the id by
  // which the call can be cancelled.
  virtual uint64_t Start(Message request, std::unique_ptr<Call> call,
                         const CallOptions& options) = 0;

  // Sends a request that has no reply. `lazy`: it may wait a few milliseconds for another frame to
  // travel with. Dropped if there is no connection.
  virtual void Notify(Message request, bool lazy) = 0;

  // Ends the call with kCancelled, if it has not ended, and tells the peer.
  virtual void Cancel(uint64_t call_id) = 0;

  // Tells the peer that the call is cancelled, and ends the call with the peer's answer: the call
  // may have failed there already, and its error may be under way. Ends it with kCancelled at once
  // if nothing has been sent, or if the peer does not answer for `patience_ms`.
  virtual void CancelPatiently(uint64_t call_id, int64_t patience_ms) = 0;
};

// Lets a server send a client what the client has not requested, or not requested yet.
class TENSORWIRE_API Pusher {
 public:
  Pusher() = default;
  explicit Pusher(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  // False if the client has gone, or does not read what it is sent: more pushes would fill this
  // task's memory.
  bool IsTaken() const;
  // False if the client has gone.
  bool Push(uint64_t what, Message message) const;
  uint64_t connection_id() const;

 private:
  std::shared_ptr<Connection> connection_;
};

// The bytes that unanswered requests hold: those of one connection, or of all. It lives until its
// owner and all these requests have released it. That costs one atomic operation at each end of a
// request; a shared pointer to the number would cost two.
class HeldBytes {
 public:
  struct LetGo {
    void operator()(HeldBytes* held) const { held->Sub(kOwned); }
  };
  using Owner = std::unique_ptr<HeldBytes, LetGo>;
  static Owner Create() { return Owner(new HeldBytes); }

  uint64_t bytes() const { return value_.load(std::memory_order_relaxed) & ~kOwned; }
  void Add(uint64_t bytes) { value_.fetch_add(bytes, std::memory_order_relaxed); }
  void Sub(uint64_t bytes) {
    if (value_.fetch_sub(bytes, std::memory_order_acq_rel) == bytes) delete this;
  }

 private:
  static constexpr uint64_t kOwned = uint64_t{1} << 63;
  HeldBytes() = default;
  ~HeldBytes() = default;

  std::atomic<uint64_t> value_{kOwned};
};

// A request's share of EngineOptions::unanswered_bytes, until it is answered or destroyed. A copy
// holds the same amount again. Code that keeps only a request's id keeps the claim as well.
class Claim {
 public:
  Claim() = default;
  // `of_all`: null if the connection holds little.
  Claim(HeldBytes* of_connection, HeldBytes* of_all, uint64_t bytes)
      : held_{of_connection, of_all}, bytes_(bytes) {
    for (HeldBytes* const held : held_) {
      if (held != nullptr) held->Add(bytes_);
    }
  }
  Claim(const Claim& other) : Claim(other.held_[0], other.held_[1], other.bytes_) {}
  Claim(Claim&& other) noexcept : held_(std::exchange(other.held_, {})), bytes_(other.bytes_) {}
  Claim& operator=(Claim other) noexcept {
    std::swap(held_, other.held_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Claim() { Release(); }

  void Release() {
    for (HeldBytes*& held : held_) {
      if (held != nullptr) std::exchange(held, nullptr)->Sub(bytes_);
    }
  }

 private:
  std::array<HeldBytes*, 2> held_{};
  uint64_t bytes_ = 0;  // not 0 if there is a claim
};

// A request that a server has received. Must be answered with exactly one of Reply and Fail, from
// any thread, now or later. An answer to a peer that has gone is dropped.
class TENSORWIRE_API Request {
 public:
  uint16_t method = 0;
  bool one_way = false;
  uint64_t id = 0;
  std::string metadata;
  std::string payload;
  // The payload's memory, if the handler provided it (Handler::PlaceFromReactor).
  std::shared_ptr<char> placed;

  void Reply(Message reply) const;
  void Fail(const Status& status) const;

  // Identifies the connection, for OnCancel and OnDisconnect.
  uint64_t connection_id() const;
  const std::string& peer() const;
  Pusher pusher() const { return Pusher(connection); }

  std::shared_ptr<Connection> connection;
  mutable Claim claim;  // released by the answer
};

class Handler {
 public:
  virtual ~Handler() = default;

  // The thread that runs Handle for this request.
  virtual RunOn HandleOn(const Request& request) const = 0;

  // The head of a request with a payload has arrived. Returns memory of that size to read the
  // payload into, which becomes Request::placed. Or returns null: then Request::payload grows as
  // the payload arrives, so that a peer cannot make this task allocate memory by announcing a large
  // payload. If the connection is lost before the request is complete, the memory is released.
  virtual std::shared_ptr<char> PlaceFromReactor(uint16_t /*method*/, uint64_t /*payload_bytes*/) {
    return nullptr;
  }

  // Must not block: requests that arrive together are handled one after the other.
  virtual void Handle(Request request) = 0;

  // The peer no longer wants the answer to this request. Must not block. Called before any later
  // request of the peer is handled, so that such a request does not meet work that the peer has
  // cancelled. Never called before Handle has returned for this request: it runs on the reactor, or
  // on the thread that runs Handle if that has not returned yet. May be called after the answer.
  virtual void OnCancel(uint64_t connection_id, uint64_t request_id) = 0;

  // A connection is gone, and its requests with it. Called on the executor, after Handle has
  // returned for all of them. Later answers are dropped.
  virtual void OnDisconnect(uint64_t connection_id) = 0;
};

class TENSORWIRE_API Engine {
 public:
  // Starts the reactors.
  static Status Create(EngineOptions options, std::unique_ptr<Engine>* out);

  // Calls Stop, unless it was called.
  virtual ~Engine() = default;

  // Listens on `host`:`port` ("" for all interfaces; port 0 picks one). The handler must outlive
  // the engine's Stop. Fails with a message that names address and reason. The code is kNotFound if
  // `host` is no address of this machine, or is a name that resolves only to loopback (/etc/hosts).
  virtual Status Listen(const std::string& host, int port, std::shared_ptr<Handler> handler,
                        int* bound_port) = 0;

  // This task has another name from now on, besides EngineOptions::name: peers may ask for it.
  virtual void AddName(const std::string& name) = 0;

  // A process that this one forks keeps no descriptor of the engine, and no socket of this local
  // port: that of a server beside the engine. Otherwise it would keep the ports of a task that has
  // died, and peers would not see its connections end.
  virtual void CloseInForks(int port) = 0;

  // A channel to the task `peer_name` at `address` ("host:port"). It connects at its first call,
  // and again at the next call after the connection was lost or could not be made. The connection
  // lives as long as the engine, so keep the channel. `second_port`: another port of the same host,
  // which is tried if the task is not at `address` (SecondDataPort); 0: none. `advice`: for the
  // log, after "the data port of … could not be reached for 5 s: …".
  virtual std::shared_ptr<Channel> Connect(const std::string& address, const std::string& peer_name,
                                           int second_port = 0, const std::string& advice = "") = 0;

  // Runs a short closure on one of the reactors, `delay_ms` from now; not after Stop.
  virtual void RunAfter(int delay_ms, std::function<void()> closure) = 0;

  virtual EngineStats stats() const = 0;

  // Ends every call with kCancelled, closes every connection and joins the reactors.
  virtual void Stop() = 0;
};

// While one lives, the frames that this thread sends are gathered. They are written when it is
// destroyed: one system call per connection instead of one per frame.
class TENSORWIRE_API SendBatch {
 public:
  SendBatch();
  ~SendBatch();
  void Flush();  // writes what has been gathered so far
  SendBatch(const SendBatch&) = delete;
  SendBatch& operator=(const SendBatch&) = delete;

 private:
  friend class Connection;
  SendBatch* outer_;
  std::vector<std::shared_ptr<Connection>> to_write_;
};

}  // namespace tensorwire::wire
