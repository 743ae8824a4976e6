#pragma once

#include <memory>
#include <string>

#include "connection.h"
#include "context.h"
#include "fd.h"

namespace tensorwire::wire {

// A listening socket. Watched by one reactor; the connections it accepts go to all in turn.
class Listener : public EventTarget, public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::shared_ptr<Context> context, Reactor* reactor, Fd fd, std::shared_ptr<Handler> handler)
      : context_(std::move(context)), reactor_(reactor), fd_(std::move(fd)), handler_(std::move(handler)) {}

  void StartFromReactor();
  void OnEventsFromReactor(uint32_t epoll_events) override;
  void OnStopFromReactor() override;

 private:
  const std::shared_ptr<Context> context_;
  Reactor* const reactor_;
  const Fd fd_;
  const std::shared_ptr<Handler> handler_;
};

// A server's side of one connection: greets, then turns frames into Requests.
class Session : public FrameReceiver {
 public:
  Session(std::shared_ptr<Context> context, const std::shared_ptr<Connection>& connection,
          std::shared_ptr<Handler> handler)
      : context_(std::move(context)), connection_(connection), handler_(std::move(handler)) {}

  bool greeted() const { return greeted_; }

 private:
  Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) override;
  Status OnFrameFromReactor(InFrame frame) override;
  void OnClosedFromReactor(const Status& why, InFrame* unfinished) override;

  const std::shared_ptr<Context> context_;
  const std::weak_ptr<Connection> connection_;  // it owns this
  const std::shared_ptr<Handler> handler_;
  bool greeted_ = false;
  uint64_t connection_id_ = 0;
};

}  // namespace tensorwire::wire
