#include "connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "crc32c.h"
#include "socket.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::wire {
namespace {

// A frame up to this size goes ahead of larger ones, and may leave in the thread that sends it.
constexpr uint64_t kSmallBytes = 64u << 10;
// After an inline write, frames that follow within this time are taken for a burst and left to the
// reactor, which writes them together.
constexpr int64_t kBurstUs = 40;
// How much one connection may read or write before others have their turn.
constexpr uint64_t kTurnBytes = 8u << 20;
// So often a writer looks for a frame that has been counted and is not there yet.
constexpr int kMostLooks = 64;
constexpr int kMaxIov = 512;
constexpr uint64_t kGatherBytes = 4u << 20;  // enough for one system call
constexpr int kTickMs = 1000;
constexpr int kShortestTickMs = 10;
constexpr int kGoodbyeMs = 1000;
constexpr int kPauseMs = 5;
// Before the greeting is over: enough for its frames.
constexpr FrameLimits kStrangersLimits{4096, 0};
constexpr size_t kForeignBytes = 12;  // enough for DescribeForeign to tell
// So much unsent to a peer that takes none: then what it asks for waits in its own socket, and what
// it has not asked for is not made to wait here.
constexpr size_t kMostUnsentFrames = 4096;
constexpr uint64_t kMostUnsentBytes = 256u << 20;

thread_local SendBatch* current_batch = nullptr;
thread_local int64_t arrived_us = 0;
std::atomic<uint64_t> next_connection_id{1};

}  // namespace

int64_t ArrivedUs() { return arrived_us; }

SendBatch::SendBatch() : outer_(current_batch) { current_batch = this; }

SendBatch::~SendBatch() {
  current_batch = outer_;
  for (const auto& connection : to_write_) connection->Write();
}

OutFrame::OutFrame(FrameKind kind, uint16_t flags, uint64_t request_id, Message message)
    : kind(kind),
      head(std::move(message.head_)),
      payload(std::move(message.payload_)),
      owner(std::move(message.owner_)) {
  FrameHeader header;
  header.kind = kind;
  header.flags = flags;
  header.method = message.method_;
  header.request_id = request_id;
  header.metadata_bytes = static_cast<uint32_t>(head.size() - kHeaderBytes);
  for (const ConstBuffer& buffer : payload) header.payload_bytes += buffer.size;
  EncodeHeader(header, head.data());
  total_bytes = head.size() + header.payload_bytes;
}

void OutFrame::Check() {
  const uint64_t payload_bytes = total_bytes - head.size();
  SealHead(&head);
  total_bytes = head.size();
  if (payload_bytes == 0) return;
  total_bytes += payload_bytes + kChecksumBytes;
  checked = std::make_unique<CheckedPayload>(std::move(payload), payload_bytes);
  payload.clear();
  if (total_bytes > kSmallBytes) return;
  head.append(checked->Next());
  checked.reset();
  owner.reset();
}

bool OutFrame::has_more() const { return checked != nullptr && checked->has_more(); }

void OutFrame::Refill() {
  const bool waits = !payload.empty() && part <= payload.size();
  if (!has_more() || waits) return;
  const std::string_view window = checked->Next();
  payload.assign(1, {window.data(), window.size()});
  if (part == 0) return;
  part = 1;
  part_offset = 0;
}

Connection::Connection(std::shared_ptr<Context> context, Reactor* reactor, Fd fd,
                       std::string address)
    : context_(std::move(context)),
      reactor_(reactor),
      fd_(std::move(fd)),
      id_(next_connection_id.fetch_add(1, std::memory_order_relaxed)),
      address_(std::move(address)),
      peer_(address_),
      counters_(std::make_shared<PeerCounters>()),
      sends_checked_(context_->options.checksum),
      loans_(context_->options.pool != nullptr ? context_->options.pool->shared_memory() : nullptr,
             &context_->held) {}

Connection::~Connection() {
  while (MpscNode* node = outbox_.Pop()) delete static_cast<OutFrame*>(node);
}

// --- sending ---------------------------------------------------------------------------------

