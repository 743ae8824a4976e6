#include "server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <utility>

#include "about.h"
#include "hello.h"
#include "lane.h"
#include "shared_memory.h"
#include "socket.h"
#include "tensorwire/wire/buffer_pool.h"

namespace tensorwire::wire {
namespace {

constexpr int kNoDescriptorsPauseMs = 100;
constexpr int kCrowdedPauseMs = 10;
constexpr int kCrowdedMs = 2000;  // within which each connection looks whether its peer idles
constexpr uint64_t kRequestBytes = 1024;  // memory of a request beside its metadata and payload
constexpr int kAcceptsPerTurn = 64;       // then this reactor's connections have their turn

}  // namespace

void Listener::StartFromReactor() {
  const Status s = reactor_->WatchFromReactor(fd_.get(), EPOLLIN, shared_from_this());
  if (s.ok()) return;
  context_->WarnAboutPeer("accept:", "cannot accept connections: " + s.message());
  PauseFromReactor(kNoDescriptorsPauseMs);
}

void Listener::PauseFromReactor(int pause_ms) {
  // The socket stays readable. It is not watched for a while, because otherwise the reactor would
  // spin. Meanwhile only the timer owns this.
  reactor_->AtFromReactor(NowMs() + pause_ms,
                          [self = shared_from_this()] { self->StartFromReactor(); });
  reactor_->UnwatchFromReactor(fd_.get(), this);
}

void Listener::OnStopFromReactor() {
  reactor_->UnwatchFromReactor(fd_.get(), this);
  if (is_lane_) RemoveLane(context_->options.host_directory, lane_);
}

void Listener::OnEventsFromReactor(uint32_t /*epoll_events*/) {
  for (int accepts = 0; accepts < kAcceptsPerTurn; ++accepts) {
    if (context_->strangers >= context_->most_strangers) {
      context_->crowded_until_ms = NowMs() + kCrowdedMs;
      PauseFromReactor(kCrowdedPauseMs);
      return;
    }
    Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        context_->WarnAboutPeer("accept:", "cannot accept a connection: " + ErrorText(errno));
        PauseFromReactor(kNoDescriptorsPauseMs);
      }
      return;
    }
    if (is_lane_ && !IsSameUser(fd.get())) continue;
    const std::string address = ToString(PeerAddress(fd.get()));
    Reactor* reactor = context_->NextAccepting();
    auto connection =
        std::make_shared<Connection>(context_, reactor, std::move(fd), address, is_lane_);
    auto session = std::make_shared<Session>(context_, connection, handler_, lane_);
    connection->BeStranger();
    reactor->Post([connection, session] { Session::OpenFromReactor(connection, session); });
  }
}

void Session::OpenFromReactor(const std::shared_ptr<Connection>& connection,
                              const std::shared_ptr<Session>& session) {
  connection->PauseReadingWhenBlockedFromReactor();
  if (!connection->OpenFromReactor(session, /*connecting=*/false).ok()) return;
  connection->CloseAtFromReactor(
      NowMs() + session->context_->options.handshake_timeout_ms,
      Status(Code::kUnavailable, "it did not finish the greeting in time"));
}

Status Session::OnHeadFromReactor(std::string_view metadata, InFrame* frame) {
  auto connection = connection_.lock();
  if (connection == nullptr) return Status();
  if (!greeted_) return OnGreetingFromReactor(frame->header, metadata, connection.get());
  switch (frame->header.kind) {
    case FrameKind::kRequest:
      if (frame->header.payload_bytes > kMaxRequestPayloadBytes) {
        return Status(Code::kInvalidArgument, "a request with a payload of " +
                                                  std::to_string(frame->header.payload_bytes) +
                                                  " bytes");
      }
      frame->status = ClaimFromReactor(frame->header, connection.get(), &frame->claim);
      if (!frame->status.ok()) return Status();  // its payload is dropped
      frame->payload = InFrame::Payload::kBytes;
      frame->metadata = metadata;
      if (frame->header.payload_bytes > 0) {
        frame->placed =
            handler_->PlaceFromReactor(frame->header.method, frame->header.payload_bytes);
      }
      if (frame->placed != nullptr) {
        frame->payload = InFrame::Payload::kInto;
        frame->into.push_back({frame->placed.get(), frame->header.payload_bytes});
      }
      return Status();
    case FrameKind::kCancel:
      return Status();
    case FrameKind::kMapped:
      connection->LendFromReactor();
      return Status();
    case FrameKind::kFetches:
      connection->HoldFromReactor();
      return Status();
    case FrameKind::kReturn:
      connection->ReturnLoanFromReactor(frame->header.request_id);
      return Status();
    default:
      return Status(Code::kInvalidArgument, "a frame that a client does not send");
  }
}

