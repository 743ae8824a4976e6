#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "fetch.h"
#include "opening.h"

namespace tensorwire::wire {

// A further connection to a peer, on another reactor: ranges of large payloads are fetched over it.
// It is made when it is first used. Ranges that it cannot fetch, because it cannot be made or is
// lost, are fetched over the peer's main connection.
class Stream : public FrameReceiver, public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<Context> context, Reactor* reactor, const SocketAddress& address,
         std::string peer_name)
      : context_(std::move(context)),
        reactor_(reactor),
        address_(address),
        peer_name_(std::move(peer_name)) {}

  // --- any thread ---
  void Begin(std::shared_ptr<Fetch> fetch, size_t range);
  // The peer is gone.
  void Close();

 private:
  struct Range {
    std::shared_ptr<Fetch> fetch;
    size_t index = 0;
  };
  Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) override;
  Status OnFrameFromReactor(InFrame* frame) override;
  void OnClosedFromReactor(const Status& why, InFrame* unfinished) override;

  void BeginFromReactor(Range range);
  void SendFromReactor(uint64_t id, const Range& range);
  void OpenFromReactor();
  void OnOpenedFromReactor(const Status& why);
  void EndFromReactor(uint64_t id, const Status& why);
  void LoseAllFromReactor(const Status& why);

  const std::shared_ptr<Context> context_;
  Reactor* const reactor_;
  const SocketAddress address_;
  const std::string peer_name_;

  // The reactor's.
  std::shared_ptr<Opening> opening_;
  std::shared_ptr<Connection> connection_;
  std::map<uint64_t, Range> ranges_;  // whose payload has not arrived, by the request's id
  uint64_t last_id_ = 0;
  std::optional<int64_t> failed_ms_;
  bool closed_ = false;
};

}  // namespace tensorwire::wire
