#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "context.h"
#include "opening.h"
#include "shared_memory.h"

namespace tensorwire::wire {

// What an attempt has found.
struct ReachedPeer {
  std::shared_ptr<Opening> opening;             // whose connection is to be handed over
  std::shared_ptr<const ForeignMemory> memory;  // null without a lane
};

// One attempt to reach a peer. Resolves the peer's name, and tries each address once, and then each
// with the peer's second port, if it has one: the next when one has failed, or has not answered for
// a while (RFC 8305). The first that accepts the greeting is the peer, and the others are given up.
// If the peer has a lane that this process reaches, the connection is made over that.
class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  // Called once, on the reactor. `why` not OK: kCancelled if the engine stops, kFailedPrecondition
  // or kInvalidArgument if another attempt would fail as well.
  using Done = std::function<void(const Status& why, const ReachedPeer& reached)>;

  Attempt(std::shared_ptr<Context> context, Reactor* reactor, std::string address,
          std::string peer_name, int second_port, Done done)
      : context_(std::move(context)),
        reactor_(reactor),
        address_(std::move(address)),
        peer_name_(std::move(peer_name)),
        second_port_(second_port),
        done_(std::move(done)) {}

  void BeginFromReactor();

 private:
  void ResolveFromReactor();
  void OnResolvedFromReactor(const Status& status, std::vector<SocketAddress> addresses);
  void TryNextFromReactor();
  void NoteFailureFromReactor(const Status& why);
  void OnOpenedFromReactor(Opening* opening, const Status& why, const Hello& hello);
  void OnLaneFromReactor(const Status& why);
  void UseFromReactor(std::shared_ptr<const ForeignMemory> memory, const Status& why_none);
  void EndFromReactor(const Status& why, const ReachedPeer& reached = {});
  void GiveUpAllFromReactor();

  const std::shared_ptr<Context> context_;  // keeps reactor_ alive, too
  Reactor* const reactor_;
  const std::string address_;
  const std::string peer_name_;
  const int second_port_;  // 0: there is none
  Done done_;              // null once it has been called

  std::string host_;
  int port_ = 0;
  bool resolved_again_ = false;
  std::vector<SocketAddress> tried_;  // or about to be
  std::deque<SocketAddress> left_;
  std::vector<std::shared_ptr<Opening>> openings_;
  Reactor::Timer timer_;  // for the name service, then for the next address
  int64_t give_up_ms_ = 0;
  Status failure_;                 // of the first address that failed, or that was refused
  std::shared_ptr<Opening> main_;  // the one that was accepted
  std::shared_ptr<Opening> lane_;
};

}  // namespace tensorwire::wire
