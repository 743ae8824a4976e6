#include "connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "hello.h"
#include "lane.h"
#include "socket.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::wire {
namespace {

// Frames that follow an inline write within this time count as a burst: they are left to the
// reactor, which writes them together.
constexpr int64_t kBurstUs = 40;
// Limit on what one connection reads or writes before others have their turn.
constexpr uint64_t kTurnBytes = 8u << 20;
// A request for a range costs a round trip, so smaller payloads are sent. Encryption takes longer
// than that round trip for smaller ones already.
constexpr uint64_t kLeastHeldBytes = 8u << 20;
constexpr uint64_t kLeastHeldTlsBytes = 3u << 19;
// How often a writer looks for a frame that has been counted but not pushed yet.
constexpr int kMostLooks = 64;
constexpr int kGoodbyeMs = 1000;
constexpr size_t kGoodbyeBytes = 1000;
constexpr int kPauseMs = 5;
// A greeting is a few messages that follow each other at once.
constexpr int kIdleInGreetingMs = 500;
// Limits until the greeting is over; enough for its frames.
constexpr FrameLimits kStrangersLimits{4096, 0};

thread_local SendBatch* current_batch = nullptr;
thread_local int64_t arrived_us = 0;
std::atomic<uint64_t> next_connection_id{1};

}  // namespace

int64_t ArrivedUs() { return arrived_us; }

SendBatch::SendBatch() : outer_(current_batch) { current_batch = this; }

SendBatch::~SendBatch() {
  current_batch = outer_;
  Flush();
}

void SendBatch::Flush() {
  for (const auto& connection : std::exchange(to_write_, {})) connection->WriteAsWriter();
}

Connection::Connection(std::shared_ptr<Context> context, Reactor* reactor, Fd fd,
                       std::string address, bool is_lane)
    : context_(std::move(context)),
      reactor_(reactor),
      fd_(std::move(fd)),
      is_lane_(is_lane),
      id_(next_connection_id.fetch_add(1, std::memory_order_relaxed)),
      address_(std::move(address)),
      peer_(address_),
      counters_(std::make_shared<PeerCounters>()),
      outbox_(context_->options.checksum),
      loans_(context_->options.pool != nullptr ? context_->options.pool->shared_memory() : nullptr,
             &context_->held),
      back_pressure_(&outbox_),
      liveness_(context_->options.ping_after_ms, context_->options.silent_timeout_ms) {}

// --- sending ---------------------------------------------------------------------------------

std::unique_ptr<OutFrame> Connection::FrameWithPayload(FrameKind kind, uint64_t request_id,
                                                       Message message) {
  const uint64_t bytes = message.payload_bytes();
  uint16_t flags = 0;
  if (const uint16_t pieces = loans_.Lend(&message); pieces > 0) {
    flags = kLent;
    message.set_method(pieces);
    Count(counters_->lent_bytes, bytes);
  } else if (loans_.Hold(&message)) {
    flags = kHeld;
  }
  return std::make_unique<OutFrame>(kind, flags, request_id, std::move(message));
}

void Connection::HoldFromReactor() {
  reactor_->AssertIsCurrent();
  loans_.AllowHolding(tls_ != nullptr ? kLeastHeldTlsBytes : kLeastHeldBytes);
}

bool Connection::HasBacklog() const { return outbox_.HasBacklog(); }

void Connection::Send(std::unique_ptr<OutFrame> frame) {
  if (closed()) return;
  const bool small = frame->small();
  if (!outbox_.Push(std::move(frame))) return;  // there is a writer already

  if (current_batch != nullptr) {
    current_batch->to_write_.push_back(shared_from_this());
    return;
  }
  const int64_t now = NowUs();
  const int64_t last = inline_write_us_.exchange(now, std::memory_order_relaxed);
  if (!small || now - last < kBurstUs) {
    PassToReactor();
    return;
  }
  WriteAsWriter();
}

void Connection::Signal(FrameKind kind, uint64_t number) {
  Send(std::make_unique<OutFrame>(kind, 0, number, Message()));
}