std::unique_ptr<OutFrame> Connection::FrameWithPayload(FrameKind kind, uint64_t request_id,
                                                       Message message) {
  uint16_t flags = 0;
  if (lends_.load(std::memory_order_acquire)) {
    const uint64_t bytes = message.payload_bytes();
    if (const uint16_t pieces = loans_.Lend(&message); pieces > 0) {
      flags = kLent;
      message.set_method(pieces);
      Count(counters_->lent_bytes, bytes);
    }
  }
  if (flags == 0 && holds_.load(std::memory_order_acquire) && loans_.Hold(&message)) flags = kHeld;
  return std::make_unique<OutFrame>(kind, flags, request_id, std::move(message));
}

bool Connection::HasBacklog() const {
  return queued_.load(std::memory_order_acquire) >= kMostUnsentFrames ||
         unsent_bytes_.load(std::memory_order_relaxed) >= kMostUnsentBytes;
}

void Connection::Send(std::unique_ptr<OutFrame> frame) {
  if (closed_.load(std::memory_order_acquire)) return;
  if (sends_checked()) frame->Check();
  const uint64_t bytes = frame->total_bytes;
  unsent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  // Counted before it can be found: a writer that took an uncounted frame would bring the count
  // below the truth, and two threads would be the writer.
  const bool writer = queued_.fetch_add(1, std::memory_order_acq_rel) == 0;
  outbox_.Push(frame.release());
  if (!writer) return;  // there is one already

  if (current_batch != nullptr) {
    current_batch->to_write_.push_back(shared_from_this());
    return;
  }
  const int64_t now = NowUs();
  const int64_t last = inline_write_us_.exchange(now, std::memory_order_relaxed);
  if (bytes > kSmallBytes || now - last < kBurstUs) {
    ResumeOnReactor();
    return;
  }
  Write();
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
  if (closed_.load(std::memory_order_acquire)) return;
  {
    std::lock_guard lock(lazy_mutex_);
    lazy_.push_back(std::move(frame));
  }
  if (has_lazy_.exchange(true, std::memory_order_acq_rel)) return;
  reactor_->PostLazily([self = shared_from_this()] {
    std::vector<std::unique_ptr<OutFrame>> frames;
    {
      std::lock_guard lock(self->lazy_mutex_);
      self->has_lazy_.store(false, std::memory_order_release);
      frames.swap(self->lazy_);
    }
    for (auto& frame : frames) self->Send(std::move(frame));
  });
}

void Connection::ResumeOnReactor() {
  reactor_->Post([self = shared_from_this()] { self->Write(); });
}

void Connection::Write() {
  const bool on_reactor = reactor_->IsCurrentThread();
  uint64_t turn_bytes = 0;
  for (int looks = 0;;) {
    if (closed_.load(std::memory_order_acquire)) return;  // the destructor frees what is left
    TakeQueuedAsWriter();
    size_t finished = 0;
    const uint64_t before = counters_->tx_bytes.load(std::memory_order_relaxed);
    switch (WriteOnceAsWriter(&finished)) {
      case Written::kSome:
        break;
      case Written::kNothing:
        // Whoever counted a frame in has not finished pushing it. That takes some instructions,
        // unless its thread lost its core: then other connections have their turn.
        if (++looks == kMostLooks) {
          ResumeOnReactor();
          return;
        }
        std::this_thread::yield();
        continue;
      case Written::kFull:
        if (finished > 0) queued_.fetch_sub(finished, std::memory_order_acq_rel);
        // Not down to zero: what did not fit is still counted, so the role is still ours to pass.
        if (on_reactor) {
          wants_write_ = true;
          UpdateEventsFromReactor();
        } else {
          ResumeOnReactor();
        }
        return;
      case Written::kBroken: {
        const int error = errno;
        reactor_->Post([self = shared_from_this(), error] {
          // A peer that closed may have said why before it did.
          if (error == EPIPE || error == ECONNRESET) self->ReadFromReactor();
          // A greeting that follows at once is who hears that nobody listens.
          const char* const what = error == ECONNREFUSED ? "" : "sending failed: ";
          self->CloseFromReactor(Status(Code::kUnavailable, what + ErrorText(error)));
        });
        return;
      }
    }
    if (finished > 0 && queued_.fetch_sub(finished, std::memory_order_acq_rel) == finished) return;
    turn_bytes += counters_->tx_bytes.load(std::memory_order_relaxed) - before;
    if (turn_bytes > (on_reactor ? kTurnBytes : kSmallBytes)) {
      ResumeOnReactor();
      return;
    }
  }
}

