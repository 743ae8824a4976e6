#include "channel.h"

#include <algorithm>

#include "hello.h"
#include "tensorwire/wire/endpoint_map.h"

namespace tensorwire::wire {
namespace {

constexpr int64_t kFirstPauseMs = 20;
constexpr int64_t kLongestPauseMs = 1000;

}  // namespace

ChannelImpl::ChannelImpl(std::shared_ptr<Context> context, std::string address, std::string peer_name)
    : context_(std::move(context)),
      reactor_(context_->NextReactor()),
      address_(std::move(address)),
      peer_name_(std::move(peer_name)) {}

uint64_t ChannelImpl::Start(Message request, std::unique_ptr<Call> call,
                            const CallOptions& options) {
  std::shared_ptr<Connection> connection;
  std::unique_ptr<OutFrame> frame;
  uint64_t id = 0;
  bool connect = false;
  {
    std::lock_guard lock(mutex_);
    id = calls_.Insert(std::move(call), options.done_on_reactor);
    if (!stopped_) {
      frame = std::make_unique<OutFrame>(FrameKind::kRequest, 0, id, std::move(request));
      if (ready_ != nullptr) {
        connection = ready_;
      } else {
        waiting_.push_back(std::move(frame));
        connect = !connecting_;
        connecting_ = true;
      }
    }
  }
  if (connection != nullptr) {
    connection->Send(std::move(frame));
  } else if (connect) {
    ConnectSoon();
  } else if (frame == nullptr && !connect) {
    std::unique_lock lock(mutex_);
    if (stopped_) {
      lock.unlock();
      EndCall(id, Status(Code::kCancelled, "the engine was stopped"));
      return id;
    }
  }
  if (options.deadline_ms > 0) {
    reactor_->Post([weak = weak_from_this(), id, at = NowMs() + options.deadline_ms] {
      auto self = weak.lock();
      if (self == nullptr) return;
      self->reactor_->AtFromReactor(at, [weak, id] {
        if (auto self = weak.lock()) {
          self->EndCall(id, self->Describe(Code::kDeadlineExceeded, "the deadline passed"));
        }
      });
    });
  }
  return id;
}

void ChannelImpl::Notify(Message request, bool lazy) {
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard lock(mutex_);
    connection = ready_;
  }
  if (connection == nullptr) return;
  auto frame = std::make_unique<OutFrame>(FrameKind::kRequest, kOneWay, 0, std::move(request));
  if (lazy) {
    connection->SendLazily(std::move(frame));
  } else {
    connection->Send(std::move(frame));
  }
}

void ChannelImpl::Cancel(uint64_t call_id) {
  EndCall(call_id, Status(Code::kCancelled, "the call was cancelled"));
}

void ChannelImpl::EndCall(uint64_t call_id, const Status& why) {
  CallTable::Entry entry;
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard lock(mutex_);
    entry = calls_.Take(call_id);
    connection = ready_;
  }
  if (entry.call == nullptr) return;  // it has ended, or its reply is arriving
  if (connection != nullptr) {
    connection->Send(std::make_unique<OutFrame>(FrameKind::kCancel, 0, call_id, Message()));
  }
  Finish(std::move(entry), why);
}

void ChannelImpl::Finish(CallTable::Entry entry, const Status& status) {
  // Not in this thread: whoever cancels may hold locks that Done wants.
  std::shared_ptr<Call> call(std::move(entry.call));
  context_->options.executor([call, status] { call->Done(status); });
}

Status ChannelImpl::Describe(Code code, const std::string& what) const {
  return Status(code, peer_name_ + " at " + address_ + ": " + what);
}

void ChannelImpl::Stop() {
  std::vector<CallTable::Entry> calls;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    waiting_.clear();
    ready_.reset();
    calls = calls_.TakeAll();
  }
  for (auto& entry : calls) {
    Finish(std::move(entry), Status(Code::kCancelled, "the engine was stopped"));
  }
  opening_.reset();  // the reactors have ended
}

// --- connecting --------------------------------------------------------------------------------

void ChannelImpl::ConnectSoon() {
  reactor_->Post([self = shared_from_this()] {
    self->give_up_ms_ = NowMs() + self->context_->options.connect_timeout_ms;
    self->pause_ms_ = kFirstPauseMs;
    self->ResolveFromReactor();
  });
}

void ChannelImpl::ResolveFromReactor() {
  std::string host;
  int port = 0;
  if (!SplitAddress(address_, &host, &port)) {
    FailAllFromReactor(Describe(Code::kInvalidArgument, "the address is not host:port"));
    return;
  }
  // The name service may take seconds; the reactor has others to serve.
  context_->options.executor([self = shared_from_this(), host, port] {
    std::vector<SocketAddress> addresses;
    const Status status = Resolve(host, port, /*passive=*/false, &addresses);
    self->reactor_->Post([self, status, addresses] {
      if (status.ok()) {
        self->AttemptFromReactor(addresses);
      } else {
        self->RetryOrFailFromReactor(status);
      }
    });
  });
}