void Connection::Greet(FrameKind kind, std::string_view metadata) {
  Message message;
  message.AppendMetadata(metadata);
  Send(std::make_unique<OutFrame>(kind, 0, 0, std::move(message)));
}

void Connection::SendLazily(std::unique_ptr<OutFrame> frame) {
  if (closed() || !outbox_.PushLazily(std::move(frame))) return;
  reactor_->PostLazily([self = shared_from_this()] {
    for (auto& frame : self->outbox_.TakeLazy()) self->Send(std::move(frame));
  });
}

void Connection::PassToReactor() {
  reactor_->Post([self = shared_from_this()] { self->WriteAsWriter(); });
}

void Connection::PassToReactorAsWriter() {
  outbox_.PauseAsWriter();
  PassToReactor();
}

void Connection::WriteAsWriter() {
  const bool on_reactor = reactor_->IsCurrentThread();
  outbox_.ResumeAsWriter();
  uint64_t turn_bytes = 0;
  for (int looks = 0;;) {
    if (closed()) return;  // keeps the role: the outbox frees the frames that are left
    size_t finished = 0;
    switch (WriteOnceAsWriter(&finished, &turn_bytes)) {
      case Written::kSome:
        break;
      case Written::kNothing:
        // Another thread has counted a frame but not finished pushing it. That takes a few
        // instructions, unless the thread was preempted; then other connections get their turn.
        if (++looks == kMostLooks) {
          PassToReactorAsWriter();
          return;
        }
        std::this_thread::yield();
        continue;
      case Written::kFull:
        // The count does not reach zero, because the rest is still counted. So this thread is still
        // the writer, and may pass the role.
        outbox_.FinishAsWriter(finished);
        if (on_reactor) {
          outbox_.PauseAsWriter();
          wants_write_ = true;
          UpdateEventsFromReactor();
        } else {
          PassToReactorAsWriter();
        }
        return;
      case Written::kBroken: {
        const int error = errno;
        reactor_->Post([self = shared_from_this(), error] {
          // The peer may have sent a goodbye before it closed: read it first.
          if (error == EPIPE || error == ECONNRESET) self->ReadFromReactor();
          // The greeting is sent before the connect has finished; so this send may be the call that
          // reports that no process listens.
          const char* const what = error == ECONNREFUSED ? "" : "sending failed: ";
          self->CloseFromReactor(Status(Code::kUnavailable, what + ErrorText(error)));
        });
        return;
      }
    }
    if (!outbox_.FinishAsWriter(finished)) return;
    if (turn_bytes > (on_reactor ? kTurnBytes : kSmallFrameBytes)) {
      PassToReactorAsWriter();
      return;
    }
  }
}

Connection::Written Connection::WriteOnceAsWriter(size_t* finished, uint64_t* bytes) {
  Outbox::Gathered gathered;
  outbox_.GatherAsWriter(&gathered);
  if (gathered.count == 0 && unflushed_frames_ == 0) return Written::kNothing;

  const ssize_t result = SendAsWriter(gathered.parts.data(), gathered.count);
  if (result < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? Written::kFull : Written::kBroken;
  }
  const auto sent = static_cast<uint64_t>(result);
  *finished = outbox_.AdvanceAsWriter(gathered, sent);
  *bytes += sent;
  Count(counters_->tx_bytes, sent);
  Count(counters_->tx_syscalls);
  Count(counters_->tx_frames, *finished);
  if (tls_ != nullptr) {
    unflushed_frames_ += std::exchange(*finished, 0);
    if (!tls_->Flushed()) return Written::kFull;
    *finished = std::exchange(unflushed_frames_, 0);
  }
  return sent < gathered.bytes ? Written::kFull : Written::kSome;
}