void Connection::TakeQueuedAsWriter() {
  if (has_lazy_.load(std::memory_order_acquire)) {
    std::vector<std::unique_ptr<OutFrame>> frames;
    {
      std::lock_guard lock(lazy_mutex_);
      frames.swap(lazy_);
    }
    queued_.fetch_add(frames.size(), std::memory_order_acq_rel);
    for (auto& frame : frames) {
      if (sends_checked()) frame->Check();
      unsent_bytes_.fetch_add(frame->total_bytes, std::memory_order_relaxed);
      small_.push_back(std::move(frame));
    }
  }
  while (MpscNode* node = outbox_.Pop()) {
    std::unique_ptr<OutFrame> frame(static_cast<OutFrame*>(node));
    // A cancellation must not overtake the request that it is about.
    const bool ahead = frame->kind != FrameKind::kCancel || large_.empty();
    (frame->total_bytes <= kSmallBytes && ahead ? small_ : large_).push_back(std::move(frame));
  }
}

Connection::Written Connection::WriteOnceAsWriter(size_t* finished) {
  std::array<iovec, kMaxIov> iov;
  int parts = 0;
  uint64_t gathered = 0;
  bool more = true;  // to be gathered
  auto gather = [&](OutFrame& frame) {
    frame.Refill();
    // Nothing goes between the windows of one payload.
    more = !frame.has_more();
    for (size_t part = frame.part; part <= frame.payload.size(); ++part) {
      if (parts == kMaxIov) return;
      const ConstBuffer whole =
          part == 0 ? ConstBuffer{frame.head.data(), frame.head.size()} : frame.payload[part - 1];
      const size_t skip = part == frame.part ? frame.part_offset : 0;
      iov[parts++] = {const_cast<char*>(static_cast<const char*>(whole.data)) + skip,
                      whole.size - skip};
      gathered += whole.size - skip;
    }
  };
  size_t frames = 0;
  if (current_ != nullptr) gather(*current_);
  for (auto* queue : {&small_, &large_}) {
    for (const auto& frame : *queue) {
      if (!more || parts == kMaxIov || gathered > kGatherBytes) break;
      gather(*frame);
      ++frames;
    }
  }
  if (parts == 0 && unflushed_frames_ == 0) return Written::kNothing;

  const ssize_t sent = SendAsWriter(iov.data(), parts);
  if (sent < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? Written::kFull : Written::kBroken;
  }
  Count(counters_->tx_bytes, static_cast<uint64_t>(sent));
  Count(counters_->tx_syscalls);
  unsent_bytes_.fetch_sub(static_cast<uint64_t>(sent), std::memory_order_relaxed);

  // Account for what left, frame by frame, in the order in which they were gathered.
  uint64_t left = static_cast<uint64_t>(sent);
  auto advance = [&](OutFrame* frame) {  // true: all of it has left
    while (frame->part <= frame->payload.size()) {
      const size_t size =
          frame->part == 0 ? frame->head.size() : frame->payload[frame->part - 1].size;
      const uint64_t rest = size - frame->part_offset;
      if (left < rest) {
        frame->part_offset += left;
        left = 0;
        return false;
      }
      left -= rest;
      ++frame->part;
      frame->part_offset = 0;
    }
    return !frame->has_more();
  };
  if (current_ != nullptr && advance(current_.get())) {
    current_.reset();
    ++*finished;
  }
  while (current_ == nullptr && frames > 0) {
    auto& queue = !small_.empty() ? small_ : large_;
    if (left == 0 && queue.front()->total_bytes > 0) break;
    std::unique_ptr<OutFrame> frame = std::move(queue.front());
    queue.pop_front();
    --frames;
    if (advance(frame.get())) {
      ++*finished;
    } else {
      current_ = std::move(frame);
    }
  }
  Count(counters_->tx_frames, *finished);
  if (tls_ != nullptr) {
    unflushed_frames_ += std::exchange(*finished, 0);
    if (!tls_->Flushed()) return Written::kFull;
    *finished = std::exchange(unflushed_frames_, 0);
  }
  return static_cast<uint64_t>(sent) < gathered ? Written::kFull : Written::kSome;
}

