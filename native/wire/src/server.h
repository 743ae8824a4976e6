#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "connection.h"
#include "context.h"
#include "fd.h"

namespace tensorwire::wire {

class Session;

// A listening socket. Watched by one reactor; the connections it accepts go to all in turn.
class Listener : public EventTarget, public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::shared_ptr<Context> context, Reactor* reactor, Fd fd,
           std::shared_ptr<Handler> handler)
      : context_(std::move(context)),
        reactor_(reactor),
        fd_(std::move(fd)),
        handler_(std::move(handler)) {}

  void StartFromReactor();
  void StartLaterFromReactor();
  void OnEventsFromReactor(uint32_t epoll_events) override;
  void OnStopFromReactor() override;

 private:
  // Bounds how many connections have not said who they are.
  void AdmitFromReactor(const std::shared_ptr<Connection>& connection,
                        const std::shared_ptr<Session>& session);

  const std::shared_ptr<Context> context_;
  Reactor* const reactor_;
  const Fd fd_;
  const std::shared_ptr<Handler> handler_;

  struct Stranger {
    std::weak_ptr<Connection> connection;
    std::weak_ptr<Session> session;
  };
  std::deque<Stranger> strangers_;  // oldest first; some have said who they are since
};

// Keeps what a handler hears about one connection in order, although it hears it from many threads:
// that a request was cancelled, or that the connection is gone, only once Handle has returned.
class OrderedHandler : public Handler {
 public:
  explicit OrderedHandler(std::shared_ptr<Handler> handler) : handler_(std::move(handler)) {}

  // Before the request is dispatched, which calls Handle.
  void ExpectFromReactor(const Request& request);
  // Instead of both, where the request is handled at once: nothing overtakes it.
  void HandleFromReactor(Request request) { handler_->Handle(std::move(request)); }

  RunOn HandleOn(const Request& request) const override { return handler_->HandleOn(request); }
  std::shared_ptr<char> PlaceFromReactor(uint16_t method, uint64_t payload_bytes) override {
    return handler_->PlaceFromReactor(method, payload_bytes);
  }
  void Handle(Request request) override;
  void OnCancel(uint64_t connection_id, uint64_t request_id) override;
  void OnDisconnect(uint64_t connection_id) override;

 private:
  struct InHandle {
    int count = 0;  // more than one of one-way requests, or where a peer gives an id twice
    bool cancelled = false;
  };
  const std::shared_ptr<Handler> handler_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, InHandle> in_handle_;
  bool gone_ = false;
};

// A server's side of one connection: greets, then turns frames into Requests.
class Session : public FrameReceiver {
 public:
  Session(std::shared_ptr<Context> context, const std::shared_ptr<Connection>& connection,
          std::shared_ptr<Handler> handler)
      : context_(std::move(context)),
        connection_(connection),
        handler_(std::make_shared<OrderedHandler>(std::move(handler))) {}

  // Serves a connection that a client has made.
  static void OpenFromReactor(const std::shared_ptr<Connection>& connection,
                              const std::shared_ptr<Session>& session);

  // True after the greeting. Any thread.
  bool greeted() const { return greeted_.load(std::memory_order_relaxed); }

 private:
  Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) override;
  Status OnFrameFromReactor(InFrame* frame) override;
  void OnClosedFromReactor(const Status& why, InFrame* unfinished) override;

  // The frames before the first request.
  Status OnGreetingFromReactor(const FrameHeader& header, std::string_view metadata,
                               Connection* connection);
  Status AcceptFromReactor(Connection* connection);
  // Counts a request in; an error when too much is unanswered.
  Status ClaimFromReactor(const FrameHeader& header, Connection* connection, Claim* claim);
  // Answers kFetchRange.
  void SendRange(const Request& request) const;

  const std::shared_ptr<Context> context_;
  const std::weak_ptr<Connection> connection_;  // it owns this
  const std::shared_ptr<OrderedHandler> handler_;
  std::string hello_;      // the client's
  std::string challenge_;  // ours; "" while there is none
  std::atomic<bool> greeted_{false};
  uint64_t connection_id_ = 0;
  // Bytes held by requests that are not answered. They may outlive this.
  const HeldBytes::Owner held_bytes_ = HeldBytes::Create();
};

}  // namespace tensorwire::wire
