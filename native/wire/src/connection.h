#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
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

// The user of a connection: a channel, or a server's session. All methods run on the reactor.
class FrameReceiver {
 public:
  virtual ~FrameReceiver() = default;
  // The head of a frame has arrived; decides where its payload goes. `metadata` is valid during the
  // call only. An error closes the connection.
  virtual Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) = 0;
  // The whole frame has arrived. The callee moves out of `frame` what must outlive the call.
  virtual Status OnFrameFromReactor(InFrame* frame) = 0;
  // Called once, as the last call.
  virtual void OnClosedFromReactor(const Status& why, InFrame* unfinished) = 0;
};

// One connection that carries frames, by TCP or over a lane (lane.h), and the reactor it belongs to
// for its whole life.
//
// Reading happens on the reactor. Writing happens in the thread that is the writer (Outbox). A
// writer that finds the socket full, or that has written enough for a thread with other duties,
// passes the role to the reactor. So a single small frame leaves in the thread that sent it,
// without a thread switch, while the frames of a burst queue up behind a writer and leave together.
class Connection : public EventTarget, public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Context> context, Reactor* reactor, Fd fd, std::string address,
             bool is_lane = false);

  // --- any thread ---
  void Send(std::unique_ptr<OutFrame> frame);
  // Sends a frame that has only a kind and a number.
  void Signal(FrameKind kind, uint64_t number = 0);
  // A frame of the greeting.
  void Greet(FrameKind kind, std::string_view metadata);
  // A reply or push; its payload is lent or held instead of sent where that is better.
  std::unique_ptr<OutFrame> FrameWithPayload(FrameKind kind, uint64_t request_id, Message message);
  // True if so much waits to be sent that the caller should not produce more.
  bool HasBacklog() const;
  // The frame leaves with the next frame that is sent, or a little later on its own.
  void SendLazily(std::unique_ptr<OutFrame> frame);

  uint64_t id() const { return id_; }
  bool closed() const { return state_.load(std::memory_order_acquire) == State::kClosed; }
  // "host:port" of the other end.
  const std::string& address() const { return address_; }
  // The other end for messages: its address, and its task's name after the greeting.
  const std::string& peer() const { return peer_; }
  PeerCounters& counters() const { return *counters_; }
  const FrameLimits& limits() const { return context_->options.limits; }
  Reactor* reactor() const { return reactor_; }
  bool is_lane() const { return is_lane_; }

  // An accepted connection that has not finished its greeting counts. Called before it is opened.
  void BeStranger() { stranger_.emplace(&context_->strangers); }

  // --- on the reactor ---
  // Starts reading. `connecting`: the socket is not connected yet.
  Status OpenFromReactor(std::shared_ptr<FrameReceiver> receiver, bool connecting);
  void SetPeerFromReactor(const std::string& name);
  // From now on `receiver` is told of frames and of the end.
  void HandOverFromReactor(std::shared_ptr<FrameReceiver> receiver) {
    reactor_->AssertIsCurrent();
    receiver_ = std::move(receiver);
  }
  // Over a lane: the next bytes that are sent are accompanied by the descriptor, which must stay
  // open until then.
  void PassFromReactor(int fd) {
    reactor_->AssertIsCurrent();
    pass_ = fd;
  }
  // Over a lane: the descriptor that the peer has passed in its greeting.
  Fd TakePassedFromReactor() {
    reactor_->AssertIsCurrent();
    return std::move(passed_);
  }
  // Closes the connection at this time with `why`, unless the greeting is over by then.
  void CloseAtFromReactor(int64_t time_ms, const Status& why);
  // The greeting is over: from now on frames may be large.
  void TrustFromReactor();
  // What binds a proof to the TLS session; "" without TLS.
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
  // The peer has opened our memory: payloads may be lent.
  void LendFromReactor() {
    reactor_->AssertIsCurrent();
    loans_.AllowLending();
  }
  // The peer can fetch large payloads: they may be held.
  void HoldFromReactor();
  void ReturnLoanFromReactor(uint64_t number) {
    reactor_->AssertIsCurrent();
    loans_.Return(number);
  }
  // From now on, pauses reading while the outbox has a backlog.
  void PauseReadingWhenBlockedFromReactor() {
    reactor_->AssertIsCurrent();
    back_pressure_.Apply();
  }
  // Takes the call whose reply's payload is arriving, if it belongs to this request. The rest of
  // the payload is dropped.
  CallTable::Entry TakeArrivingCallFromReactor(uint64_t request_id);
  // Sends the peer a goodbye with the reason. Closes the connection when the peer closes it, or
  // after kGoodbyeMs.
  void SayGoodbyeFromReactor(const std::string& why);
  void CloseFromReactor(const Status& reason);
  void OnEventsFromReactor(uint32_t epoll_events) override;
  void OnStopFromReactor() override;

 private:
  friend class SendBatch;

  // A connection passes through these states in this order; it may be closed at any time.
  // MoveFromReactor checks which transitions are allowed.
  enum class State : uint8_t {
    kNew,         // not watched yet
    kConnecting,  // a client's: the socket is not connected yet
    kShaking,     // with TLS: its handshake
    kGreeting,    // the peer has not said who it is: only small frames are accepted
    kOpen,
    kLeaving,  // goodbye was sent; incoming frames are ignored
    kClosed,
  };
  State state() const { return state_.load(std::memory_order_relaxed); }  // on the reactor
  void MoveFromReactor(State next);
  // True if incoming frames are handled.
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
  // True if a peer that has not finished its greeting keeps this end waiting.
  bool IdlesInGreetingFromReactor(int64_t now_ms) const;
  void TickFromReactor();
  void FinishConnectFromReactor();
  void OnConnectedFromReactor();
  void UpdateEventsFromReactor();

  const std::shared_ptr<Context> context_;  // keeps reactor_ too
  Reactor* const reactor_;
  const Fd fd_;
  const bool is_lane_;
  const uint64_t id_;
  const std::string address_;
  std::string peer_;
  std::shared_ptr<PeerCounters> counters_;
  // Null without TLS. Declared up here, so that it shares no cache line with members that are
  // written often.
  std::unique_ptr<TlsStream> tls_;
  std::atomic<State> state_{State::kNew};  // written on the reactor

  Outbox outbox_;
  std::atomic<int64_t> inline_write_us_{0};
  Loans loans_;
  // The writer's: the number of frames that TLS has taken and the socket has not yet. The handshake
  // counts as one, so that no frame is written before it is over.
  size_t unflushed_frames_ = 0;
  int pass_ = -1;

  // The reactor's.
  std::optional<Counted> stranger_;
  std::shared_ptr<FrameReceiver> receiver_;
  TlsHandshake handshake_;
  FrameReader reader_;
  Fd passed_;
  BackPressure back_pressure_;
  Liveness liveness_;
  bool wants_write_ = false;  // EPOLLOUT: the writer, or the handshake, waits for it
  std::string goodbye_;       // the reason that was sent to the peer
  Reactor::Timer tick_timer_;
  Reactor::Timer pause_timer_;
  Reactor::Timer close_timer_;  // for the greeting, or after a goodbye
};

}  // namespace tensorwire::wire
