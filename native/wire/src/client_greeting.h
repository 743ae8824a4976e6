#pragma once

#include <string>
#include <string_view>

#include "connection.h"
#include "context.h"
#include "hello.h"

namespace tensorwire::wire {

// A client's side of the greeting on one connection. authenticator.h describes the greeting of both
// sides.
class ClientGreeting {
 public:
  ClientGreeting(const Context* context, Connection* connection)
      : context_(context), connection_(connection) {}

  // Sends kHello to the task `peer_name`.
  void BeginFromReactor(const std::string& peer_name);
  // kChallenge: answers with kProof.
  Status ProveFromReactor(std::string_view metadata);
  // kHelloAck: if there is a job token, checks that the server has it.
  Status CheckServerFromReactor(std::string_view metadata) const;

 private:
  const Context* const context_;
  Connection* const connection_;
  std::string hello_;      // the kHello that was sent
  std::string challenge_;  // the server's challenge; "" if there was none
};

}  // namespace tensorwire::wire