ssize_t Connection::SendAsWriter(const iovec* parts, int count) {
  if (tls_ != nullptr) return tls_->Send(parts, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(count);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

// --- opening and closing -----------------------------------------------------------------------

Status Connection::OpenFromReactor(std::shared_ptr<FrameReceiver> receiver, bool connecting) {
  receiver_ = std::move(receiver);
  connecting_ = connecting;
  last_sign_ms_ = NowMs();
  if (!connecting) TuneStream(fd_.get(), context_->options.silent_timeout_ms);
  if (context_->tls != nullptr) {
    tls_ = std::make_unique<TlsStream>(context_->tls.get(), fd_.get(), /*client=*/connecting);
    shaking_hands_ = true;
    unflushed_frames_ = 1;
    queued_.fetch_add(1, std::memory_order_acq_rel);
  }
  const uint32_t events = connecting ? EPOLLOUT : EPOLLIN;
  if (Status s = reactor_->WatchFromReactor(fd_.get(), events, shared_from_this()); !s.ok()) {
    closed_.store(true, std::memory_order_release);
    receiver_.reset();
    return s;
  }
  TickFromReactor();
  return Status();
}

void Connection::SetPeerFromReactor(const std::string& name) {
  peer_ = name + " (" + address_ + ")";
  counters_ = context_->CountersFor(name);
  Count(counters_->connects);
}

void Connection::SayGoodbyeFromReactor(const std::string& why) {
  if (draining_ || closed_.load(std::memory_order_acquire)) return;
  draining_ = true;
  goodbye_ = why;
  Message message;
  message.AppendMetadata(std::string_view(why).substr(0, 1000));
  Send(std::make_unique<OutFrame>(FrameKind::kGoodbye, 0, 0, std::move(message)));
  CloseAtFromReactor(NowMs() + kGoodbyeMs, Status(Code::kUnavailable, why));
}

void Connection::CloseAtFromReactor(int64_t time_ms, const Status& why) {
  reactor_->CancelFromReactor(close_timer_);
  close_timer_ = reactor_->AtFromReactor(time_ms, [weak = weak_from_this(), why] {
    if (auto self = weak.lock()) self->CloseFromReactor(why);
  });
}

void Connection::TrustFromReactor() {
  trusted_ = true;
  reactor_->CancelFromReactor(close_timer_);
}

void Connection::CloseFromReactor(const Status& reason) {
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  // However a connection ends to which we said goodbye, that was the reason.
  const Status why = draining_ && !goodbye_.empty() && reason.code() != Code::kCancelled
                         ? Status(Code::kFailedPrecondition, goodbye_)
                         : reason;
  // A writer in another thread gets EPIPE from now on; the descriptor itself lives as long as this
  // object, so that nobody writes into a stranger's.
  ::shutdown(fd_.get(), SHUT_RDWR);
  reactor_->UnwatchFromReactor(fd_.get(), this);
  for (const auto& timer : {tick_timer_, pause_timer_, close_timer_}) {
    reactor_->CancelFromReactor(timer);
  }
  reading_paused_ = false;
  loans_.ReturnAll();
  if (auto receiver = std::move(receiver_)) {
    receiver->OnClosedFromReactor(why, in_payload_ ? &frame_ : nullptr);
  }
  in_payload_ = false;
}

void Connection::OnStopFromReactor() {
  CloseFromReactor(Status(Code::kCancelled, "the engine was stopped"));
}

void Connection::TickFromReactor() {
  if (closed_.load(std::memory_order_acquire)) return;
  const auto& options = context_->options;
  const int64_t now = NowMs();
  // While this process stood still (SIGSTOP, a debugger) nobody looked for a sign of life: what
  // came meanwhile may not have been read yet. That time is no silence.
  if (tick_timer_.time_ms > 0) last_sign_ms_ += std::max<int64_t>(0, now - tick_timer_.time_ms);
  last_sign_ms_ = std::min(last_sign_ms_, now);
  // Where nobody has answered yet nobody is silent: for that the greeting has its time.
  if (connecting_) last_sign_ms_ = now;
  const int64_t silent_ms = now - last_sign_ms_;
  if (silent_ms >= options.silent_timeout_ms) {
    CloseFromReactor(Status(Code::kUnavailable, peer_ + " has been silent for " +
                                                    std::to_string(silent_ms / 1000) + " s"));
    return;
  }
  if (!connecting_ && silent_ms >= options.ping_after_ms &&
      now - pinged_ms_ >= options.ping_after_ms) {
    pinged_ms_ = now;
    Signal(FrameKind::kPing);
  }
  const int next_ms = std::max(
      kShortestTickMs, std::min({kTickMs, options.ping_after_ms, options.silent_timeout_ms}));
  tick_timer_ = reactor_->AtFromReactor(now + next_ms, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->TickFromReactor();
  });
}

CallTable::Entry Connection::TakeArrivingCallFromReactor(uint64_t request_id) {
  if (!in_payload_ || frame_.call == nullptr || frame_.header.kind == FrameKind::kPush ||
      frame_.header.request_id != request_id) {
    return {};
  }
  frame_.payload = InFrame::Payload::kDiscard;
  return {std::move(frame_.call), frame_.done_on, frame_.deadline_ms};
}

// --- events ------------------------------------------------------------------------------------

void Connection::UpdateEventsFromReactor() {
  if (closed_.load(std::memory_order_acquire)) return;
  const Status status = reactor_->ModifyFromReactor(
      fd_.get(), (reading_paused_ ? 0u : EPOLLIN) | (wants_write_ ? EPOLLOUT : 0u), this);
  if (status.ok()) return;
  // It might never hear of its socket again. Not at once: who called this goes on.
  reactor_->Post([self = shared_from_this(), status] { self->CloseFromReactor(status); });
}

void Connection::OnEventsFromReactor(uint32_t epoll_events) {
  if (connecting_) {
    FinishConnectFromReactor();
    return;
  }
  if (shaking_hands_) {
    ShakeHandsFromReactor();
    return;
  }
  if ((epoll_events & EPOLLOUT) != 0 && wants_write_) {
    // The socket was full and the peer has taken some: a sign of life, and the only one while it
    // receives one long frame and has nothing to say itself.
    last_sign_ms_ = NowMs();
    wants_write_ = false;
    Write();
    ResumeReadingFromReactor();
    if (!wants_write_ && !closed_.load(std::memory_order_acquire)) UpdateEventsFromReactor();
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
  TuneStream(fd_.get(), context_->options.silent_timeout_ms);  // now it has a peer
  connecting_ = false;
  UpdateEventsFromReactor();
  if (shaking_hands_) ShakeHandsFromReactor();
}

void Connection::ShakeHandsFromReactor() {
  if (!peer_speaks_tls_) {
    char first = 0;
    const ssize_t got = ::recv(fd_.get(), &first, 1, MSG_PEEK);
    if (got > 0 && first == 'T') {  // of "TWIR"
      RefusePlainFromReactor();
      return;
    }
    peer_speaks_tls_ = got > 0;
  }
  std::string why;
  switch (tls_->Shake(&why)) {
    case TlsStream::Handshake::kGoesOn:
      wants_write_ = !tls_->Flushed();
      UpdateEventsFromReactor();
      return;
    case TlsStream::Handshake::kLost:
      CloseFromReactor(Status(Code::kUnavailable, peer_ + " closed the connection: Socket closed"));
      return;
    case TlsStream::Handshake::kFailed: {
      const Status failed(Code::kFailedPrecondition,
                          "the TLS handshake failed (" + why + ")" + kSameToken);
      context_->WarnAboutPeer(address_,
                              "closed the connection with " + peer_ + ": " + failed.message());
      CloseFromReactor(failed);
      return;
    }
    case TlsStream::Handshake::kDone:
      shaking_hands_ = false;
      wants_write_ = false;
      UpdateEventsFromReactor();
      Write();
      ReadFromReactor();
  }
}

void Connection::RefusePlainFromReactor() {
  const std::string why =
      "one end of the connection uses TLS and the other does not: set TENSORWIRE_TLS in every task "
      "of the job, or in none";
  context_->WarnAboutPeer(address_, "closed the connection with " + peer_ + ": " + why);
  // What is not read would turn into a reset, and that would overtake the reason.
  ::recv(fd_.get(), reactor_->scratch(), Reactor::kScratchBytes, 0);
  Message goodbye;
  goodbye.AppendMetadata(why);
  const OutFrame frame(FrameKind::kGoodbye, 0, 0, std::move(goodbye));
  ::send(fd_.get(), frame.head.data(), frame.head.size(), MSG_NOSIGNAL);
  CloseFromReactor(Status(Code::kFailedPrecondition, why));
}

// --- reading -----------------------------------------------------------------------------------

bool Connection::PauseReadingFromReactor() {
  if (!pauses_reading_ || !HasBacklog()) return false;
  if (reading_paused_) return true;
  reading_paused_ = true;
  UpdateEventsFromReactor();
  WatchPauseFromReactor();
  return true;
}

void Connection::WatchPauseFromReactor() {
  // What is queued may leave without this connection ever being told that its socket has room.
  reactor_->CancelFromReactor(pause_timer_);  // of an earlier pause, or of this one
  pause_timer_ = reactor_->AtFromReactor(NowMs() + kPauseMs, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr || !self->reading_paused_) return;
    if (self->HasBacklog()) {
      self->WatchPauseFromReactor();
    } else {
      self->ResumeReadingFromReactor();
    }
  });
}

