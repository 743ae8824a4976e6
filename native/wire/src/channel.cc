#include "channel.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "borrow.h"
#include "fetch.h"
#include "tensorwire/wire/endpoint_map.h"

namespace tensorwire::wire {
namespace {

constexpr int64_t kLeastPatienceMs = 20;  // for each address, however many there are
// Time for the second port. A task that listens there answers in one or two round trips.
constexpr int64_t kSecondPortMs = 2000;
// EngineOptions::on_unreachable is called again after kTellAgainMs. If the last failure was longer
// ago than kForgetFailureMs, a new one counts as the first.
constexpr int64_t kTellAgainMs = 60'000;
constexpr int64_t kForgetFailureMs = 300'000;
constexpr uint16_t kLastCode = 16;  // the last canonical code

}  // namespace

ChannelImpl::ChannelImpl(std::shared_ptr<Context> context, size_t number, std::string address,
                         std::string peer_name, int streams, int second_port)
    : context_(std::move(context)),
      reactor_(context_->ReactorFor(number)),
      address_(std::move(address)),
      peer_name_(std::move(peer_name)),
      second_port_(second_port) {
  for (int i = 1; i < streams; ++i) {
    more_streams_.push_back(std::make_shared<ChannelImpl>(context_, number + static_cast<size_t>(i),
                                                          address_, peer_name_, /*streams=*/1,
                                                          second_port_));
  }
}

ChannelImpl::~ChannelImpl() { End(); }

uint64_t ChannelImpl::Start(Message request, std::unique_ptr<Call> call,
                            const CallOptions& options) {
  std::shared_ptr<Connection> connection;
  std::unique_ptr<OutFrame> frame;
  uint64_t id = 0;
  bool connect = false;
  bool look = false;  // at the deadlines, earlier than planned
  const int64_t deadline_ms = options.deadline_ms > 0 ? NowMs() + options.deadline_ms : 0;
  Status refused = CheckSize(request);
  {
    std::lock_guard lock(mutex_);
    id = calls_.Insert(std::move(call), options.done_on, deadline_ms);
    if (state_ == State::kStopped) refused = EngineStopped();
    if (refused.ok()) {
      frame = std::make_unique<OutFrame>(FrameKind::kRequest, 0, id, std::move(request));
      if (state_ == State::kReady) {
        connection = ready_;
      } else {
        waiting_.emplace(id, std::move(frame));
        connect = state_ == State::kIdle;
        if (connect) MoveLocked(State::kConnecting);
      }
      if (deadline_ms > 0) {
        if (connection != nullptr) leaving_.push_back(id);
        look = deadlines_.Add(deadline_ms, id);
      }
    }
  }
  if (!refused.ok()) {
    CallTable::Entry entry;
    {
      std::lock_guard lock(mutex_);
      entry = calls_.Take(id);
    }
    if (entry.call != nullptr) Finish(std::move(entry), refused);
    return id;
  }
  if (connection != nullptr) {
    connection->Send(std::move(frame));
    if (deadline_ms > 0) {
      bool withdrawn = false;
      {
        std::lock_guard lock(mutex_);
        withdrawn = std::erase(leaving_, id) == 0;
      }
      if (withdrawn) connection->Signal(FrameKind::kCancel, id);
    }
  } else if (connect) {
    ConnectSoon();
  }
  if (look) LookAtDeadlines();
  return id;
}

void ChannelImpl::LookAtDeadlines() {
  reactor_->Post([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->LookAtDeadlinesFromReactor();
  });
}

void ChannelImpl::LookAtDeadlinesFromReactor() {
  reactor_->CancelFromReactor(deadline_timer_);
  std::optional<int64_t> look_ms;
  {
    std::lock_guard lock(mutex_);
    look_ms = deadlines_.PlanLook();
  }
  if (!look_ms) return;
  deadline_timer_ = reactor_->AtFromReactor(*look_ms, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->EndOverdueFromReactor();
  });
}

