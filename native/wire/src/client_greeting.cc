#include "client_greeting.h"

#include "authenticator.h"

namespace tensorwire::wire {

void ClientGreeting::BeginFromReactor(const std::string& peer_name) {
  Hello hello;
  hello.task = context_->options.name;
  hello.peer = peer_name;
  hello.checksum = context_->options.checksum;
  if (context_->authenticator != nullptr) hello.challenge = Authenticator::Challenge();
  hello_ = hello.Encode();
  connection_->Greet(FrameKind::kHello, hello_);
}

Status ClientGreeting::ProveFromReactor(std::string_view metadata) {
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

Status ClientGreeting::CheckServerFromReactor(std::string_view metadata) const {
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