void Connection::ResumeReadingFromReactor() {
  if (!reading_paused_ || HasBacklog() || closed_.load(std::memory_order_acquire)) return;
  reading_paused_ = false;
  UpdateEventsFromReactor();
  const std::string stashed = std::exchange(stash_, {});
  arrived_us = NowUs();
  if (Status s = ParseFromReactor(stashed.data(), stashed.size()); !s.ok()) {
    RefuseFromReactor(s);
  } else if (!reading_paused_) {
    ReadFromReactor();
  }
}

void Connection::RefuseFromReactor(const Status& why) {
  context_->WarnAboutPeer(address_, "closed the connection with " + peer_ + ": " + why.message());
  SayGoodbyeFromReactor(why.message());
}

void Connection::ReadFromReactor() {
  uint64_t turn_bytes = 0;
  while (turn_bytes < kTurnBytes && !closed_.load(std::memory_order_acquire)) {
    if (PauseReadingFromReactor()) return;
    std::array<iovec, 64> iov;
    int parts = 0;
    size_t direct_bytes = 0;
    if (in_payload_ && frame_.payload == InFrame::Payload::kInto) {
      // Straight into the memory of the tensor to be.
      for (size_t i = into_index_; i < frame_.into.size() && parts < 63; ++i) {
        const size_t skip = i == into_index_ ? into_offset_ : 0;
        iov[parts++] = {static_cast<char*>(frame_.into[i].data) + skip, frame_.into[i].size - skip};
        direct_bytes += frame_.into[i].size - skip;
      }
    }
    // What follows goes to the scratch buffer, behind the piece of a frame left from last time.
    char* scratch = reactor_->scratch();
    const bool all_direct = direct_bytes < frame_.header.payload_bytes - payload_got_ &&
                            in_payload_ && frame_.payload == InFrame::Payload::kInto;
    const size_t stashed = stash_.size();
    if (!all_direct) {
      if (stashed > 0) std::memcpy(scratch, stash_.data(), stashed);
      iov[parts++] = {scratch + stashed, Reactor::kScratchBytes - stashed};
    }
    const size_t capacity = direct_bytes + (all_direct ? 0 : Reactor::kScratchBytes - stashed);

    const ssize_t got = ReceiveFromReactor(iov.data(), parts);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      CloseFromReactor(Status(Code::kUnavailable,
                              "the connection to " + peer_ + " was lost: " + ErrorText(errno)));
      return;
    }
    if (got == 0) {
      const std::string foreign = DescribeForeign(stash_);
      if (!foreign.empty()) context_->WarnAboutPeer(address_, peer_ + ": " + foreign);
      CloseFromReactor(foreign.empty() ? Status(Code::kUnavailable,
                                                peer_ + " closed the connection: Socket closed")
                                       : Status(Code::kFailedPrecondition, foreign));
      return;
    }
    arrived_us = NowUs();
    last_sign_ms_ = arrived_us / 1000;
    Count(counters_->rx_bytes, static_cast<uint64_t>(got));
    Count(counters_->rx_syscalls);
    turn_bytes += static_cast<uint64_t>(got);
    if (draining_) continue;

    size_t rest = static_cast<size_t>(got);
    const size_t direct = std::min(rest, direct_bytes);
    if (direct > 0) {
      payload_got_ += direct;
      for (size_t left = direct; left > 0;) {
        const size_t step = std::min(frame_.into[into_index_].size - into_offset_, left);
        AdvanceInto(step);
        left -= step;
      }
      rest -= direct;
    }
    Status s;
    if (in_payload_ && IsWhole()) s = FinishFrameFromReactor();
    if (s.ok() && rest > 0) {
      stash_.clear();
      s = ParseFromReactor(scratch, stashed + rest);
    }
    if (!s.ok()) {
      RefuseFromReactor(s);
      return;
    }
    if (reading_paused_) return;
    if (static_cast<size_t>(got) < capacity && (tls_ == nullptr || !tls_->HasMore())) {
      return;  // the socket is empty, or nearly
    }
  }
  if (closed_.load(std::memory_order_acquire)) return;
  if (tls_ != nullptr && tls_->HasMore()) {  // of which epoll knows nothing
    reactor_->Post([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->ReadFromReactor();
    });
  }
}