ssize_t Connection::SendAsWriter(const iovec* parts, int count) {
  if (tls_ != nullptr) return tls_->Send(parts, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(count);
  std::optional<DescriptorRoom> room;
  if (pass_ >= 0) {
    room.emplace(&message);
    PutDescriptor(pass_, &message);
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent > 0) pass_ = -1;
  return sent;
}

// --- opening and closing -----------------------------------------------------------------------

void Connection::MoveFromReactor(State next) {
  reactor_->AssertIsCurrent();
  [[maybe_unused]] const auto may_follow = [](State from, State to) {
    switch (to) {
      case State::kNew:
        return false;
      case State::kConnecting:
        return from == State::kNew;
      case State::kShaking:
        return from == State::kNew || from == State::kConnecting;
      case State::kGreeting:
        return from < State::kGreeting;
      case State::kOpen:
        return from == State::kGreeting;
      case State::kLeaving:
        return from == State::kGreeting || from == State::kOpen;
      case State::kClosed:
        return from != State::kClosed;
    }
    return false;
  };
  assert(may_follow(state(), next));
  state_.store(next, std::memory_order_release);
}

Status Connection::OpenFromReactor(std::shared_ptr<FrameReceiver> receiver, bool connecting) {
  receiver_ = std::move(receiver);
  liveness_.Heard(NowMs());
  if (context_->tls != nullptr && !is_lane_) {  // what stays in the kernel needs no encryption
    tls_ = std::make_unique<TlsStream>(context_->tls.get(), fd_.get(), /*client=*/connecting);
    unflushed_frames_ = 1;
    outbox_.Reserve();
  }
  const uint32_t events = connecting ? EPOLLOUT : EPOLLIN;
  if (Status s = reactor_->WatchFromReactor(fd_.get(), events, shared_from_this()); !s.ok()) {
    MoveFromReactor(State::kClosed);
    receiver_.reset();
    return s;
  }
  if (connecting) {
    MoveFromReactor(State::kConnecting);
  } else {
    OnConnectedFromReactor();
  }
  TickFromReactor();
  return Status();
}

void Connection::OnConnectedFromReactor() {
  if (!is_lane_) TuneStream(fd_.get(), context_->options.silent_timeout_ms);  // now it has a peer
  MoveFromReactor(tls_ != nullptr ? State::kShaking : State::kGreeting);
}

void Connection::SetPeerFromReactor(const std::string& name) {
  reactor_->AssertIsCurrent();
  peer_ = name + " (" + address_ + ")";
  counters_ = context_->CountersFor(name);
  Count(counters_->connects);
}

void Connection::TrustFromReactor() {
  MoveFromReactor(State::kOpen);
  stranger_.reset();
  reactor_->CancelFromReactor(close_timer_);
}

void Connection::CloseAtFromReactor(int64_t time_ms, const Status& why) {
  reactor_->CancelFromReactor(close_timer_);
  close_timer_ = reactor_->AtFromReactor(time_ms, [weak = weak_from_this(), why] {
    if (auto self = weak.lock()) self->CloseFromReactor(why);
  });
}

void Connection::SayGoodbyeFromReactor(const std::string& why) {
  if (!HearsFromReactor()) return;
  MoveFromReactor(State::kLeaving);
  goodbye_ = why;
  Message message;
  message.AppendMetadata(std::string_view(why).substr(0, kGoodbyeBytes));
  Send(std::make_unique<OutFrame>(FrameKind::kGoodbye, 0, 0, std::move(message)));
  CloseAtFromReactor(NowMs() + kGoodbyeMs, Status(Code::kUnavailable, why));
}

void Connection::CloseFromReactor(const Status& reason) {
  reactor_->AssertIsCurrent();
  if (closed()) return;
  // If we have said goodbye, that is the reason, however the connection ends.
  const Status why = !goodbye_.empty() && reason.code() != Code::kCancelled
                         ? Status(Code::kFailedPrecondition, goodbye_)
                         : reason;
  MoveFromReactor(State::kClosed);
  stranger_.reset();
  // A writer in another thread gets EPIPE from now on. The descriptor stays open as long as this
  // object lives, so that no thread writes to a reused descriptor.
  ::shutdown(fd_.get(), SHUT_RDWR);
  reactor_->UnwatchFromReactor(fd_.get(), this);
  for (const auto& timer : {tick_timer_, pause_timer_, close_timer_}) {
    reactor_->CancelFromReactor(timer);
  }
  loans_.ReturnAll();
  if (auto receiver = std::move(receiver_)) {
    receiver->OnClosedFromReactor(why, reader_.unfinished());
  }
}

void Connection::OnStopFromReactor() { CloseFromReactor(EngineStopped()); }

void Connection::TickFromReactor() {
  if (closed()) return;
  const int64_t now = NowMs();
  // While connecting, the peer does not count as silent: the time limit of the greeting applies
  // (CloseAtFromReactor).
  if (state() == State::kConnecting) liveness_.Heard(now);
  if (now < context_->crowded_until_ms && IdlesInGreetingFromReactor(now)) {
    CloseFromReactor(
        Status(Code::kUnavailable, "it idles in the greeting, and others wait for its place"));
    return;
  }
  switch (liveness_.Look(now)) {
    case Liveness::Verdict::kAlive:
      break;
    case Liveness::Verdict::kPing:
      Signal(FrameKind::kPing);
      break;
    case Liveness::Verdict::kSilent:
      CloseFromReactor(
          Status(Code::kUnavailable, peer_ + " has been silent for " +
                                         std::to_string(liveness_.silent_ms(now) / 1000) + " s"));
      return;
  }
  tick_timer_ = reactor_->AtFromReactor(liveness_.next_look_ms(), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->TickFromReactor();
  });
}

