#pragma once

#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "call_table.h"
#include "connection.h"
#include "context.h"
#include "hello.h"
#include "socket.h"

namespace tensorwire::wire {

// A client's way to one peer. It has at most one connection at a time, made when a call needs one.
// An attempt tries each address of the peer once, for `connect_timeout_ms` at most. When all have
// failed, the calls that wait end with kUnavailable, and the next call begins another attempt. When
// a connection is lost, the calls on it end with kUnavailable: whether the peer had begun to serve
// them nobody knows, so sending them again is the asker's decision.
class ChannelImpl : public Channel,
                    public FrameReceiver,
                    public std::enable_shared_from_this<ChannelImpl> {
 public:
  // `number`: of its reactor. `streams`: over how many connections a large payload comes in; at
  // least 1. They have the reactors that follow.
  ChannelImpl(std::shared_ptr<Context> context, size_t number, std::string address,
              std::string peer_name, int streams);
  ~ChannelImpl() override;

  uint64_t Start(Message request, std::unique_ptr<Call> call, const CallOptions& options) override;
  void SetPushReceiver(std::shared_ptr<PushReceiver> receiver) override {
    push_receiver_ = std::move(receiver);
  }
  void RunAfter(int delay_ms, std::function<void()> closure) override;
  void Notify(Message request, bool lazy) override;
  void Cancel(uint64_t call_id) override;

  // The engine stops: ends all calls, and every later one at once.
  void Stop();

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  void End();

  // FrameReceiver.
  Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) override;
  Status OnFrameFromReactor(InFrame frame) override;
  void OnClosedFromReactor(const Status& why, InFrame* unfinished) override;

  void ConnectSoon();
  void ResolveFromReactor();
  void AttemptFromReactor(std::vector<SocketAddress> addresses);
  void TryNextOrFailFromReactor(const Status& why);
  // Takes a call that waits for its reply, and tells the peer.
  CallTable::Entry Withdraw(uint64_t call_id);
  // Ends a call wherever it is, if it has not ended.
  void EndFromReactor(uint64_t call_id, const Status& why);
  void ArmDeadlinesFromReactor();
  void EndOverdueFromReactor();
  void ForgetDeadline(int64_t deadline_ms, uint64_t call_id);
  // Answers the server's challenge; checks its proof.
  Status ProveFromReactor(std::string_view metadata);
  Status CheckServerFromReactor(std::string_view metadata) const;
  // Whether and how payloads of this peer are read in its memory.
  Status MapFromReactor(const Hello& hello, Connection* connection);
  Status TakeLoanFromReactor(std::string_view* metadata, InFrame* frame);
  // A call or push whose payload is fetched or copied.
  struct Collection {
    CallTable::Entry entry;
    std::optional<uint64_t> call_id;  // none: a push
    std::shared_ptr<Connection> lender;
    uint64_t loan = 0;
    // Makes it end soon, and why. Empty once it has been called.
    std::function<void(const Status&)> cancel;
    Status why;
  };
  using Collections = std::list<Collection>;
  void CollectFromReactor(InFrame frame);
  void FetchFromReactor(InFrame frame, Collections::iterator collection);
  void CopyFromReactor(InFrame frame, Collections::iterator collection);
  // All of them, or that of one call.
  void CancelCollectionsFromReactor(std::optional<uint64_t> call_id, const Status& why);
  // It has ended: gives the payload back. Any thread.
  Collection TakeCollection(Collections::iterator at);
  Status LostInMidPayload() const;
  void PrepareFromReactor(std::string_view metadata, InFrame* frame);
  void FailAllFromReactor(const Status& why);
  Status CheckSize(const Message& request) const;
  void Finish(CallTable::Entry entry, const Status& status);
  Status Describe(Code code, const std::string& what) const;

  const std::shared_ptr<Context> context_;  // keeps reactor_ too
  Reactor* const reactor_;
  const std::string address_;
  const std::string peer_name_;
  std::shared_ptr<PushReceiver> push_receiver_;
  // Further connections to the same peer, on other reactors, that only fetch.
  std::vector<std::shared_ptr<ChannelImpl>> lanes_;

  std::mutex mutex_;  // between the threads that start calls and this channel's reactor
  CallTable calls_;
  std::shared_ptr<Connection> ready_;                      // after the handshake only
  std::map<uint64_t, std::unique_ptr<OutFrame>> waiting_;  // for ready_
  std::set<std::pair<int64_t, uint64_t>> deadlines_;       // of calls that have not ended
  int64_t next_look_ms_ = kNever;                          // at deadlines_
  // Calls with a deadline whose request Start is about to queue. Withdraw takes such a call out,
  // and Start then sends the cancellation, behind the request.
  std::vector<uint64_t> leaving_;
  Collections collections_;
  bool connecting_ = false;
  bool stopped_ = false;

  // The reactor's.
  std::shared_ptr<Connection> opening_;
  std::string hello_;      // what was said on it
  std::string challenge_;  // and answered; "" if it was not
  std::vector<SocketAddress> addresses_left_;
  std::shared_ptr<const ForeignMemory> memory_;  // the peer's
  int64_t give_up_ms_ = 0;
  int64_t failed_ms_ = 0;  // when the last attempt did
  Reactor::Timer deadline_timer_;
};

}  // namespace tensorwire::wire