void ChannelImpl::EndOverdueFromReactor() {
  std::vector<uint64_t> overdue;
  {
    std::lock_guard lock(mutex_);
    overdue = deadlines_.TakeOverdue(NowMs());
  }
  const Status why = Describe(Code::kDeadlineExceeded, "the deadline passed");
  for (const uint64_t id : overdue) EndFromReactor(id, why);
  LookAtDeadlinesFromReactor();
}

void ChannelImpl::ForgetDeadline(int64_t deadline_ms, uint64_t call_id) {
  if (deadline_ms == 0) return;
  std::lock_guard lock(mutex_);
  deadlines_.Remove(deadline_ms, call_id);
}

void ChannelImpl::RunAfter(int delay_ms, std::function<void()> closure) {
  reactor_->PostAfter(delay_ms, std::move(closure));
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
  if (CallTable::Entry entry = Withdraw(call_id); entry.call != nullptr) {
    Finish(std::move(entry), Cancelled());
    return;
  }
  reactor_->Post([weak = weak_from_this(), call_id] {
    if (auto self = weak.lock()) self->EndFromReactor(call_id, Cancelled());
  });
}

void ChannelImpl::CancelPatiently(uint64_t call_id, int64_t patience_ms) {
  std::shared_ptr<Connection> connection;
  bool look = false;
  {
    std::lock_guard lock(mutex_);
    CallTable::Entry* const entry = calls_.Find(call_id);
    if (entry != nullptr && waiting_.count(call_id) == 0) connection = ready_;
    if (connection != nullptr) {
      const int64_t limit_ms = NowMs() + patience_ms;
      deadlines_.Remove(entry->deadline_ms, call_id);
      entry->deadline_ms =
          entry->deadline_ms == 0 ? limit_ms : std::min(entry->deadline_ms, limit_ms);
      entry->is_cancelled = true;
      look = deadlines_.Add(entry->deadline_ms, call_id);
    }
  }
  if (connection == nullptr) return Cancel(call_id);
  connection->Signal(FrameKind::kCancel, call_id);
  if (look) LookAtDeadlines();
}

CallTable::Entry ChannelImpl::Withdraw(uint64_t call_id) {
  CallTable::Entry entry;
  std::unique_ptr<OutFrame> unsent;
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard lock(mutex_);
    entry = calls_.Take(call_id);
    if (entry.call == nullptr) return entry;  // the call has ended, or its reply is arriving
    deadlines_.Remove(entry.deadline_ms, call_id);
    if (const auto at = waiting_.find(call_id); at != waiting_.end()) {
      unsent = std::move(at->second);
      waiting_.erase(at);
    }
    // If Start has not queued the request yet, Start sends the cancellation, which must not
    // overtake the request. After CancelPatiently the peer knows already.
    if (std::erase(leaving_, call_id) == 0 && !entry.is_cancelled) connection = ready_;
  }
  if (connection != nullptr) {
    connection->Signal(FrameKind::kCancel, call_id);
  }
  return entry;
}

void ChannelImpl::EndFromReactor(uint64_t call_id, const Status& why) {
  reactor_->AssertIsCurrent();
  CallTable::Entry entry = Withdraw(call_id);
  if (entry.call == nullptr && ready_ != nullptr) {
    entry = ready_->TakeArrivingCallFromReactor(call_id);
    ForgetDeadline(entry.deadline_ms, call_id);
  }
  if (entry.call != nullptr) {
    Status ended_by = entry.EndedBy(why);
    reactor_->CompleteFromReactor(std::move(entry), std::move(ended_by));
  } else {
    collections_.Cancel(call_id, why);
  }
}

Status ChannelImpl::CheckSize(const Message& request) const {
  const FrameLimits& limits = context_->options.limits;
  const uint64_t most_payload = std::min(limits.payload_bytes, kMaxRequestPayloadBytes);
  if (request.metadata_bytes() <= limits.metadata_bytes &&
      request.payload_bytes() <= most_payload) {
    return Status();
  }
  // The peer would close the connection, which would end all other calls, too.
  return Describe(Code::kInvalidArgument,
                  "a request of " + std::to_string(request.metadata_bytes()) + " + " +
                      std::to_string(request.payload_bytes()) + " bytes is beyond the limits of " +
                      std::to_string(limits.metadata_bytes) + " + " + std::to_string(most_payload));
}