bool Connection::IdlesInGreetingFromReactor(int64_t now_ms) const {
  if (!stranger_ || liveness_.silent_ms(now_ms) < kIdleInGreetingMs) return false;
  char next = 0;  // what has come and was not read yet
  return ::recv(fd_.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
         (errno == EAGAIN || errno == EWOULDBLOCK);
}

// --- events ------------------------------------------------------------------------------------

void Connection::UpdateEventsFromReactor() {
  if (closed()) return;
  const uint32_t events = (back_pressure_.paused() ? 0u : EPOLLIN) | (wants_write_ ? EPOLLOUT : 0u);
  const Status status = reactor_->ModifyFromReactor(fd_.get(), events, this);
  if (status.ok()) return;
  // The connection might never get an event again, so it is closed. Not in this call, because the
  // caller still uses the connection.
  reactor_->Post([self = shared_from_this(), status] { self->CloseFromReactor(status); });
}

void Connection::OnEventsFromReactor(uint32_t epoll_events) {
  reactor_->AssertIsCurrent();
  switch (state()) {
    case State::kConnecting:
      FinishConnectFromReactor();
      return;
    case State::kShaking:
      ShakeHandsFromReactor();
      return;
    default:
      break;
  }
  if ((epoll_events & EPOLLOUT) != 0 && wants_write_) {
    // The socket was full and the peer has taken some bytes. That is a sign of life, and the only
    // one while the peer receives one long frame and sends nothing.
    liveness_.Heard(NowMs());
    wants_write_ = false;
    WriteAsWriter();
    ResumeReadingFromReactor();
    if (!wants_write_) UpdateEventsFromReactor();
  }
  if ((epoll_events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) ReadFromReactor();
}

void Connection::FinishConnectFromReactor() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    CloseFromReactor(Status(Code::kUnavailable, ErrorText(error)));
    return;
  }
  if (OwnAddress(fd_.get()) == PeerAddress(fd_.get())) {
    // No process listens at that port, and the kernel has given it to this end of the connection.
    CloseFromReactor(Status(Code::kUnavailable, ErrorText(ECONNREFUSED)));
    return;
  }
  OnConnectedFromReactor();
  UpdateEventsFromReactor();
  if (state() == State::kShaking) ShakeHandsFromReactor();
}