ssize_t Connection::ReceiveFromReactor(const iovec* parts, int count) {
  if (tls_ != nullptr) return tls_->Receive(parts, count);
  // The way into the kernel is shorter for one buffer, which is all that a small frame needs.
  return count == 1 ? ::recv(fd_.get(), parts->iov_base, parts->iov_len, 0)
                    : ::readv(fd_.get(), parts, count);
}

Status Connection::ParseFromReactor(const char* bytes, size_t size) {
  while (size > 0 && !draining_ && !closed_.load(std::memory_order_acquire)) {
    if (in_payload_) {
      if (Status s = TakePayloadFromReactor(&bytes, &size); !s.ok()) return s;
      continue;
    }
    if (PauseReadingFromReactor()) {
      stash_.assign(bytes, size);
      break;
    }
    bool complete = false;
    if (Status s = ParseHeadFromReactor(&bytes, &size, &complete); !s.ok()) return s;
    if (!complete) {
      stash_.assign(bytes, size);
      break;
    }
  }
  return Status();
}

Status Connection::ParseHeadFromReactor(const char** bytes, size_t* size, bool* complete) {
  if (*size < kHeaderBytes) {
    if (*size < kForeignBytes || receives_checked_) return Status();
    // A short greeting in another language is not waited on until the handshake times out.
    const std::string foreign = DescribeForeign({*bytes, *size});
    return foreign.empty() ? Status() : Status(Code::kInvalidArgument, foreign);
  }
  // Nothing in a header is believed that has a checksum or ought to.
  if (receives_checked_) {
    if (*size < kCheckedHeaderBytes) return Status();
    if (!IsHeaderIntact(*bytes)) return DamagedFromReactor("the head of a frame");
  }
  FrameHeader header;
  const FrameLimits& limits = trusted_ ? context_->options.limits : kStrangersLimits;
  if (Status s = ParseHeader(*bytes, limits, &header); !s.ok()) return s;
  if (!receives_checked_ && (header.flags & kChecked) != 0) {
    receives_checked_ = true;
    return ParseHeadFromReactor(bytes, size, complete);
  }
  const size_t header_bytes = receives_checked_ ? kCheckedHeaderBytes : kHeaderBytes;
  if (*size < header_bytes + header.metadata_bytes) return Status();
  if (receives_checked_ && !IsMetadataIntact(*bytes, header.metadata_bytes)) {
    return DamagedFromReactor("the metadata of a frame");
  }
  *complete = true;
  const std::string_view metadata(*bytes + header_bytes, header.metadata_bytes);
  *bytes += header_bytes + header.metadata_bytes;
  *size -= header_bytes + header.metadata_bytes;

  frame_ = InFrame();
  frame_.header = header;
  frame_.checked = receives_checked_ && header.payload_bytes > 0;
  payload_got_ = 0;
  checksum_got_ = 0;
  into_index_ = 0;
  into_offset_ = 0;
  Count(counters_->rx_frames);
  switch (header.kind) {
    case FrameKind::kPing:
      // A peer that takes what is queued hears from us anyway.
      if (!HasBacklog()) {
        Send(std::make_unique<OutFrame>(FrameKind::kPong, 0, 0, Message()));
      }
      break;
    case FrameKind::kPong:
      break;
    case FrameKind::kGoodbye:
      draining_ = true;
      CloseFromReactor(
          Status(Code::kFailedPrecondition, peer_ + " refused: " + std::string(metadata)));
      return Status();
    default:
      if (Status s = receiver_->OnHeadFromReactor(metadata, &frame_); !s.ok()) return s;
      if (closed_.load(std::memory_order_acquire)) return Status();
  }
  in_payload_ = true;
  // Empty buffers would never be passed by reading into them.
  auto& into = frame_.into;
  into.erase(std::remove_if(into.begin(), into.end(), [](const auto& b) { return b.size == 0; }),
             into.end());
  return header.payload_bytes == 0 ? FinishFrameFromReactor() : Status();
}