void ChannelImpl::Finish(CallTable::Entry entry, const Status& status) {
  // Not in this thread: the thread that cancels may hold locks that Done takes.
  std::shared_ptr<Call> call(std::move(entry.call));
  context_->options.executor([call, status] { call->Done(status); });
}

Status ChannelImpl::Describe(Code code, const std::string& what) const {
  return Status(code, peer_name_ + " at " + address_ + ": " + what);
}

void ChannelImpl::Stop() {
  for (const auto& stream : more_streams_) stream->End();
  End();
}

void ChannelImpl::End() {
  std::vector<CallTable::Entry> calls;
  decltype(waiting_) unsent;  // destroyed after the lock is released
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard lock(mutex_);
    MoveLocked(State::kStopped);
    unsent.swap(waiting_);
    connection.swap(ready_);
    deadlines_.Clear();
    calls = calls_.TakeAll();
  }
  for (auto& entry : calls) {
    Finish(std::move(entry), EngineStopped());
  }
  if (push_receiver_ != nullptr) {
    push_receiver_->OnLost(EngineStopped());
  }
  opening_.reset();  // safe: the reactors have ended, or hold no reference to this
}

void ChannelImpl::MoveLocked(State next) {
  [[maybe_unused]] const auto may_follow = [](State from, State to) {
    switch (to) {
      case State::kIdle:
        return from == State::kConnecting || from == State::kReady;
      case State::kConnecting:
        return from == State::kIdle;
      case State::kReady:
        return from == State::kConnecting;
      case State::kStopped:
        return true;
    }
    return false;
  };
  assert(may_follow(state_, next));
  state_ = next;
}

// --- connecting --------------------------------------------------------------------------------

void ChannelImpl::ConnectSoon() {
  reactor_->Post([self = shared_from_this()] { self->ResolveFromReactor(); });
}

