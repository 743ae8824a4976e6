#pragma once

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

// The engine in four nouns: an Engine owns the reactors; a Channel is a client's way to one peer,
// through which it starts Calls; a Handler is a server's answer to the Requests that come in.
//
// Threads: methods whose name ends in FromReactor run on a reactor and must neither block nor take
// long. Everything else may be called from any thread.

namespace tensorwire::wire {

class Connection;

// The time, as in NowUs, at which the bytes were read that the calling reactor handles.
TENSORWIRE_API int64_t ArrivedUs();

// A request in flight, as its asker sees it. The engine owns it from Channel::Start to Done.
class Call {
 public:
  virtual ~Call() = default;

  // The reply's head is here. Names the memory that its payload is to be read into: buffers that
  // add up to `payload_bytes` and stay valid until Done. An error status drops the payload and
  // ends the call with that status.
  virtual Status PrepareFromReactor(std::string_view metadata, uint64_t payload_bytes,
                                    std::vector<MutableBuffer>* into) = 0;

  // Exactly once: with the reply complete, or with the reason why there is none. The engine
  // deletes the call afterwards.
  virtual void Done(const Status& status) = 0;
};

// The thread for work that a reactor brought in. Waking a thread costs more than little work does,
// and much work keeps the reactor from its sockets.
enum class RunOn {
  kExecutor,          // it may take long
  kReactorWhenAlone,  // it never blocks: on the reactor when nothing else arrived with it
  kReactor,           // it never blocks and takes a microsecond or two
};

struct CallOptions {
  int64_t deadline_ms = 0;  // from now; 0: none of its own (a lost connection still ends it)
  RunOn done_on = RunOn::kExecutor;
};

// Receives what a server sends its client unasked, and learns when no more can come.
class PushReceiver {
 public:
  virtual ~PushReceiver() = default;

  // The head of a push is here: the call by which the rest of it is received, or null to drop it.
  virtual std::unique_ptr<Call> BeginFromReactor(uint64_t what) = 0;

  // The connection is gone, and what the server knew about this client with it.
  virtual void OnLost(const Status& why) = 0;
};

class TENSORWIRE_API Channel {
 public:
  virtual ~Channel() = default;

  // Before the first call.
  virtual void SetPushReceiver(std::shared_ptr<PushReceiver> receiver) = 0;

  // Runs a short closure on this channel's reactor, `delay_ms` from now.
  virtual void RunAfter(int delay_ms, std::function<void()> closure) = 0;

  // Sends a request. Connects first where that is needed; a call to a peer that refuses ends at
  // once with kUnavailable, so whoever wants to wait for a peer calls again. Returns the id by
  // which the call can be cancelled.
  virtual uint64_t Start(Message request, std::unique_ptr<Call> call,
                         const CallOptions& options) = 0;

  // Sends a request to which there is no reply. `lazy`: it may wait some milliseconds for another
  // frame to travel with. Dropped when the peer cannot be reached.
  virtual void Notify(Message request, bool lazy) = 0;

  // Ends the call with kCancelled, if it has not ended, and tells the peer.
  virtual void Cancel(uint64_t call_id) = 0;

