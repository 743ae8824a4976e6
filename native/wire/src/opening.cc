#include "opening.h"

#include <utility>

#include "authenticator.h"
#include "lane.h"

namespace tensorwire::wire {

Status Opening::BeginFromReactor(const SocketAddress& address, int64_t give_up_ms) {
  address_ = address;
  const bool is_lane = address.family() == AF_UNIX;
  Fd fd;
  if (Status s = BeginConnect(address, &fd); !s.ok()) return s;
  if (is_lane && !IsSameUser(fd.get())) {
    return Status(Code::kPermissionDenied, "it belongs to another user");
  }
  connection_ =
      std::make_shared<Connection>(context_, reactor_, std::move(fd), ToString(address), is_lane);
  connection_->SetPeerFromReactor(peer_name_);
  if (Status s = connection_->OpenFromReactor(shared_from_this(), /*connecting=*/true); !s.ok()) {
    connection_.reset();
    return s;
  }
  Hello hello;
  hello.task = context_->options.name;
  hello.peer = peer_name_;
  hello.checksum = context_->options.checksum;
  if (context_->authenticator != nullptr) hello.challenge = Authenticator::Challenge();
  hello_ = hello.Encode();
  connection_->Greet(FrameKind::kHello, hello_);
  connection_->CloseAtFromReactor(give_up_ms, Status(Code::kUnavailable, "no answer"));
  return Status();
}

void Opening::GiveUpFromReactor() {
  done_ = nullptr;
  connection_->CloseFromReactor(Cancelled());
}

Status Opening::OnHeadFromReactor(std::string_view metadata, InFrame* frame) {
  if (done_ == nullptr) return Status(Code::kInvalidArgument, "a frame that nobody asked for");
  if (frame->header.kind == FrameKind::kChallenge) return ProveFromReactor(metadata);
  if (frame->header.kind != FrameKind::kHelloAck) {
    return Status(Code::kInvalidArgument, "a frame before the greeting");
  }
  if (Status s = CheckServerFromReactor(metadata); !s.ok()) return s;
  const Hello hello = Hello::Decode(metadata);
  connection_->TrustFromReactor();
  if (hello.checksum) connection_->SendCheckedFromReactor();
  const auto self = shared_from_this();  // the connection may be handed over
  std::exchange(done_, nullptr)(this, Status(), hello);
  return Status();
}

void Opening::OnClosedFromReactor(const Status& why, InFrame* /*unfinished*/) {
  if (auto done = std::exchange(done_, nullptr)) done(this, why, Hello());
}

Status Opening::ProveFromReactor(std::string_view metadata) {
  const Authenticator* const authenticator = context_->authenticator.get();
  if (authenticator == nullptr || !challenge_.empty()) {
    return Status(Code::kInvalidArgument, "a challenge that nobody asked for");
  }
  challenge_ = metadata;
  Hello answer;
  answer.proof = authenticator->Prove(Authenticator::Role::kClient, {hello_, challenge_},
                                      connection_->TlsBindingFromReactor());
  connection_->Greet(FrameKind::kProof, answer.Encode());
  return Status();
}

Status Opening::CheckServerFromReactor(std::string_view metadata) const {
  const Authenticator* const authenticator = context_->authenticator.get();
  if (authenticator == nullptr) return Status();
  if (challenge_.empty()) {
    return Status(Code::kFailedPrecondition,
                  std::string("the server has no job token, and the client has one") + kSameToken);
  }
  if (authenticator->Check(Authenticator::Role::kServer,
                           {hello_, challenge_, Hello::BeforeProof(metadata)},
                           Hello::Decode(metadata).proof, connection_->TlsBindingFromReactor())) {
    return Status();
  }
  return Status(Code::kFailedPrecondition,
                std::string("the server cannot prove that it has this job's token") + kSameToken);
}

}  // namespace tensorwire::wire
