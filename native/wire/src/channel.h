#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "attempt.h"
#include "call_table.h"
#include "connection.h"
#include "context.h"
#include "deadlines.h"
#include "fetch.h"
#include "peer.h"

namespace tensorwire::wire {

// A client's way to one peer. It has at most one connected Peer at a time, which is reached
// (Attempt) when a call needs it. When an attempt has failed, the calls that wait end with
// kUnavailable, and the next call begins another attempt. When the peer is lost, the calls to it
// end with kUnavailable. It is not known whether the peer had begun to serve them, so the caller
// decides whether to send them again.
//
// A call is in one place at a time, and the code that takes it out ends it. It is in `calls_` until
// its reply's head arrives (and its frame is in `waiting_` while there is no connection), then in
// the connection's FrameReader while the payload arrives, or in the peer's Collections while the
// payload is fetched or copied.
class ChannelImpl : public Channel, public std::enable_shared_from_this<ChannelImpl> {
 public:
  // `number`: of its reactor. `streams`: the number of connections over which a large payload comes
  // in; at least 1. The further streams are on the following reactors. `second_port`, `advice`: see
  // Engine::Connect.
  ChannelImpl(std::shared_ptr<Context> context, size_t number, std::string address,
              std::string peer_name, int streams, int second_port = 0, std::string advice = "");
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
  void Stop() { End(); }

  // --- for Peer ---
  CallTable::Entry TakeCallFromReactor(uint64_t call_id);
  CallTable::Entry BeginPushFromReactor(uint64_t what);
  void ForgetDeadline(int64_t deadline_ms, uint64_t call_id);
  // Ends a call. Any thread.
  void Finish(CallTable::Entry entry, const Status& status);
  // Fetches a range over the main connection. Any thread.
  void StartRange(const std::shared_ptr<Fetch>& fetch, size_t range);
  Status Describe(Code code, const std::string& what) const;
  // The connection is lost, or could not be made.
  void FailAllFromReactor(const Status& why);

 private:
  // MoveLocked checks which transitions are allowed.
  enum class State {
    kIdle,        // no connection; the next call makes one
    kConnecting,  // calls are in `waiting_` until there is one
    kReady,       // `peer_` is connected
    kStopped,     // every call ends at once
  };
  void MoveLocked(State next);
  void End();

  void ConnectSoon();
  void OnAttemptedFromReactor(const Status& why, const ReachedPeer& reached);
  void NoteFailureFromReactor(const Status& why);
  void BeReadyFromReactor(const ReachedPeer& reached);

  // Calls.
  Status CheckSize(const Message& request) const;
  // Takes out a call that waits for its reply, and sends the peer a cancellation.
  CallTable::Entry Withdraw(uint64_t call_id);
  // Ends a call in whichever place it is, unless it has ended.
  void EndFromReactor(uint64_t call_id, const Status& why);
  void LookAtDeadlines();
  void LookAtDeadlinesFromReactor();
  void EndOverdueFromReactor();

  const std::shared_ptr<Context> context_;  // keeps reactor_ alive, too
  Reactor* const reactor_;
  const std::string address_;
  const std::string peer_name_;
  const int second_port_;  // 0: there is none
  const std::string advice_;
  const size_t number_;
  const int streams_;
  std::shared_ptr<PushReceiver> push_receiver_;

  std::mutex mutex_;  // between the threads that start calls and this channel's reactor
  State state_ = State::kIdle;
  CallTable calls_;
  // kReady only. Written on the reactor and by End; so the reactor may read it without the lock.
  std::shared_ptr<Peer> peer_;
  std::map<uint64_t, std::unique_ptr<OutFrame>> waiting_;  // kConnecting only
  Deadlines deadlines_;
  // Calls with a deadline whose request Start is about to queue. If Withdraw removes a call from
  // this list, Start sends the cancellation after the request.
  std::vector<uint64_t> leaving_;

  // The reactor's.
  std::shared_ptr<Attempt> attempt_;  // kConnecting only
  int64_t failed_ms_ = 0;             // when the last attempt failed
  int64_t failing_since_ms_ = 0;      // when the first attempt since a success failed; 0: none
  int64_t told_ms_ = 0;               // when that was last logged; 0: not since the last success
  Reactor::Timer deadline_timer_;
};

}  // namespace tensorwire::wire
