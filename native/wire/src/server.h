#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "connection.h"
#include "context.h"
#include "fd.h"

namespace tensorwire::wire {

class Session;

// A listening socket. One reactor watches it; accepted connections are spread over all
// reactors. `lane`: the name of the server's lane, or "" if there is none; `is_lane`: it is the
// lane itself.
class Listener : public EventTarget, public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::shared_ptr<Context> context, Reactor* reactor, Fd fd,
           std::shared_ptr<Handler> handler, std::string lane = "", bool is_lane = false)
      : context_(std::move(context)),
        reactor_(reactor),
        fd_(std::move(fd)),
        handler_(std::move(handler)),
        lane_(std::move(lane)),
        is_lane_(is_lane) {}

  void StartFromReactor();
  void OnEventsFromReactor(uint32_t epoll_events) override;
  void OnStopFromReactor() override;

 private:
  void PauseFromReactor(int pause_ms);

  const std::shared_ptr<Context> context_;
  Reactor* const reactor_;
  const Fd fd_;
  const std::shared_ptr<Handler> handler_;
  const std::string lane_;
  const bool is_lane_;
};

// Orders the calls to a handler for one connection, although they come from many threads: OnCancel
// for a request only after Handle has returned for it, OnDisconnect only after Handle has returned
// for all requests.
class OrderedHandler : public Handler {
 public:
  explicit OrderedHandler(std::shared_ptr<Handler> handler) : handler_(std::move(handler)) {}

  // Must be called before the request is dispatched; the dispatch calls Handle.
  void ExpectFromReactor(const Request& request);
  // Replaces both if the request is handled at once, on the reactor: nothing can overtake it.
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
    int count = 0;  // above 1 for one-way requests, or if a peer uses an id twice
    bool cancelled = false;
  };
  const std::shared_ptr<Handler> handler_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, InHandle> in_handle_;
  bool gone_ = false;
};

// A server's side of one connection: the greeting, then frames become Requests.
class Session : public FrameReceiver {
 public:
  Session(std::shared_ptr<Context> context, const std::shared_ptr<Connection>& connection,
          std::shared_ptr<Handler> handler, std::string lane = "")
      : context_(std::move(context)),
        connection_(connection),
        seat_(&connection->reactor()->seats),
        handler_(std::make_shared<OrderedHandler>(std::move(handler))),
        lane_(std::move(lane)) {}

  // Starts to serve an accepted connection.
  static void OpenFromReactor(const std::shared_ptr<Connection>& connection,
                              const std::shared_ptr<Session>& session);

 private:
  Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) override;
  Status OnFrameFromReactor(InFrame* frame) override;
  void OnClosedFromReactor(const Status& why, InFrame* unfinished) override;

  // Handles the frames before the first request.
  Status OnGreetingFromReactor(const FrameHeader& header, std::string_view metadata,
                               Connection* connection);
  Status AcceptFromReactor(Connection* connection);
  // Counts a request as unanswered; an error if too much is unanswered.
  Status ClaimFromReactor(const FrameHeader& header, Connection* connection, Claim* claim);
  // Answers kFetchRange.
  void SendRange(const Request& request) const;

  const std::shared_ptr<Context> context_;
  const std::weak_ptr<Connection> connection_;  // owns this
  const Counted seat_;
  const std::shared_ptr<OrderedHandler> handler_;
  const std::string lane_;  // "" if there is none
  std::string hello_;       // the client's kHello
  std::string challenge_;   // this server's kChallenge; "" while there is none
  bool greeted_ = false;
  uint64_t connection_id_ = 0;
  // Bytes held by requests that are not answered. The requests may outlive this.
  const HeldBytes::Owner held_bytes_ = HeldBytes::Create();
};

}  // namespace tensorwire::wire
