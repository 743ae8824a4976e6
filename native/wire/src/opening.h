#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "connection.h"
#include "context.h"
#include "hello.h"
#include "socket.h"

namespace tensorwire::wire {

// A client's attempt to open one connection: it connects to one address and greets the server.
// authenticator.h describes the greeting of both sides.
class Opening : public FrameReceiver, public std::enable_shared_from_this<Opening> {
 public:
  // Called once, on the reactor, unless the opening is given up before: with what the server has
  // said, or with the reason why there is no connection. It must hand the
  // connection over, or give it up.
  using Done = std::function<void(Opening* opening, const Status& why, const Hello& hello)>;

  Opening(std::shared_ptr<Context> context, Reactor* reactor, std::string peer_name, Done done)
      : context_(std::move(context)),
        reactor_(reactor),
        peer_name_(std::move(peer_name)),
        done_(std::move(done)) {}

  // An error if it failed at once; then `done` is not called.
  Status BeginFromReactor(const SocketAddress& address, int64_t give_up_ms);
  // Closes the connection.
  void GiveUpFromReactor();

  const SocketAddress& address() const { return address_; }
  const std::shared_ptr<Connection>& connection() const { return connection_; }

 private:
  Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) override;
  Status OnFrameFromReactor(InFrame* /*frame*/) override { return Status(); }
  void OnClosedFromReactor(const Status& why, InFrame* unfinished) override;
  // kChallenge: answers with kProof.
  Status ProveFromReactor(std::string_view metadata);
  // kHelloAck: if there is a job token, checks that the server has it.
  Status CheckServerFromReactor(std::string_view metadata) const;

  const std::shared_ptr<Context> context_;
  Reactor* const reactor_;
  const std::string peer_name_;
  Done done_;  // null once it has been called
  SocketAddress address_;
  std::shared_ptr<Connection> connection_;
  std::string hello_;      // the kHello that was sent
  std::string challenge_;  // the server's challenge; "" if there was none
};

}  // namespace tensorwire::wire
