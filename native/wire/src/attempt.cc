#include "attempt.h"

#include <algorithm>
#include <utility>

#include "lane.h"
#include "tensorwire/wire/endpoint_map.h"

namespace tensorwire::wire {
namespace {

constexpr int64_t kNextAddressMs = 250;  // as RFC 8305 recommends
// Time for an address that is tried late. A task that listens there answers in one or two round
// trips.
constexpr int64_t kLeastPatienceMs = 2000;

}  // namespace

void Attempt::BeginFromReactor() {
  if (SplitAddress(address_, &host_, &port_)) return ResolveFromReactor();
  EndFromReactor(Status(Code::kInvalidArgument, "the address is not host:port"));
}

void Attempt::ResolveFromReactor() {
  std::vector<SocketAddress> addresses;
  if (IsNumeric(host_)) {
    const Status status = Resolve(host_, port_, /*passive=*/false, &addresses);
    OnResolvedFromReactor(status, std::move(addresses));
    return;
  }
  timer_ = reactor_->AtFromReactor(
      NowMs() + context_->options.connect_timeout_ms, [weak = weak_from_this()] {
        if (auto self = weak.lock()) {
          self->EndFromReactor(Status(Code::kUnavailable, "cannot resolve \"" + self->host_ +
                                                              "\": the name service is silent"));
        }
      });
  // Not here: the name service may take seconds, and the reactor must serve other connections.
  context_->options.blocking_executor([self = shared_from_this()] {
    std::vector<SocketAddress> found;
    const Status status = Resolve(self->host_, self->port_, /*passive=*/false, &found);
    self->reactor_->Post([self, status, found] { self->OnResolvedFromReactor(status, found); });
  });
}

void Attempt::OnResolvedFromReactor(const Status& status, std::vector<SocketAddress> addresses) {
  if (done_ == nullptr) return;  // too late
  if (!status.ok()) NoteFailureFromReactor(status);
  give_up_ms_ = NowMs() + context_->options.connect_timeout_ms;
  if (second_port_ != 0) {
    for (size_t i = 0, count = addresses.size(); i < count; ++i) {
      addresses.push_back(addresses[i]);
      addresses.back().SetPort(second_port_);
    }
  }
  for (const SocketAddress& each : addresses) {
    if (std::find(tried_.begin(), tried_.end(), each) != tried_.end()) continue;
    tried_.push_back(each);
    left_.push_back(each);
  }
  TryNextFromReactor();
}

void Attempt::TryNextFromReactor() {
  reactor_->CancelFromReactor(timer_);
  while (!left_.empty()) {
    auto opening = std::make_shared<Opening>(
        context_, reactor_, peer_name_,
        [self = shared_from_this()](Opening* opening, const Status& why, const Hello& hello) {
          self->OnOpenedFromReactor(opening, why, hello);
        });
    const int64_t now = NowMs();
    const bool is_late = left_.size() < tried_.size();
    const Status status = opening->BeginFromReactor(
        left_.front(), is_late ? std::max(give_up_ms_, now + kLeastPatienceMs) : give_up_ms_);
    left_.pop_front();
    if (!status.ok()) {
      NoteFailureFromReactor(status);
      continue;
    }
    openings_.push_back(std::move(opening));
    if (left_.empty()) return;
    timer_ = reactor_->AtFromReactor(now + kNextAddressMs, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->TryNextFromReactor();
    });
    return;
  }
  if (!openings_.empty()) return;
  // A process that refuses may have been given the address of a peer that is elsewhere now, if the
  // name service is behind.
  const bool is_refused = failure_.code() == Code::kFailedPrecondition && !IsNumeric(host_);
  if (is_refused && !std::exchange(resolved_again_, true)) return ResolveFromReactor();
  EndFromReactor(is_refused ? Status(Code::kUnavailable, failure_.message()) : failure_);
}

void Attempt::NoteFailureFromReactor(const Status& why) {
  // A refusal says more than that nobody is there.
  if (failure_.ok() || (why.code() == Code::kFailedPrecondition && failure_.code() != why.code())) {
    failure_ = why;
  }
}

void Attempt::OnOpenedFromReactor(Opening* opening, const Status& why, const Hello& hello) {
  const auto opened = opening->shared_from_this();
  std::erase(openings_, opened);
  if (why.code() == Code::kCancelled) return EndFromReactor(why);
  if (!why.ok()) {
    NoteFailureFromReactor(why);
    return TryNextFromReactor();
  }
  GiveUpAllFromReactor();
  main_ = opened;
  SocketAddress address;
  if (context_->options.transport == Transport::kTcp || hello.lane.empty() ||
      !LaneAddress(context_->options.host_directory, hello.lane, &address)) {
    return UseFromReactor(nullptr, Status(Code::kNotFound, "it shares no memory"));
  }
  lane_ = std::make_shared<Opening>(
      context_, reactor_, peer_name_,
      [self = shared_from_this()](Opening*, const Status& lane_why, const Hello&) {
        self->OnLaneFromReactor(lane_why);
      });
  // A socket to which a process can connect is on this host, however late its server answers.
  const int64_t give_up_ms = NowMs() + context_->options.connect_timeout_ms;
  if (Status s = lane_->BeginFromReactor(address, give_up_ms); !s.ok()) {
    UseFromReactor(nullptr, s.code() == Code::kPermissionDenied
                                ? s
                                : Status(Code::kNotFound, "it is on another host or network"));
  }
}

void Attempt::OnLaneFromReactor(const Status& why) {
  const auto lane = std::exchange(lane_, nullptr);
  if (why.code() == Code::kCancelled) return EndFromReactor(why);
  std::shared_ptr<const ForeignMemory> memory;
  Status status = why;
  if (why.ok()) {
    const Fd passed = lane->connection()->TakePassedFromReactor();
    status = ForeignMemory::Open(passed.get(), &memory);
    // One of the two connections is enough.
    (status.ok() ? main_ : lane)->GiveUpFromReactor();
    if (status.ok()) main_ = lane;
  }
  UseFromReactor(std::move(memory), status);
}

void Attempt::UseFromReactor(std::shared_ptr<const ForeignMemory> memory, const Status& why_none) {
  const Transport transport = context_->options.transport;
  const auto opened = main_;
  if (memory == nullptr && transport == Transport::kMemory) {
    opened->GiveUpFromReactor();
    EndFromReactor(Status(Code::kFailedPrecondition, "payloads shall go through memory only, and " +
                                                         peer_name_ +
                                                         " cannot be read: " + why_none.message()));
    return;
  }
  if (memory == nullptr && transport == Transport::kAuto && why_none.code() != Code::kNotFound) {
    // The peer is on this host, so its user may have expected shared memory.
    context_->Log(LogLevel::kInfo, "payloads of " + peer_name_ + " come by TCP, " +
                                       "although it is on this host: " + why_none.message());
  }
  if (opened->connection()->closed()) {
    EndFromReactor(Status(Code::kUnavailable, "the connection was lost"));
  } else {
    EndFromReactor(Status(), {opened, std::move(memory)});
  }
}

void Attempt::GiveUpAllFromReactor() {
  reactor_->CancelFromReactor(timer_);
  left_.clear();
  for (const auto& opening : std::exchange(openings_, {})) opening->GiveUpFromReactor();
}

void Attempt::EndFromReactor(const Status& why, const ReachedPeer& reached) {
  GiveUpAllFromReactor();
  main_.reset();
  lane_.reset();  // it refers to this, if it failed at once
  if (auto done = std::exchange(done_, nullptr)) done(why, reached);
}

}  // namespace tensorwire::wire