void Connection::ShakeHandsFromReactor() {
  liveness_.Heard(NowMs());
  Status why;
  switch (handshake_.Step(fd_.get(), tls_.get(), &why)) {
    case TlsHandshake::Outcome::kGoesOn:
      wants_write_ = !tls_->Flushed();
      UpdateEventsFromReactor();
      return;
    case TlsHandshake::Outcome::kLost:
      OnEndFromReactor();
      return;
    case TlsHandshake::Outcome::kRefused:
      WarnFromReactor(why);
      CloseFromReactor(why);
      return;
    case TlsHandshake::Outcome::kDone:
      MoveFromReactor(State::kGreeting);
      wants_write_ = false;
      UpdateEventsFromReactor();
      WriteAsWriter();
      ReadFromReactor();
  }
}

// --- reading -----------------------------------------------------------------------------------

bool Connection::PauseReadingFromReactor() {
  if (!back_pressure_.ShouldPause()) return false;
  if (back_pressure_.Pause()) {
    UpdateEventsFromReactor();
    WatchPauseFromReactor();
  }
  return true;
}

void Connection::WatchPauseFromReactor() {
  // A timer, because the queue may drain without an EPOLLOUT event for this connection.
  reactor_->CancelFromReactor(pause_timer_);  // set by an earlier pause, or by this one
  pause_timer_ = reactor_->AtFromReactor(NowMs() + kPauseMs, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr || !self->back_pressure_.paused()) return;
    if (self->back_pressure_.ShouldPause()) {
      self->WatchPauseFromReactor();
    } else {
      self->ResumeReadingFromReactor();
    }
  });
}

void Connection::ResumeReadingFromReactor() {
  if (closed() || !back_pressure_.Resume()) return;
  UpdateEventsFromReactor();
  // First parse what has been read already.
  arrived_us = NowUs();
  FrameReader::Room room;
  reader_.MakeRoom(reactor_->scratch(), Reactor::kScratchBytes, &room);
  reader_.Take(room, 0);
  if (Status s = ParseFromReactor(); !s.ok()) {
    RefuseFromReactor(s);
  } else if (!back_pressure_.paused()) {
    ReadFromReactor();
  }
}

void Connection::WarnFromReactor(const Status& why) {
  context_->WarnAboutPeer(address_, "closed the connection with " + peer_ + ": " + why.message());
}

void Connection::RefuseFromReactor(const Status& why) {
  WarnFromReactor(why);
  SayGoodbyeFromReactor(why.message());
}

void Connection::ReadFromReactor() {
  reactor_->AssertIsCurrent();
  if (back_pressure_.paused()) {
    ResumeReadingFromReactor();
    return;
  }
  uint64_t turn_bytes = 0;
  while (turn_bytes < kTurnBytes && !closed()) {
    if (PauseReadingFromReactor()) return;
    FrameReader::Room room;
    reader_.MakeRoom(reactor_->scratch(), Reactor::kScratchBytes, &room);
    const ssize_t result = ReceiveFromReactor(room.parts.data(), room.count);
    if (result < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      CloseFromReactor(Status(Code::kUnavailable,
                              "the connection to " + peer_ + " was lost: " + ErrorText(errno)));
      return;
    }
    if (result == 0) {
      OnEndFromReactor();
      return;
    }
    const auto got = static_cast<size_t>(result);
    arrived_us = NowUs();
    liveness_.Heard(arrived_us / 1000);
    Count(counters_->rx_bytes, got);
    Count(counters_->rx_syscalls);
    turn_bytes += got;
    reactor_->CountReadFromReactor(got);
    if (!HearsFromReactor()) continue;

    reader_.Take(room, got);
    if (Status s = ParseFromReactor(); !s.ok()) {
      RefuseFromReactor(s);
      return;
    }
    if (back_pressure_.paused()) return;
    if (got < room.bytes && (tls_ == nullptr || !tls_->HasMore())) {
      return;  // the socket is empty, or nearly
    }
  }
  if (closed()) return;
  if (tls_ != nullptr && tls_->HasMore()) {  // in TLS's buffer, which epoll does not see
    reactor_->Post([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->ReadFromReactor();
    });
  }
}