void ChannelImpl::AttemptFromReactor(std::vector<SocketAddress> addresses) {
  addresses_left_ = std::move(addresses);
  Status status(Code::kUnavailable, "no address");
  while (!addresses_left_.empty()) {
    const SocketAddress address = addresses_left_.front();
    addresses_left_.erase(addresses_left_.begin());
    Fd fd;
    status = BeginConnect(address, &fd);
    if (!status.ok()) continue;
    opening_ = std::make_shared<Connection>(context_, reactor_, std::move(fd), ToString(address));
    opening_->SetPeerFromReactor(peer_name_);
    status = opening_->OpenFromReactor(shared_from_this(), /*connecting=*/true);
    if (!status.ok()) continue;
    opening_->Send(std::make_unique<OutFrame>(
        FrameKind::kHello, 0, 0, Hello{context_->options.name, peer_name_}.Encode()));
    const int64_t patience_ms =
        std::min<int64_t>(std::max<int64_t>(give_up_ms_ - NowMs(), kFirstPauseMs),
                          context_->options.handshake_timeout_ms);
    reactor_->AtFromReactor(NowMs() + patience_ms, [weak = weak_from_this(),
                                                    attempt = std::weak_ptr(opening_)] {
      auto self = weak.lock();
      auto connection = attempt.lock();
      if (self != nullptr && connection != nullptr && self->opening_ == connection) {
        connection->CloseFromReactor(Status(Code::kUnavailable, "no answer"));
      }
    });
    return;
  }
  RetryOrFailFromReactor(status);
}

void ChannelImpl::RetryOrFailFromReactor(const Status& why) {
  if (!addresses_left_.empty()) {
    AttemptFromReactor(std::move(addresses_left_));
    return;
  }
  const int64_t now = NowMs();
  bool wanted;
  {
    std::lock_guard lock(mutex_);
    wanted = calls_.size() > 0;
  }
  if (!wanted || now + pause_ms_ >= give_up_ms_) {
    FailAllFromReactor(Describe(Code::kUnavailable, "cannot connect: " + why.message()));
    return;
  }
  reactor_->AtFromReactor(now + pause_ms_, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->ResolveFromReactor();
  });
  pause_ms_ = std::min(2 * pause_ms_, kLongestPauseMs);
}

void ChannelImpl::FailAllFromReactor(const Status& why) {
  std::vector<CallTable::Entry> calls;
  {
    std::lock_guard lock(mutex_);
    connecting_ = false;
    ready_.reset();
    waiting_.clear();
    calls = calls_.TakeAll();
  }
  for (auto& entry : calls) {
    reactor_->CompleteFromReactor(std::move(entry.call), why, entry.done_on_reactor);
  }
}

// --- frames ------------------------------------------------------------------------------------

Status ChannelImpl::OnHeadFromReactor(std::string_view metadata, InFrame* frame) {
  switch (frame->header.kind) {
    case FrameKind::kHelloAck: {
      if (opening_ == nullptr) return Status(Code::kInvalidArgument, "a second greeting");
      std::vector<std::unique_ptr<OutFrame>> waiting;
      std::shared_ptr<Connection> connection = std::move(opening_);
      opening_.reset();
      {
        std::lock_guard lock(mutex_);
        ready_ = connection;
        connecting_ = false;
        waiting.swap(waiting_);
      }
      for (auto& request : waiting) connection->Send(std::move(request));
      return Status();
    }
    case FrameKind::kReply:
    case FrameKind::kError: {
      CallTable::Entry entry;
      {
        std::lock_guard lock(mutex_);
        entry = calls_.Take(frame->header.request_id);
      }
      if (entry.call == nullptr) return Status();  // cancelled or late: its payload is dropped
      frame->done_on_reactor = entry.done_on_reactor;
      frame->call = std::move(entry.call);
      if (frame->header.kind == FrameKind::kError) {
        frame->status = Status(static_cast<Code>(frame->header.method), std::string(metadata));
        if (frame->status.ok()) frame->status = Status(Code::kUnknown, "an error without a code");
        return Status();
      }
      frame->status =
          frame->call->PrepareFromReactor(metadata, frame->header.payload_bytes, &frame->into);
      uint64_t room = 0;
      for (const MutableBuffer& buffer : frame->into) room += buffer.size;
      if (frame->status.ok() && room == frame->header.payload_bytes) {
        frame->payload = InFrame::Payload::kInto;
      } else if (frame->status.ok()) {
        frame->status = Describe(Code::kInternal, "a reply of another size than it announced");
      }
      return Status();
    }
    default:
      return Status(Code::kInvalidArgument, "a frame that a server does not send");
  }
}

Status ChannelImpl::OnFrameFromReactor(InFrame frame) {
  if (frame.call != nullptr) {
    reactor_->CompleteFromReactor(std::move(frame.call), std::move(frame.status),
                                  frame.done_on_reactor);
  }
  return Status();
}

void ChannelImpl::OnClosedFromReactor(const Status& why, InFrame* unfinished) {
  const Status lost = Describe(
      why.code() == Code::kFailedPrecondition ? why.code() : Code::kUnavailable, why.message());
  if (unfinished != nullptr && unfinished->call != nullptr) {
    reactor_->CompleteFromReactor(std::move(unfinished->call), lost, unfinished->done_on_reactor);
  }
  const bool was_opening = opening_ != nullptr;
  opening_.reset();
  if (was_opening && why.code() != Code::kFailedPrecondition &&
      why.code() != Code::kCancelled) {
    RetryOrFailFromReactor(why);
  } else {
    FailAllFromReactor(lost);
  }
}

}  // namespace tensorwire::wire