Status Session::ClaimFromReactor(const FrameHeader& header, Connection* connection, Claim* claim) {
  if (header.method == kFetchRange) return Status();  // answered at once
  const uint64_t limit = context_->options.unanswered_bytes;
  const uint64_t held = held_bytes_->bytes();
  const bool much = held > limit / 1024;
  const uint64_t of_all = context_->unanswered->bytes();
  if (held < limit && (!much || of_all < limit)) {
    *claim = Claim(held_bytes_.get(), much ? context_->unanswered.get() : nullptr,
                   kRequestBytes + header.metadata_bytes + header.payload_bytes);
    return Status();
  }
  Status refused(Code::kResourceExhausted,
                 "requests of " + connection->peer() + " that are not answered hold " +
                     std::to_string(held) + " bytes, and those of all peers " +
                     std::to_string(of_all) + "; the limit is " + std::to_string(limit));
  context_->WarnAboutPeer(connection->address(), "refused a request: " + refused.message());
  return refused;
}

Status Session::OnGreetingFromReactor(const FrameHeader& header, std::string_view metadata,
                                      Connection* connection) {
  const Authenticator* const authenticator = context_->authenticator.get();
  const FrameKind expected = challenge_.empty() ? FrameKind::kHello : FrameKind::kProof;
  if (header.kind != expected) {
    return Status(Code::kInvalidArgument, "a request before the greeting");
  }
  const Hello said = Hello::Decode(metadata);
  if (expected == FrameKind::kHello) {
    hello_ = metadata;
    if (said.challenge.empty() == (authenticator == nullptr)) {
      if (authenticator == nullptr) return AcceptFromReactor(connection);
      Hello answer;
      answer.challenge = Authenticator::Challenge();
      challenge_ = answer.Encode();
      connection->Greet(FrameKind::kChallenge, challenge_);
      return Status();
    }
    return Status(Code::kFailedPrecondition,
                  std::string(authenticator == nullptr
                                  ? "the client has a job token, and the server has none"
                                  : "the client has no job token, and the server has one") +
                      kSameToken);
  }
  if (!authenticator->Check(Authenticator::Role::kClient, {hello_, challenge_}, said.proof,
                            connection->TlsBindingFromReactor())) {
    return Status(Code::kFailedPrecondition,
                  std::string("the client's job token is not the server's") + kSameToken);
  }
  return AcceptFromReactor(connection);
}

Status Session::AcceptFromReactor(Connection* connection) {
  const Hello hello = Hello::Decode(hello_);
  const EngineOptions& options = context_->options;
  if (!hello.peer.empty() && !context_->IsNamed(hello.peer)) {
    return Status(Code::kFailedPrecondition,
                  hello.task + " wants " + Printable(hello.peer) + ", and this is " + options.name +
                      ": the .endpoint_map or the cluster spec of one of the two is wrong");
  }
  greeted_ = true;
  connection_id_ = connection->id();
  connection->TrustFromReactor();
  connection->SetPeerFromReactor(hello.task.empty() ? connection->address() : hello.task);
  if (hello.checksum) connection->SendCheckedFromReactor();
  Hello answer;
  answer.task = options.name;
  answer.checksum = options.checksum;
  if (!connection->sends_checked()) answer.lane = lane_;
  if (connection->is_lane()) {
    connection->PassFromReactor(options.pool->shared_memory()->descriptor());
  }
  if (const auto& authenticator = context_->authenticator; authenticator != nullptr) {
    answer.proof =
        authenticator->Prove(Authenticator::Role::kServer, {hello_, challenge_, answer.Encode()},
                             connection->TlsBindingFromReactor());
  }
  connection->Greet(FrameKind::kHelloAck, answer.Encode());
  return Status();
}

Status Session::OnFrameFromReactor(InFrame* frame) {
  auto connection = connection_.lock();
  if (connection == nullptr) return Status();
  if (frame->header.kind == FrameKind::kRequest) {
    Request request;
    request.method = frame->header.method;
    request.one_way = (frame->header.flags & kOneWay) != 0;
    request.id = frame->header.request_id;
    request.metadata = std::move(frame->metadata);
    request.payload = std::move(frame->bytes);
    request.placed = std::move(frame->placed);
    request.claim = std::move(frame->claim);
    Reactor* reactor = connection->reactor();
    request.connection = std::move(connection);
    if (!frame->status.ok()) {
      request.Fail(frame->status);
      return Status();
    }
    if (request.method == kFetchRange) {
      SendRange(request);
      return Status();
    }
    if (request.method == kAbout) {
      request.Reply(About());
      return Status();
    }
    const RunOn run_on = handler_->HandleOn(request);
    if (run_on == RunOn::kReactor) {
      handler_->HandleFromReactor(std::move(request));
      return Status();
    }
    handler_->ExpectFromReactor(request);
    reactor->DispatchFromReactor(handler_, std::move(request), run_on);
  } else if (frame->header.kind == FrameKind::kCancel) {
    handler_->OnCancel(connection_id_, frame->header.request_id);
  }
  return Status();
}

