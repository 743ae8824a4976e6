#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "back_pressure.h"
#include "call_table.h"
#include "context.h"
#include "fd.h"
#include "frame_reader.h"
#include "liveness.h"
#include "loans.h"
#include "outbox.h"
#include "reactor.h"
#include "tensorwire/wire/engine.h"
#include "tls.h"
#include "tls_handshake.h"

namespace tensorwire::wire {

// The user of a connection: a channel, or a server's session. All on the reactor.
class FrameReceiver {
 public:
  virtual ~FrameReceiver() = default;
  // The head of a frame: says where its payload goes. `metadata` is valid during the call only.
  // An error closes the connection.
  virtual Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) = 0;
  // All of it is here; what is to outlive the call is moved out of `frame`.
  virtual Status OnFrameFromReactor(InFrame* frame) = 0;
  // Once; nothing comes after it.
  virtual void OnClosedFromReactor(const Status& why, InFrame* unfinished) = 0;
};

// One TCP connection that carries frames, and the reactor it belongs to for its whole life.
//
// Reading happens on the reactor. Writing happens in the thread of whoever is the writer (Outbox).
// A writer that finds the socket full, or that has written enough for a thread with other duties,
// passes the role to the reactor. So a lone small frame leaves in the thread that sent it, without
// a change of threads, while frames that come in a burst pile up behind a writer and leave
// together.
class Connection : public EventTarget, public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Context> context, Reactor* reactor, Fd fd, std::string address);

  // --- any thread ---
  void Send(std::unique_ptr<OutFrame> frame);
  // Sends a frame that says all by its kind and number.
  void Signal(FrameKind kind, uint64_t number = 0);
  // A frame of the greeting.
  void Greet(FrameKind kind, std::string_view metadata);
  // A reply or push; its payload is lent or held rather than sent along where that is better.
  std::unique_ptr<OutFrame> FrameWithPayload(FrameKind kind, uint64_t request_id, Message message);
  // True if so much waits to be sent that more should not be made.
  bool HasBacklog() const;
  // Leaves with the next frame that is sent, or a little later on its own.
  void SendLazily(std::unique_ptr<OutFrame> frame);

  uint64_t id() const { return id_; }
  bool closed() const { return state_.load(std::memory_order_acquire) == State::kClosed; }
  // "host:port" of the other end.
  const std::string& address() const { return address_; }
  // The other end as a person knows it: its task's name once it has said it, and its address.
  const std::string& peer() const { return peer_; }
  PeerCounters& counters() const { return *counters_; }
  const FrameLimits& limits() const { return context_->options.limits; }
  Reactor* reactor() const { return reactor_; }

  // --- on the reactor ---
  // Begins to read. `connecting`: the socket is not connected yet.
  Status OpenFromReactor(std::shared_ptr<FrameReceiver> receiver, bool connecting);
  void SetPeerFromReactor(const std::string& name);
  // The greeting must be over by then, or the connection is closed.
  void CloseAtFromReactor(int64_t time_ms, const Status& why);
  // The greeting is over: from now on frames may be large.
  void TrustFromReactor();
  // Binds a proof to the TLS session; "" without TLS.
  std::string_view TlsBindingFromReactor() const {
    reactor_->AssertIsCurrent();
    return tls_ != nullptr ? std::string_view(tls_->binding()) : std::string_view();
  }
  // Adds checksums to what is sent from now on.
  void SendCheckedFromReactor() {
    reactor_->AssertIsCurrent();
    outbox_.Check();
  }
  bool sends_checked() const { return outbox_.checked(); }
  // The peer reads our memory.
  void LendFromReactor() {
    reactor_->AssertIsCurrent();
    loans_.AllowLending();
  }
  // The peer fetches large payloads itself.
  void HoldFromReactor() {
    reactor_->AssertIsCurrent();
    loans_.AllowHolding();
  }
  void ReturnLoanFromReactor(uint64_t number) {
    reactor_->AssertIsCurrent();
    loans_.Return(number);
  }
  // Stops reading while the peer leaves much untaken.
  void PauseReadingWhenBlockedFromReactor() {
    reactor_->AssertIsCurrent();
    back_pressure_.Apply();
  }
  // The call whose reply's payload is arriving, if it is this request's: the rest is dropped.
  CallTable::Entry TakeArrivingCallFromReactor(uint64_t request_id);
  // Tells the peer why, and closes once it has been told or a moment has passed.
  void SayGoodbyeFromReactor(const std::string& why);
  void CloseFromReactor(const Status& reason);
  void OnEventsFromReactor(uint32_t epoll_events) override;
  void OnStopFromReactor() override;

 private:
  friend class SendBatch;

  // A connection's life, in this order; it may be closed at any time. MoveFromReactor knows which
  // steps there are.
  enum class State : uint8_t {
    kNew,         // not watched yet
    kConnecting,  // a client's: the socket is not connected yet
    kShaking,     // with TLS: its handshake
    kGreeting,    // the peer has not said who it is: its frames are small
    kOpen,
    kLeaving,  // said goodbye; what still comes in is ignored
    kClosed,
  };
  State state() const { return state_.load(std::memory_order_relaxed); }  // on the reactor
  void MoveFromReactor(State next);
  // True if what comes in is listened to.
  bool HearsFromReactor() const { return state() < State::kLeaving; }

  // Writing; by the writer only.
  void WriteAsWriter();
  enum class Written { kSome, kNothing, kFull, kBroken };
  Written WriteOnceAsWriter(size_t* finished, uint64_t* bytes);
  ssize_t SendAsWriter(const iovec* parts, int count);
  void PassToReactorAsWriter();
  void PassToReactor();

  // Reading.
  void ReadFromReactor();
  ssize_t ReceiveFromReactor(const iovec* parts, int count);
  Status ParseFromReactor();
  Status ParseFramesFromReactor();
  Status OnHeadFromReactor();
  Status OnFrameFromReactor();
  void OnEndFromReactor();
  bool PauseReadingFromReactor();
  void WatchPauseFromReactor();
  void ResumeReadingFromReactor();
  void RefuseFromReactor(const Status& why);
  void WarnFromReactor(const Status& why);

  void ShakeHandsFromReactor();
  void TickFromReactor();
  void FinishConnectFromReactor();
  void OnConnectedFromReactor();
  void UpdateEventsFromReactor();

  const std::shared_ptr<Context> context_;  // keeps reactor_ too
  Reactor* const reactor_;
  const Fd fd_;
  const uint64_t id_;
  const std::string address_;
  std::string peer_;
  std::shared_ptr<PeerCounters> counters_;
  // Null where payloads go as they are. Up here, where nothing is written that another thread
  // reads.
  std::unique_ptr<TlsStream> tls_;
  std::atomic<State> state_{State::kNew};  // written on the reactor

  Outbox outbox_;
  std::atomic<int64_t> inline_write_us_{0};
  Loans loans_;
  // The writer's: frames that TLS has taken and the socket not yet. So does the handshake count:
  // nobody writes before it is over.
  size_t unflushed_frames_ = 0;

  // The reactor's.
  std::shared_ptr<FrameReceiver> receiver_;
  TlsHandshake handshake_;
  FrameReader reader_;
  BackPressure back_pressure_;
  Liveness liveness_;
  bool wants_write_ = false;  // EPOLLOUT: the role of the writer, or the handshake, waits for it
  std::string goodbye_;       // what the peer was told
  Reactor::Timer tick_timer_;
  Reactor::Timer pause_timer_;
  Reactor::Timer close_timer_;  // of the greeting, or after a goodbye
};

}  // namespace tensorwire::wire
