#include "peer.h"

#include <string>
#include <utility>

#include "borrow.h"
#include "channel.h"
#include "fetch.h"
#include "replies.h"

namespace tensorwire::wire {

Peer::Peer(std::shared_ptr<ChannelImpl> channel, std::shared_ptr<Context> context,
           std::shared_ptr<Connection> connection, std::shared_ptr<const ForeignMemory> memory,
           std::vector<std::shared_ptr<Stream>> streams)
    : channel_(std::move(channel)),
      context_(std::move(context)),
      connection_(std::move(connection)),
      reactor_(connection_->reactor()),
      memory_(std::move(memory)),
      streams_(std::move(streams)) {}

void Peer::BeginFromReactor() {
  connection_->HandOverFromReactor(shared_from_this());
  if (memory_ != nullptr) connection_->Signal(FrameKind::kMapped);
  if (!streams_.empty()) connection_->Signal(FrameKind::kFetches);
}

Status Peer::OnHeadFromReactor(std::string_view metadata, InFrame* frame) {
  const FrameKind kind = frame->header.kind;
  if (kind != FrameKind::kReply && kind != FrameKind::kError && kind != FrameKind::kPush) {
    return Status(Code::kInvalidArgument, "a frame that a server does not send");
  }
  if (Status s = TakeLoanFromReactor(&metadata, frame); !s.ok()) return s;
  if (kind == FrameKind::kPush) {
    frame->entry = channel_->BeginPushFromReactor(frame->header.request_id);
  } else {
    frame->entry = channel_->TakeCallFromReactor(frame->header.request_id);
  }
  if (frame->entry.call == nullptr) return Status();  // it has ended: its payload is dropped
  if (kind == FrameKind::kError) {
    PrepareError(metadata, frame);
    return Status();
  }
  PrepareReply(metadata, frame->loan.number != 0 ? frame->loan.bytes : frame->header.payload_bytes,
               frame);
  return Status();
}

Status Peer::TakeLoanFromReactor(std::string_view* metadata, InFrame* frame) {
  if ((frame->header.flags & (kHeld | kLent)) == 0) return Status();
  if ((frame->header.flags & kHeld) != 0) {
    if (streams_.empty() || frame->header.payload_bytes != 0 ||
        !Loan::ReadHeld(metadata, &frame->loan)) {
      return Status(Code::kInvalidArgument, "a held payload that this client did not ask for");
    }
  } else if (frame->header.payload_bytes != 0 || memory_ == nullptr ||
             !Loan::Read(*memory_, frame->header.method, metadata, &frame->loan)) {
    return Status(Code::kInvalidArgument, "a loan of memory that this client cannot read");
  }
  // Memory of this size will be allocated, so the limit for a header's payload applies.
  const uint64_t most = context_->options.limits.payload_bytes;
  if (frame->loan.bytes <= most) return Status();
  return Status(Code::kInvalidArgument, "a loan of " + std::to_string(frame->loan.bytes) +
                                            " bytes; the limit is " + std::to_string(most));
}

Status Peer::OnFrameFromReactor(InFrame* frame) {
  if (frame->loan.number != 0) {
    CollectFromReactor(std::move(*frame));
  } else if (frame->entry.call != nullptr) {
    channel_->ForgetDeadline(frame->entry.deadline_ms, frame->header.request_id);
    CompleteReply(frame, reactor_);
  }
  return Status();
}

void Peer::CollectFromReactor(InFrame frame) {
  Collection collection;
  collection.entry = std::move(frame.entry);
  if (frame.header.kind != FrameKind::kPush) collection.call_id = frame.header.request_id;
  collection.loan = frame.loan.number;
  const Collections::At at = collections_.Add(std::move(collection));
  Status status = std::move(frame.status);
  if (at->entry.call != nullptr && status.ok()) {
    if (frame.loan.pieces.empty()) {
      FetchFromReactor(std::move(frame), at);
      return;
    }
    Count(connection_->counters().read_bytes, frame.loan.bytes);
    if (!IsCopiedAtOnce(frame.loan)) {
      CopyFromReactor(std::move(frame), at);
      return;
    }
    if (!CopyLoan(*memory_, frame.loan, frame.into)) status = LostInMidPayload();
  }
  Collection ended = TakeCollection(at);
  if (ended.entry.call == nullptr) return;
  reactor_->CompleteFromReactor(std::move(ended.entry), std::move(status));
}

void Peer::FetchFromReactor(InFrame frame, Collections::At collection) {
  auto fetch = std::make_shared<Fetch>(
      frame.loan.number, frame.loan.bytes, streams_.size() + 1, std::move(frame.into),
      [channel = channel_](const std::shared_ptr<Fetch>& fetch, size_t range) {
        channel->StartRange(fetch, range);
      },
      [self = shared_from_this(), collection](const Status& status) {
        // Called on the reactor of the stream that ended last.
        Collection ended = self->TakeCollection(collection);
        self->channel_->Finish(std::move(ended.entry), ended.why.ok() ? status : ended.why);
      });
  collections_.SetCancel(collection, [fetch](const Status& why) { fetch->Cancel(why); });
  for (size_t i = 0; i < streams_.size(); ++i) streams_[i]->Begin(fetch, i + 1);
  fetch->FetchOverMain(0);
}

void Peer::CopyFromReactor(InFrame frame, Collections::At collection) {
  auto copy = std::make_shared<LoanCopy>(
      memory_, std::move(frame.loan), frame.into,
      [self = shared_from_this(), collection](bool whole) {
        Collection ended = self->TakeCollection(collection);
        Status status = ended.why;
        if (status.ok() && !whole) status = self->LostInMidPayload();
        if (self->reactor_->IsCurrentThread()) {  // it was cancelled
          self->reactor_->CompleteFromReactor(std::move(ended.entry), std::move(status));
        } else {
          ended.entry.call->Done(status);
        }
      });
  collections_.SetCancel(collection, [copy](const Status&) { copy->Cancel(); });
  context_->copy_threads.Add(copy);
}

Collection Peer::TakeCollection(Collections::At at) {
  Collection taken = collections_.Take(at);
  if (taken.call_id) channel_->ForgetDeadline(taken.entry.deadline_ms, *taken.call_id);
  connection_->Signal(FrameKind::kReturn, taken.loan);
  return taken;
}

Status Peer::LostInMidPayload() const {
  return channel_->Describe(Code::kUnavailable, "the connection was lost in mid-payload");
}

void Peer::OnClosedFromReactor(const Status& why, InFrame* unfinished) {
  const bool stopped = why.code() == Code::kCancelled;
  const Status lost = channel_->Describe(stopped ? why.code() : Code::kUnavailable, why.message());
  if (unfinished != nullptr && unfinished->entry.call != nullptr) {
    reactor_->CompleteFromReactor(std::move(unfinished->entry), lost);
  }
  channel_->FailAllFromReactor(lost);
  collections_.Cancel(std::nullopt, lost);
  for (const auto& stream : streams_) stream->Close();
  memory_.reset();
}

}  // namespace tensorwire::wire
