#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "call_table.h"
#include "client_greeting.h"
#include "collections.h"
#include "connection.h"
#include "context.h"
#include "deadlines.h"
#include "hello.h"
#include "socket.h"

namespace tensorwire::wire {

// A client's side of the connections to one peer. It has at most one connection at a time, which is
// made when a call needs it. An attempt tries each address of the peer once, for
// `connect_timeout_ms` at most, and then each with the peer's second port, if it has one. When all
// have failed, the calls that wait end with kUnavailable, and the next call begins another attempt.
// When a connection is lost, the calls on it end with kUnavailable. It is not known whether the
// peer had begun to serve them, so the caller decides whether to send them again.
//
// A call is in one place at a time, and the code that takes it out ends it. It is in `calls_` until
// its reply's head arrives (and its frame is in `waiting_` while there is no connection), then in
// the connection's FrameReader while the payload arrives, or in `collections_` while the payload is
// fetched or copied.
class ChannelImpl : public Channel,
                    public FrameReceiver,
                    public std::enable_shared_from_this<ChannelImpl> {
 public:
  // `number`: of its reactor. `streams`: the number of connections over which a large payload comes
  // in; at least 1. The further streams are on the following reactors. `second_port`: see
  // Engine::Connect.
  ChannelImpl(std::shared_ptr<Context> context, size_t number, std::string address,
              std::string peer_name, int streams, int second_port = 0);
  ~ChannelImpl() override;

  uint64_t Start(Message request, std::unique_ptr<Call> call, const CallOptions& options) override;
  void SetPushReceiver(std::shared_ptr<PushReceiver> receiver) override {
    push_receiver_ = std::move(receiver);
  }
  void RunAfter(int delay_ms, std::function<void()> closure) override;
  void Notify(Message request, bool lazy) override;
  void Cancel(uint64_t call_id) override;
  void CancelPatiently(uint64_t call_id, int64_t patience_ms) override;

  // The engine stops: ends all calls. Every later call ends at once.
  void Stop();

 private:
  // MoveLocked checks which transitions are allowed.
  enum class State {
    kIdle,        // no connection; the next call makes one
    kConnecting,  // calls are in `waiting_` until there is one
    kReady,       // `ready_` is the connection
    kStopped,     // every call ends at once
  };
  void MoveLocked(State next);
  void End();

  // A connection that is being made.
  struct Opening {
    std::shared_ptr<Connection> connection;
    ClientGreeting greeting;
  };

  // FrameReceiver.
  Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) override;
  Status OnFrameFromReactor(InFrame* frame) override;
  void OnClosedFromReactor(const Status& why, InFrame* unfinished) override;

  // Connecting.
  void ConnectSoon();
  void ResolveFromReactor();
  void AttemptFromReactor(std::vector<SocketAddress> addresses);
  void TryNextOrFailFromReactor(const Status& why);
  void NoteFailureFromReactor(const Status& why);
  void FailAllFromReactor(const Status& why);
  // kHelloAck.
  Status BeReadyFromReactor(const Opening& opening, std::string_view metadata);
  // Opens the peer's shared memory, if its payloads can be read there.
  Status MapFromReactor(const Hello& hello, Connection* connection);

  // Calls.
  Status CheckSize(const Message& request) const;
  // Takes out a call that waits for its reply, and sends the peer a cancellation.
  CallTable::Entry Withdraw(uint64_t call_id);
  // Ends a call in whichever place it is, unless it has ended.
  void EndFromReactor(uint64_t call_id, const Status& why);
  void LookAtDeadlines();
  void LookAtDeadlinesFromReactor();
  void EndOverdueFromReactor();
  void ForgetDeadline(int64_t deadline_ms, uint64_t call_id);
  void Finish(CallTable::Entry entry, const Status& status);
  Status Describe(Code code, const std::string& what) const;

  // Replies and pushes.
  Status OnReplyFromReactor(std::string_view metadata, InFrame* frame);
  Status OnPushFromReactor(std::string_view metadata, InFrame* frame);
  void PrepareFromReactor(std::string_view metadata, InFrame* frame);
  Status TakeLoanFromReactor(std::string_view* metadata, InFrame* frame);
  void CollectFromReactor(InFrame frame);
  void FetchFromReactor(InFrame frame, Collections::At collection);
  void CopyFromReactor(InFrame frame, Collections::At collection);
  // Ends a collection and returns the payload to the peer. Any thread.
  Collection TakeCollection(Collections::At at);
  Status LostInMidPayload() const;

  const std::shared_ptr<Context> context_;  // keeps reactor_ alive, too
  Reactor* const reactor_;
  const std::string address_;
  const std::string peer_name_;
  const int second_port_;  // 0: there is none
  std::shared_ptr<PushReceiver> push_receiver_;
  // Further connections to the same peer, on other reactors, used only to fetch.
  std::vector<std::shared_ptr<ChannelImpl>> more_streams_;

  std::mutex mutex_;  // between the threads that start calls and this channel's reactor
  State state_ = State::kIdle;
  CallTable calls_;
  // kReady only. Written on the reactor and by End; so the reactor may read it without the lock.
  std::shared_ptr<Connection> ready_;
  std::map<uint64_t, std::unique_ptr<OutFrame>> waiting_;  // kConnecting only
  Deadlines deadlines_;
  // Calls with a deadline whose request Start is about to queue. If Withdraw removes a call from
  // this list, Start sends the cancellation after the request.
  std::vector<uint64_t> leaving_;

  Collections collections_;

  // The reactor's.
  std::optional<Opening> opening_;  // kConnecting only
  std::vector<SocketAddress> addresses_left_;
  std::vector<SocketAddress> second_addresses_;  // second_port_'s; tried when the others failed
  Status first_failure_;                         // kept while those are tried
  std::shared_ptr<const ForeignMemory> memory_;  // the peer's
  int64_t give_up_ms_ = 0;
  int64_t failed_ms_ = 0;         // when the last attempt failed
  int64_t failing_since_ms_ = 0;  // when the first attempt since a success failed; 0: none
  int64_t told_ms_ = 0;  // when `on_unreachable` was last called; 0: not since the last success
  Reactor::Timer deadline_timer_;
};

}  // namespace tensorwire::wire