void ChannelImpl::ResolveFromReactor() {
  reactor_->AssertIsCurrent();
  give_up_ms_ = NowMs() + context_->options.connect_timeout_ms;
  addresses_left_.clear();  // left from an attempt that ended before it had tried all
  second_addresses_.clear();
  first_failure_ = Status();
  std::string host;
  int port = 0;
  if (!SplitAddress(address_, &host, &port)) {
    FailAllFromReactor(Describe(Code::kInvalidArgument, "the address is not host:port"));
    return;
  }
  // Not here: the name service may take seconds, and the reactor must serve other connections.
  context_->options.blocking_executor([self = shared_from_this(), host, port] {
    std::vector<SocketAddress> addresses;
    const Status status = Resolve(host, port, /*passive=*/false, &addresses);
    self->reactor_->Post([self, status, addresses] {
      if (status.ok()) {
        if (self->second_port_ != 0) {
          self->second_addresses_ = addresses;
          for (SocketAddress& each : self->second_addresses_) each.SetPort(self->second_port_);
        }
        self->AttemptFromReactor(addresses);
      } else {
        self->TryNextOrFailFromReactor(status);
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
    auto connection =
        std::make_shared<Connection>(context_, reactor_, std::move(fd), ToString(address));
    connection->SetPeerFromReactor(peer_name_);
    status = connection->OpenFromReactor(shared_from_this(), /*connecting=*/true);
    if (!status.ok()) continue;
    opening_.emplace(Opening{connection, ClientGreeting(context_.get(), connection.get())});
    opening_->greeting.BeginFromReactor(peer_name_);
    // Each address gets its share of the time, so that one that never answers leaves time for the
    // others.
    const int64_t share_ms =
        (give_up_ms_ - NowMs()) / static_cast<int64_t>(1 + addresses_left_.size());
    const int64_t patience_ms = std::max<int64_t>(share_ms, kLeastPatienceMs);
    connection->CloseAtFromReactor(NowMs() + patience_ms, Status(Code::kUnavailable, "no answer"));
    return;
  }
  TryNextOrFailFromReactor(status);
}

void ChannelImpl::TryNextOrFailFromReactor(const Status& why) {
  if (!addresses_left_.empty()) {
    AttemptFromReactor(std::move(addresses_left_));
    return;
  }
  if (!second_addresses_.empty()) {
    first_failure_ = why;
    give_up_ms_ = std::max(give_up_ms_, NowMs() + kSecondPortMs);
    AttemptFromReactor(std::exchange(second_addresses_, {}));
    return;
  }
  const Status failure = first_failure_.ok() ? why : std::exchange(first_failure_, Status());
  if (failure.code() == Code::kFailedPrecondition) {
    FailAllFromReactor(Describe(failure.code(), failure.message()));
    return;
  }
  NoteFailureFromReactor(failure);
  // gRPC's wording, which recovery code and tests look for.
  FailAllFromReactor(Describe(
      Code::kUnavailable, "failed to connect to all addresses; last error: " + failure.message()));
}

void ChannelImpl::NoteFailureFromReactor(const Status& why) {
  const int64_t now_ms = NowMs();
  if (failing_since_ms_ == 0 || now_ms - failed_ms_ > kForgetFailureMs) {
    failing_since_ms_ = now_ms;
    told_ms_ = 0;
  }
  failed_ms_ = now_ms;
  const EngineOptions& options = context_->options;
  const int64_t for_ms = now_ms - failing_since_ms_;
  const bool told = told_ms_ != 0 && now_ms - told_ms_ < kTellAgainMs;
  if (!options.on_unreachable || for_ms < options.unreachable_after_ms || told) return;
  told_ms_ = now_ms;
  options.blocking_executor(
      [tell = options.on_unreachable,
       what = Unreachable{peer_name_, address_, for_ms, why.message()}] { tell(what); });
}

void ChannelImpl::FailAllFromReactor(const Status& why) {
  reactor_->AssertIsCurrent();
  std::vector<CallTable::Entry> calls;
  decltype(waiting_) unsent;
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kStopped) MoveLocked(State::kIdle);
    connection.swap(ready_);
    unsent.swap(waiting_);
    deadlines_.Clear();
    calls = calls_.TakeAll();
  }
  for (auto& entry : calls) {
    reactor_->CompleteFromReactor(std::move(entry), why);
  }
  collections_.Cancel(std::nullopt, why);
  if (push_receiver_ != nullptr) push_receiver_->OnLost(why);
}

// --- frames ------------------------------------------------------------------------------------

Status ChannelImpl::OnHeadFromReactor(std::string_view metadata, InFrame* frame) {
  switch (frame->header.kind) {
    case FrameKind::kChallenge:
      if (!opening_) return Status(Code::kInvalidArgument, "a challenge that nobody asked for");
      return opening_->greeting.ProveFromReactor(metadata);
    case FrameKind::kHelloAck:
      if (!opening_) return Status(Code::kInvalidArgument, "a second greeting");
      return BeReadyFromReactor(*opening_, metadata);
    case FrameKind::kReply:
    case FrameKind::kError:
      if (opening_) return Status(Code::kInvalidArgument, "a reply before the greeting");
      return OnReplyFromReactor(metadata, frame);
    case FrameKind::kPush:
      if (opening_) return Status(Code::kInvalidArgument, "a push before the greeting");
      return OnPushFromReactor(metadata, frame);
    default:
      return Status(Code::kInvalidArgument, "a frame that a server does not send");
  }
}

Status ChannelImpl::BeReadyFromReactor(const Opening& opening, std::string_view metadata) {
  const std::shared_ptr<Connection> connection = opening.connection;
  if (Status s = opening.greeting.CheckServerFromReactor(metadata); !s.ok()) return s;
  connection->TrustFromReactor();
  if (Status s = MapFromReactor(Hello::Decode(metadata), connection.get()); !s.ok()) return s;
  opening_.reset();
  failing_since_ms_ = told_ms_ = 0;
  std::lock_guard lock(mutex_);
  MoveLocked(State::kReady);
  ready_ = connection;
  // Under the lock, so that a cancellation is queued after its request. Send only queues them: a
  // reactor gathers what it sends (SendBatch).
  for (auto& [id, request] : waiting_) connection->Send(std::move(request));
  waiting_.clear();
  return Status();
}

Status ChannelImpl::OnReplyFromReactor(std::string_view metadata, InFrame* frame) {
  if (Status s = TakeLoanFromReactor(&metadata, frame); !s.ok()) return s;
  {
    std::lock_guard lock(mutex_);
    frame->entry = calls_.Take(frame->header.request_id);
  }
  if (frame->entry.call == nullptr) return Status();  // it has ended: its payload is dropped
  if (frame->header.kind == FrameKind::kReply) {
    PrepareFromReactor(metadata, frame);
    return Status();
  }
  const bool known = frame->header.method > 0 && frame->header.method <= kLastCode;
  frame->status = Status(known ? static_cast<Code>(frame->header.method) : Code::kUnknown,
                         std::string(metadata));
  // A longer message comes as payload.
  const uint64_t bytes = frame->header.payload_bytes;
  if (bytes > 0 && bytes <= kMaxErrorBytes) frame->payload = InFrame::Payload::kBytes;
  return Status();
}

Status ChannelImpl::OnPushFromReactor(std::string_view metadata, InFrame* frame) {
  if (Status s = TakeLoanFromReactor(&metadata, frame); !s.ok()) return s;
  if (push_receiver_ == nullptr) return Status();
  frame->entry.call = push_receiver_->BeginFromReactor(frame->header.request_id);
  frame->entry.done_on = RunOn::kReactorWhenAlone;
  if (frame->entry.call != nullptr) PrepareFromReactor(metadata, frame);
  return Status();
}

Status ChannelImpl::MapFromReactor(const Hello& hello, Connection* connection) {
  memory_.reset();
  if (hello.checksum) connection->SendCheckedFromReactor();
  if (!more_streams_.empty()) connection->Signal(FrameKind::kFetches);
  const Transport transport = context_->options.transport;
  if (transport == Transport::kTcp) return Status();
  Status status(Code::kPermissionDenied, "it shares no memory");
  if (!hello.memory.empty()) status = ForeignMemory::Open(hello.memory, &memory_);
  if (status.ok()) {
    connection->Signal(FrameKind::kMapped);
  } else if (status.code() == Code::kPermissionDenied && !hello.memory.empty() &&
             transport == Transport::kAuto) {
    // The peer is on this host, so its user may have expected shared memory.
    context_->Log(LogLevel::kInfo, "payloads of " + peer_name_ + " come by TCP, " +
                                       "although it is on this host: " + status.message());
  } else if (transport == Transport::kMemory) {
    return Status(Code::kFailedPrecondition, "payloads shall go through memory only, and " +
                                                 peer_name_ +
                                                 " cannot be read: " + status.message());
  }
  return Status();
}

Status ChannelImpl::TakeLoanFromReactor(std::string_view* metadata, InFrame* frame) {
  if ((frame->header.flags & (kHeld | kLent)) == 0) return Status();
  if ((frame->header.flags & kHeld) != 0) {
    if (more_streams_.empty() || frame->header.payload_bytes != 0 ||
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

void ChannelImpl::PrepareFromReactor(std::string_view metadata, InFrame* frame) {
  const bool lent = frame->loan.number != 0;
  const uint64_t payload_bytes = lent ? frame->loan.bytes : frame->header.payload_bytes;
  frame->status = frame->entry.call->PrepareFromReactor(metadata, payload_bytes, &frame->into);
  uint64_t room = 0;
  for (const MutableBuffer& buffer : frame->into) room += buffer.size;
  if (frame->status.ok() && room == payload_bytes) {
    if (!lent) frame->payload = InFrame::Payload::kInto;
  } else if (frame->status.ok()) {
    frame->status = Describe(Code::kInternal, "a reply of another size than it announced");
  }
}

void ChannelImpl::CollectFromReactor(InFrame frame) {
  Collection collection;
  collection.entry = std::move(frame.entry);
  if (frame.header.kind != FrameKind::kPush) collection.call_id = frame.header.request_id;
  collection.loan = frame.loan.number;
  collection.lender = ready_;
  const Collections::At at = collections_.Add(std::move(collection));
  Status status = std::move(frame.status);
  if (at->entry.call != nullptr && status.ok()) {
    if (frame.loan.pieces.empty()) {
      FetchFromReactor(std::move(frame), at);
      return;
    }
    if (at->lender != nullptr) Count(at->lender->counters().read_bytes, frame.loan.bytes);
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

void ChannelImpl::FetchFromReactor(InFrame frame, Collections::At collection) {
  auto fetch = std::make_shared<Fetch>(
      frame.loan.bytes, more_streams_.size() + 1, std::move(frame.into),
      [self = shared_from_this(), collection](const Status& status) {
        // Called on the reactor of the stream that ended last.
        Collection ended = self->TakeCollection(collection);
        self->Finish(std::move(ended.entry), ended.why.ok() ? status : ended.why);
      });
  Fetch::Cancels cancels;
  CallOptions options;
  options.done_on = RunOn::kReactor;
  for (size_t i = 0; i < fetch->ranges(); ++i) {
    auto stream = i == 0 ? shared_from_this() : more_streams_[i - 1];
    const uint64_t id =
        stream->Start(fetch->Request(frame.loan.number, i), fetch->Range(i), options);
    cancels.push_back([stream, id](const Status& why) {
      stream->reactor_->Post([stream, id, why] { stream->EndFromReactor(id, why); });
    });
  }
  collections_.SetCancel(collection, [fetch](const Status& why) { fetch->Cancel(why); });
  fetch->Started(std::move(cancels));
}

void ChannelImpl::CopyFromReactor(InFrame frame, Collections::At collection) {
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

Collection ChannelImpl::TakeCollection(Collections::At at) {
  Collection taken = collections_.Take(at);
  if (taken.call_id) ForgetDeadline(taken.entry.deadline_ms, *taken.call_id);
  if (taken.lender != nullptr) taken.lender->Signal(FrameKind::kReturn, taken.loan);
  return taken;
}

Status ChannelImpl::LostInMidPayload() const {
  return Describe(Code::kUnavailable, "the connection was lost in mid-payload");
}

Status ChannelImpl::OnFrameFromReactor(InFrame* frame) {
  if (frame->loan.number != 0) {
    CollectFromReactor(std::move(*frame));
    return Status();
  }
  if (frame->entry.call != nullptr) {
    ForgetDeadline(frame->entry.deadline_ms, frame->header.request_id);
    // The message of an error reply. A damaged frame has its message already.
    if (!frame->bytes.empty() && frame->status.message().empty()) {
      frame->status = Status(frame->status.code(), std::move(frame->bytes));
    }
    reactor_->CompleteFromReactor(std::move(frame->entry), std::move(frame->status));
  }
  return Status();
}

void ChannelImpl::OnClosedFromReactor(const Status& why, InFrame* unfinished) {
  // If the peer refuses us in the greeting, it would refuse us at its other addresses as well.
  const bool was_opening = opening_.has_value();
  const bool refused = was_opening && why.code() == Code::kFailedPrecondition;
  const bool stopped = why.code() == Code::kCancelled;
  const Status lost = Describe(refused || stopped ? why.code() : Code::kUnavailable, why.message());
  if (unfinished != nullptr && unfinished->entry.call != nullptr) {
    reactor_->CompleteFromReactor(std::move(unfinished->entry), lost);
  }
  opening_.reset();
  // But if the peer has a second port, another process may have its first one; then go on.
  if (refused) addresses_left_.clear();
  const bool has_more = !refused || !second_addresses_.empty();
  if (was_opening && has_more && !stopped) {
    TryNextOrFailFromReactor(why);
  } else {
    FailAllFromReactor(lost);
  }
}

}  // namespace tensorwire::wire
