#include "stream.h"

#include <utility>

#include "replies.h"

namespace tensorwire::wire {
namespace {

// The main connection stands, so a further one is made within a round trip or two, or not at all.
constexpr int64_t kPatienceMs = 2000;
constexpr int64_t kTryAgainMs = 60'000;

}  // namespace

void Stream::Begin(std::shared_ptr<Fetch> fetch, size_t range) {
  reactor_->Post([self = shared_from_this(), range = Range{std::move(fetch), range}] {
    self->BeginFromReactor(range);
  });
}

void Stream::BeginFromReactor(Range range) {
  if (closed_) return range.fetch->End(Cancelled());
  if (failed_ms_ && NowMs() - *failed_ms_ < kTryAgainMs) {
    return range.fetch->FetchOverMain(range.index);
  }
  const uint64_t id = ++last_id_;
  ranges_.emplace(id, range);
  range.fetch->Begun(range.index,
                     [weak = weak_from_this(), reactor = reactor_, id](const Status& why) {
                       reactor->Post([weak, id, why] {
                         if (auto self = weak.lock()) self->EndFromReactor(id, why);
                       });
                     });
  if (connection_ != nullptr) {
    SendFromReactor(id, range);
  } else if (opening_ == nullptr) {
    OpenFromReactor();
  }
}

void Stream::SendFromReactor(uint64_t id, const Range& range) {
  connection_->Send(
      std::make_unique<OutFrame>(FrameKind::kRequest, 0, id, range.fetch->Request(range.index)));
}

void Stream::OpenFromReactor() {
  opening_ = std::make_shared<Opening>(
      context_, reactor_, peer_name_,
      [self = shared_from_this()](Opening*, const Status& why, const Hello&) {
        self->OnOpenedFromReactor(why);
      });
  if (Status s = opening_->BeginFromReactor(address_, NowMs() + kPatienceMs); !s.ok()) {
    OnOpenedFromReactor(s);
  }
}

void Stream::OnOpenedFromReactor(const Status& why) {
  const auto opening = std::exchange(opening_, nullptr);
  if (!why.ok()) {
    failed_ms_ = NowMs();
    return LoseAllFromReactor(why);
  }
  failed_ms_.reset();
  connection_ = opening->connection();
  connection_->HandOverFromReactor(shared_from_this());
  for (const auto& [id, range] : ranges_) SendFromReactor(id, range);
}

void Stream::Close() {
  reactor_->Post([self = shared_from_this()] {
    self->closed_ = true;
    if (self->opening_ != nullptr) std::exchange(self->opening_, nullptr)->GiveUpFromReactor();
    if (const auto connection = self->connection_) connection->CloseFromReactor(Cancelled());
    self->LoseAllFromReactor(Cancelled());
  });
}

void Stream::EndFromReactor(uint64_t id, const Status& why) {
  const auto at = ranges_.find(id);
  if (at == ranges_.end()) return;
  const auto fetch = std::move(at->second.fetch);
  ranges_.erase(at);
  if (connection_ != nullptr && connection_->TakeArrivingCallFromReactor(id).call == nullptr) {
    connection_->Signal(FrameKind::kCancel, id);
  }
  fetch->End(why);
}

void Stream::LoseAllFromReactor(const Status& why) {
  for (const auto& [id, range] : std::exchange(ranges_, {})) {
    if (why.code() == Code::kCancelled) {
      range.fetch->End(why);
    } else {
      range.fetch->FetchOverMain(range.index);
    }
  }
}

Status Stream::OnHeadFromReactor(std::string_view metadata, InFrame* frame) {
  const FrameKind kind = frame->header.kind;
  if ((kind != FrameKind::kReply && kind != FrameKind::kError) ||
      (frame->header.flags & (kHeld | kLent)) != 0) {
    return Status(Code::kInvalidArgument, "no answer to a request for a range");
  }
  const auto at = ranges_.find(frame->header.request_id);
  if (at == ranges_.end()) return Status();  // it has ended: its payload is dropped
  frame->entry.call = at->second.fetch->Range(at->second.index);
  frame->entry.done_on = RunOn::kReactor;
  if (kind == FrameKind::kReply) {
    PrepareReply(metadata, frame->header.payload_bytes, frame);
  } else {
    PrepareError(metadata, frame);
  }
  return Status();
}

Status Stream::OnFrameFromReactor(InFrame* frame) {
  if (frame->entry.call == nullptr) return Status();
  ranges_.erase(frame->header.request_id);
  CompleteReply(frame, reactor_);
  return Status();
}

void Stream::OnClosedFromReactor(const Status& why, InFrame* /*unfinished*/) {
  connection_.reset();
  LoseAllFromReactor(why);
}

}  // namespace tensorwire::wire