void Session::SendRange(const Request& request) const {
  MetadataReader reader(request.metadata);
  uint64_t number = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::shared_ptr<const HeldPayloads::Payload> payload;
  if (reader.Get(&number) && reader.Get(&offset) && reader.Get(&bytes)) {
    payload = context_->held.Find(number);
  }
  Message reply;
  if (payload != nullptr && AddRange(payload, offset, bytes, &reply)) {
    // Not through FrameWithPayload, so that a range is not held again.
    request.connection->Send(
        std::make_unique<OutFrame>(FrameKind::kReply, 0, request.id, std::move(reply)));
  } else {
    request.Fail(Status(Code::kUnavailable, "that payload is not held any more"));
  }
}

void Session::OnClosedFromReactor(const Status& /*why*/, InFrame* /*unfinished*/) {
  if (!greeted_) return;
  context_->options.executor(
      [handler = handler_, id = connection_id_] { handler->OnDisconnect(id); });
}

// --- OrderedHandler ----------------------------------------------------------------------------

void OrderedHandler::ExpectFromReactor(const Request& request) {
  std::lock_guard lock(mutex_);
  ++in_handle_[request.id].count;
}

void OrderedHandler::Handle(Request request) {
  const uint64_t connection_id = request.connection_id();
  const uint64_t id = request.id;
  handler_->Handle(std::move(request));
  bool cancelled = false;
  bool gone = false;
  {
    std::lock_guard lock(mutex_);
    const auto at = in_handle_.find(id);
    assert(at != in_handle_.end());  // it was expected
    if (--at->second.count == 0) {
      cancelled = at->second.cancelled;
      in_handle_.erase(at);
    }
    gone = gone_ && in_handle_.empty();
  }
  if (cancelled) handler_->OnCancel(connection_id, id);
  if (gone) handler_->OnDisconnect(connection_id);
}

void OrderedHandler::OnCancel(uint64_t connection_id, uint64_t request_id) {
  {
    std::lock_guard lock(mutex_);
    if (const auto at = in_handle_.find(request_id); at != in_handle_.end()) {
      at->second.cancelled = true;
      return;
    }
  }
  handler_->OnCancel(connection_id, request_id);
}

void OrderedHandler::OnDisconnect(uint64_t connection_id) {
  {
    std::lock_guard lock(mutex_);
    gone_ = true;
    if (!in_handle_.empty()) return;
  }
  handler_->OnDisconnect(connection_id);
}

// --- Request -----------------------------------------------------------------------------------

void Request::Reply(Message reply) const {
  claim.Release();
  if (one_way) return;
  const FrameLimits& limits = connection->limits();
  if (reply.metadata_bytes() > limits.metadata_bytes ||
      reply.payload_bytes() > limits.payload_bytes) {
    // The peer would close the connection, which would end all other requests, too.
    Fail(Status(Code::kResourceExhausted, "a reply of " + std::to_string(reply.metadata_bytes()) +
                                              " + " + std::to_string(reply.payload_bytes()) +
                                              " bytes is beyond the limits"));
    return;
  }
  connection->Send(connection->FrameWithPayload(FrameKind::kReply, id, std::move(reply)));
}

void Request::Fail(const Status& status) const {
  claim.Release();
  if (one_way) return;
  Message message(static_cast<uint16_t>(status.code()));
  const std::string& text = status.message();
  if (text.size() <= kMaxErrorMetadataBytes) {
    message.AppendMetadata(text);
  } else {
    const uint64_t most = std::min(kMaxErrorBytes, connection->limits().payload_bytes);
    message.SetOwnedPayload(text.substr(0, most));
  }
  connection->Send(std::make_unique<OutFrame>(FrameKind::kError, 0, id, std::move(message)));
}

bool Pusher::IsTaken() const {
  return connection_ != nullptr && !connection_->closed() && !connection_->HasBacklog();
}

bool Pusher::Push(uint64_t what, Message message) const {
  if (connection_ == nullptr || connection_->closed()) return false;
  connection_->Send(connection_->FrameWithPayload(FrameKind::kPush, what, std::move(message)));
  return true;
}

uint64_t Pusher::connection_id() const { return connection_ != nullptr ? connection_->id() : 0; }

uint64_t Request::connection_id() const { return connection->id(); }

const std::string& Request::peer() const { return connection->peer(); }

}  // namespace tensorwire::wire
