#include "channel.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace tensorwire::wire {
namespace {

// An unreachable peer is logged again after kTellAgainMs. If the last failure was longer ago than
// kForgetFailureMs, a new one counts as the first.
constexpr int64_t kTellAgainMs = 60'000;
constexpr int64_t kForgetFailureMs = 300'000;

}  // namespace

ChannelImpl::ChannelImpl(std::shared_ptr<Context> context, size_t number, std::string address,
                         std::string peer_name, int streams, int second_port, std::string advice)
    : context_(std::move(context)),
      reactor_(context_->ReactorFor(number)),
      address_(std::move(address)),
      peer_name_(std::move(peer_name)),
      second_port_(second_port),
      advice_(std::move(advice)),
      number_(number),
      streams_(streams) {}

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
        connection = peer_->connection();
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
    if (peer_ != nullptr) connection = peer_->connection();
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
    if (entry != nullptr && peer_ != nullptr) connection = peer_->connection();
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
    const bool is_leaving = std::erase(leaving_, call_id) > 0;
    if (!is_leaving && !entry.is_cancelled && peer_ != nullptr) connection = peer_->connection();
  }
  if (connection != nullptr) {
    connection->Signal(FrameKind::kCancel, call_id);
  }
  return entry;
}

void ChannelImpl::EndFromReactor(uint64_t call_id, const Status& why) {
  reactor_->AssertIsCurrent();
  CallTable::Entry entry = Withdraw(call_id);
  if (entry.call == nullptr && peer_ != nullptr) {
    entry = peer_->connection()->TakeArrivingCallFromReactor(call_id);
    ForgetDeadline(entry.deadline_ms, call_id);
  }
  if (entry.call != nullptr) {
    Status ended_by = entry.EndedBy(why);
    reactor_->CompleteFromReactor(std::move(entry), std::move(ended_by));
  } else if (peer_ != nullptr) {
    peer_->EndFromReactor(call_id, why);
  }
}

void ChannelImpl::StartRange(const std::shared_ptr<Fetch>& fetch, size_t range) {
  CallOptions options;
  options.done_on = RunOn::kReactor;
  const uint64_t id = Start(fetch->Request(range), fetch->Range(range), options);
  fetch->Begun(range, [self = shared_from_this(), id](const Status& why) {
    self->reactor_->Post([self, id, why] { self->EndFromReactor(id, why); });
  });
}

CallTable::Entry ChannelImpl::TakeCallFromReactor(uint64_t call_id) {
  std::lock_guard lock(mutex_);
  return calls_.Take(call_id);
}

CallTable::Entry ChannelImpl::BeginPushFromReactor(uint64_t what) {
  CallTable::Entry entry;
  if (push_receiver_ != nullptr) entry.call = push_receiver_->BeginFromReactor(what);
  entry.done_on = RunOn::kReactorWhenAlone;
  return entry;
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

void ChannelImpl::End() {
  std::vector<CallTable::Entry> calls;
  decltype(waiting_) unsent;  // destroyed after the lock is released
  std::shared_ptr<Peer> peer;
  {
    std::lock_guard lock(mutex_);
    MoveLocked(State::kStopped);
    unsent.swap(waiting_);
    peer.swap(peer_);
    deadlines_.Clear();
    calls = calls_.TakeAll();
  }
  for (auto& entry : calls) {
    Finish(std::move(entry), EngineStopped());
  }
  if (push_receiver_ != nullptr) {
    push_receiver_->OnLost(EngineStopped());
  }
  attempt_.reset();  // safe: the reactors have ended, or hold no reference to this
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
  reactor_->Post([self = shared_from_this()] {
    const auto attempt = std::make_shared<Attempt>(
        self->context_, self->reactor_, self->address_, self->peer_name_, self->second_port_,
        [self](const Status& why, const ReachedPeer& reached) {
          self->OnAttemptedFromReactor(why, reached);
        });
    self->attempt_ = attempt;
    attempt->BeginFromReactor();
  });
}

void ChannelImpl::OnAttemptedFromReactor(const Status& why, const ReachedPeer& reached) {
  attempt_.reset();
  if (why.ok()) {
    BeReadyFromReactor(reached);
  } else if (why.code() == Code::kCancelled || why.code() == Code::kFailedPrecondition ||
             why.code() == Code::kInvalidArgument) {
    FailAllFromReactor(Describe(why.code(), why.message()));
  } else {
    NoteFailureFromReactor(why);
    // gRPC's wording, which recovery code and tests look for.
    FailAllFromReactor(Describe(
        Code::kUnavailable, "failed to connect to all addresses; last error: " + why.message()));
  }
}

void ChannelImpl::BeReadyFromReactor(const ReachedPeer& reached) {
  failing_since_ms_ = told_ms_ = 0;
  const auto& connection = reached.opening->connection();
  std::vector<std::shared_ptr<Stream>> streams;
  for (int i = 1; i < streams_ && reached.memory == nullptr; ++i) {
    streams.push_back(
        std::make_shared<Stream>(context_, context_->ReactorFor(number_ + static_cast<size_t>(i)),
                                 reached.opening->address(), peer_name_));
  }
  auto peer = std::make_shared<Peer>(shared_from_this(), context_, connection, reached.memory,
                                     std::move(streams));
  peer->BeginFromReactor();
  std::lock_guard lock(mutex_);
  MoveLocked(State::kReady);
  peer_ = std::move(peer);
  // Under the lock, so that a cancellation is queued after its request. Send only queues them: a
  // reactor gathers what it sends (SendBatch).
  for (auto& [id, request] : waiting_) connection->Send(std::move(request));
  waiting_.clear();
}

void ChannelImpl::NoteFailureFromReactor(const Status& why) {
  const int64_t now_ms = NowMs();
  if (failing_since_ms_ == 0 || now_ms - failed_ms_ > kForgetFailureMs) {
    failing_since_ms_ = now_ms;
    told_ms_ = 0;
  }
  failed_ms_ = now_ms;
  const int64_t for_ms = now_ms - failing_since_ms_;
  const bool told = told_ms_ != 0 && now_ms - told_ms_ < kTellAgainMs;
  if (for_ms < context_->options.unreachable_after_ms || told) return;
  told_ms_ = now_ms;
  context_->Log(LogLevel::kWarning, "the data port of " + peer_name_ + " at " + address_ +
                                        " could not be reached for " +
                                        std::to_string(for_ms / 1000) + " s: " + why.message() +
                                        advice_);
}

void ChannelImpl::FailAllFromReactor(const Status& why) {
  reactor_->AssertIsCurrent();
  std::vector<CallTable::Entry> calls;
  decltype(waiting_) unsent;
  std::shared_ptr<Peer> peer;
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kStopped) MoveLocked(State::kIdle);
    peer.swap(peer_);
    unsent.swap(waiting_);
    deadlines_.Clear();
    calls = calls_.TakeAll();
  }
  for (auto& entry : calls) {
    reactor_->CompleteFromReactor(std::move(entry), why);
  }
  if (push_receiver_ != nullptr) push_receiver_->OnLost(why);
}

}  // namespace tensorwire::wire