ssize_t Connection::ReceiveFromReactor(const iovec* parts, int count) {
  if (tls_ != nullptr) return tls_->Receive(parts, count);
  if (is_lane_ && state() == State::kGreeting) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<size_t>(count);
    const DescriptorRoom room(&message);
    const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    if (Fd fd = got > 0 ? TakeDescriptor(&message) : Fd(); fd.valid()) passed_ = std::move(fd);
    return got;
  }
  // recv is cheaper than readv, and one buffer is enough for a small frame.
  return count == 1 ? ::recv(fd_.get(), parts->iov_base, parts->iov_len, 0)
                    : ::readv(fd_.get(), parts, count);
}

void Connection::OnEndFromReactor() {
  const std::string foreign = DescribeForeign(reader_.stashed());
  if (!foreign.empty()) context_->WarnAboutPeer(address_, peer_ + ": " + foreign);
  CloseFromReactor(foreign.empty()
                       ? Status(Code::kUnavailable, peer_ + " closed the connection: Socket closed")
                       : Status(Code::kFailedPrecondition, foreign));
}

Status Connection::ParseFromReactor() {
  Status status = ParseFramesFromReactor();
  if (status.ok() && HearsFromReactor()) {
    reader_.Stash();
  } else {
    reader_.Discard();
  }
  return status;
}

Status Connection::ParseFramesFromReactor() {
  Status why;
  while (reader_.has_more() && HearsFromReactor()) {
    if (reader_.at_head() && PauseReadingFromReactor()) break;
    switch (reader_.Next(state() == State::kOpen ? limits() : kStrangersLimits, &why)) {
      case FrameReader::Found::kNothing:
        return Status();
      case FrameReader::Found::kHead:
        if (Status s = OnHeadFromReactor(); !s.ok()) return s;
        break;
      case FrameReader::Found::kFrame:
        if (Status s = OnFrameFromReactor(); !s.ok()) return s;
        break;
      case FrameReader::Found::kBroken:
        if (why.code() == Code::kDataLoss) Count(counters_->damaged_frames);
        return why;
    }
  }
  return Status();
}

Status Connection::OnHeadFromReactor() {
  Count(counters_->rx_frames);
  InFrame& frame = reader_.frame();
  switch (frame.header.kind) {
    case FrameKind::kPing:
      // With a backlog no pong is needed: the queued frames themselves are a sign of life. And
      // before the greeting nothing is queued for a peer that may read nothing.
      if (state() == State::kOpen && !HasBacklog()) Signal(FrameKind::kPong);
      break;
    case FrameKind::kPong:
      break;
    case FrameKind::kGoodbye:
      CloseFromReactor(Status(Code::kFailedPrecondition,
                              peer_ + " refused: " + Printable(reader_.metadata(), kGoodbyeBytes)));
      return Status();
    default:
      if (Status s = receiver_->OnHeadFromReactor(reader_.metadata(), &frame); !s.ok()) return s;
  }
  if (!closed()) reader_.ExpectPayload();
  return Status();
}

Status Connection::OnFrameFromReactor() {
  InFrame& frame = reader_.frame();
  if (reader_.is_damaged()) {
    Count(counters_->damaged_frames);
    frame.status = FrameReader::Damaged(peer_ + ": a payload of " +
                                        std::to_string(frame.header.payload_bytes) + " bytes");
    context_->WarnAboutPeer(address_, frame.status.message());
  }
  Status status;
  if (frame.header.kind != FrameKind::kPing && frame.header.kind != FrameKind::kPong) {
    status = receiver_->OnFrameFromReactor(&frame);
  }
  reader_.Forget();
  return status;
}

CallTable::Entry Connection::TakeArrivingCallFromReactor(uint64_t request_id) {
  reactor_->AssertIsCurrent();
  InFrame* const frame = reader_.unfinished();
  if (frame == nullptr || frame->entry.call == nullptr || frame->header.kind == FrameKind::kPush ||
      frame->header.request_id != request_id) {
    return {};
  }
  frame->payload = InFrame::Payload::kDiscard;
  return std::move(frame->entry);
}

}  // namespace tensorwire::wire
