#pragma once

#include <string>
#include <string_view>

#include "connection.h"
#include "context.h"
#include "hello.h"

namespace tensorwire::wire {

// A client's side of the greeting on one connection. What both sides say, and why, is in
// authenticator.h.
class ClientGreeting {
 public:
  ClientGreeting(const Context* context, Connection* connection)
      : context_(context), connection_(connection) {}

  // Says kHello, to the task `peer_name`.
  void BeginFromReactor(const std::string& peer_name);
  // kChallenge: answers with kProof.
  Status ProveFromReactor(std::string_view metadata);
  // kHelloAck: whether the server has the job token, if there is one.
  Status CheckServerFromReactor(std::string_view metadata) const;

 private:
  const Context* const context_;
  Connection* const connection_;
  std::string hello_;      // what was said
  std::string challenge_;  // and answered; "" if it was not
};

}  // namespace tensorwire::wire