  // Tells the peer that the call is cancelled, and ends it with what the peer says to that: the
  // call may have failed there already, and its error may be on its way. With kCancelled at once
  // where nothing has been sent, and when the peer says nothing for `patience_ms`.
  virtual void CancelPatiently(uint64_t call_id, int64_t patience_ms) = 0;
};

// A server's way to send a client what it has not asked for, or not asked for yet.
class TENSORWIRE_API Pusher {
 public:
  Pusher() = default;
  explicit Pusher(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  // True if the client takes what it is sent. A client that has gone does not, nor does one that
  // lets much pile up: that would fill this task's memory.
  bool IsTaken() const;
  // False when the client has gone.
  bool Push(uint64_t what, Message message) const;
  uint64_t connection_id() const;

 private:
  std::shared_ptr<Connection> connection_;
};

// The bytes that the unanswered requests of one connection hold. It lives until its owner has let
// go and they have: one atomic operation for each of a request's two ends, where a shared pointer
// to the number would take two.
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

// A request's share of its connection's EngineOptions::unanswered_bytes, until it is answered or
// goes. A copy holds as much again. For who keeps a request's id and not the request, too.
class Claim {
 public:
  Claim() = default;
  Claim(HeldBytes* held, uint64_t bytes) : held_(held), bytes_(bytes) {
    if (held_ != nullptr) held_->Add(bytes_);
  }
  Claim(const Claim& other) : Claim(other.held_, other.bytes_) {}
  Claim(Claim&& other) noexcept
      : held_(std::exchange(other.held_, nullptr)), bytes_(other.bytes_) {}
  Claim& operator=(Claim other) noexcept {
    std::swap(held_, other.held_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Claim() { Release(); }

  void Release() {
    if (held_ != nullptr) std::exchange(held_, nullptr)->Sub(bytes_);
  }

 private:
  HeldBytes* held_ = nullptr;
  uint64_t bytes_ = 0;  // not 0 where there is a claim
};

// A request that came in. Answer it with exactly one of Reply and Fail, from any thread, now or
// later; an answer to a peer that has gone is dropped.
class TENSORWIRE_API Request {
 public:
  uint16_t method = 0;
  bool one_way = false;
  uint64_t id = 0;
  std::string metadata;
  std::string payload;
  // The payload's place, if the handler chose one (Handler::Place).
  std::shared_ptr<char> placed;

  void Reply(Message reply) const;
  void Fail(const Status& status) const;

  // Tells the connections of this server apart, for OnCancel and OnDisconnect.
  uint64_t connection_id() const;
  const std::string& peer() const;
  Pusher pusher() const { return Pusher(connection); }

  std::shared_ptr<Connection> connection;
  mutable Claim claim;  // let go of by the answer
};

class Handler {
 public:
  virtual ~Handler() = default;

  // The thread in which this request is handled.
  virtual RunOn HandleOn(const Request& request) const = 0;

  // The head of a request with a payload is here. Returns memory of that size for it to be read
  // into, which becomes Request::placed, or null: then it grows in Request::payload as it arrives,
  // so that a peer cannot make this task allocate by announcing much. A request that is lost in
  // the middle lets go of the memory.
  virtual std::shared_ptr<char> PlaceFromReactor(uint16_t /*method*/, uint64_t /*payload_bytes*/) {
    return nullptr;
  }

  // Must not wait: requests that came in together are handled one after the other.
  virtual void Handle(Request request) = 0;

  // The peer no longer wants the answer to this request. Must not wait. Before any request that the
  // peer sent later is handled, so that it does not meet what it was told had ended: on the
  // reactor, or, as never before Handle has returned for it, on what handled it. Perhaps after the
  // answer.
  virtual void OnCancel(uint64_t connection_id, uint64_t request_id) = 0;

  // A connection is gone, and its requests with it. On the executor, when Handle has returned for
  // all of them. What is answered now is dropped.
  virtual void OnDisconnect(uint64_t connection_id) = 0;
};

class TENSORWIRE_API Engine {
 public:
  // Starts the reactors.
  static Status Create(EngineOptions options, std::unique_ptr<Engine>* out);

  // Stops, if that has not been done.
  virtual ~Engine() = default;

  // Listens on `host`:`port` ("" for all interfaces; port 0 picks one). The handler must outlive
  // the engine's Stop. Fails with a message that names address and reason; with kNotFound where
  // `host` is no address of this machine, or a name that only /etc/hosts makes one of loopback.
  virtual Status Listen(const std::string& host, int port, std::shared_ptr<Handler> handler,
                        int* bound_port) = 0;

  // A way to the task `peer_name` at `address` ("host:port"); it connects when first used, and
  // again at the next call after the connection was lost or could not be made. The connection lives
  // as long as the engine, so keep the channel. `second_port`: another one of the same host, which
  // is tried when the task is not at `address` (SecondDataPort); 0: there is none.
  virtual std::shared_ptr<Channel> Connect(const std::string& address, const std::string& peer_name,
                                           int second_port = 0) = 0;

  // Runs a short closure on one of the reactors, `delay_ms` from now; not after Stop.
  virtual void RunAfter(int delay_ms, std::function<void()> closure) = 0;

  virtual EngineStats stats() const = 0;

  // Ends every call with kCancelled, closes every connection and joins the reactors.
  virtual void Stop() = 0;
};

// While one lives, what this thread sends is gathered, and goes out when it ends: one system call
// for a connection instead of one for a frame.
class TENSORWIRE_API SendBatch {
 public:
  SendBatch();
  ~SendBatch();
  SendBatch(const SendBatch&) = delete;
  SendBatch& operator=(const SendBatch&) = delete;

 private:
  friend class Connection;
  SendBatch* outer_;
  std::vector<std::shared_ptr<Connection>> to_write_;
};

}  // namespace tensorwire::wire