// So much more has arrived where the payload goes.
void Connection::AdvanceInto(size_t size) {
  const MutableBuffer& buffer = frame_.into[into_index_];
  if (frame_.checked) {
    // Now, while it is in the cache.
    frame_.checksum =
        ExtendCrc32c(frame_.checksum, static_cast<const char*>(buffer.data) + into_offset_, size);
  }
  into_offset_ += size;
  if (into_offset_ < buffer.size) return;
  ++into_index_;
  into_offset_ = 0;
}

// The frame, its checksum included.
bool Connection::IsWhole() const {
  return payload_got_ == frame_.header.payload_bytes &&
         (!frame_.checked || checksum_got_ == kChecksumBytes);
}

Status Connection::DamagedFromReactor(const std::string& what) {
  Count(counters_->damaged_frames);
  return Status(Code::kDataLoss, what + " arrived damaged: its checksum does not match");
}

Status Connection::TakePayloadFromReactor(const char** bytes, size_t* size) {
  const uint64_t missing = frame_.header.payload_bytes - payload_got_;
  if (missing == 0) {
    const size_t take = std::min(kChecksumBytes - checksum_got_, *size);
    std::memcpy(checksum_.data() + checksum_got_, *bytes, take);
    checksum_got_ += take;
    *bytes += take;
    *size -= take;
    return IsWhole() ? FinishFrameFromReactor() : Status();
  }
  size_t take = static_cast<size_t>(std::min<uint64_t>(missing, *size));
  switch (frame_.payload) {
    case InFrame::Payload::kDiscard:
      break;
    case InFrame::Payload::kBytes:
      frame_.bytes.append(*bytes, take);
      if (frame_.checked) frame_.checksum = ExtendCrc32c(frame_.checksum, *bytes, take);
      break;
    case InFrame::Payload::kInto: {
      const MutableBuffer& buffer = frame_.into[into_index_];
      take = std::min(take, buffer.size - into_offset_);
      std::memcpy(static_cast<char*>(buffer.data) + into_offset_, *bytes, take);
      AdvanceInto(take);
      break;
    }
  }
  *bytes += take;
  *size -= take;
  payload_got_ += take;
  return IsWhole() ? FinishFrameFromReactor() : Status();
}

Status Connection::FinishFrameFromReactor() {
  in_payload_ = false;
  if (frame_.checked && frame_.payload != InFrame::Payload::kDiscard &&
      std::memcmp(&frame_.checksum, checksum_.data(), kChecksumBytes) != 0) {
    frame_.status = DamagedFromReactor(peer_ + ": a payload of " +
                                       std::to_string(frame_.header.payload_bytes) + " bytes");
    context_->WarnAboutPeer(address_, frame_.status.message());
  }
  switch (frame_.header.kind) {
    case FrameKind::kPing:
    case FrameKind::kPong:
      return Status();
    default:
      return receiver_->OnFrameFromReactor(std::move(frame_));
  }
}

}  // namespace tensorwire::wire
