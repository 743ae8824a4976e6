#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "collections.h"
#include "connection.h"
#include "context.h"
#include "shared_memory.h"
#include "stream.h"

namespace tensorwire::wire {

class ChannelImpl;

// One incarnation of a peer, as a client sees it: from the greeting that was accepted to the loss
// of the connection. It owns all that belongs to that process: the main connection, the further
// ones, the payloads that are being fetched or copied, and the mapping of its memory.
class Peer : public FrameReceiver, public std::enable_shared_from_this<Peer> {
 public:
  // `memory`: null if payloads do not come through memory.
  Peer(std::shared_ptr<ChannelImpl> channel, std::shared_ptr<Context> context,
       std::shared_ptr<Connection> connection, std::shared_ptr<const ForeignMemory> memory,
       std::vector<std::shared_ptr<Stream>> streams);

  const std::shared_ptr<Connection>& connection() const { return connection_; }
  // Takes over the connection.
  void BeginFromReactor();
  // The call's payload is on its way: ends the call, unless it has ended.
  void EndFromReactor(uint64_t call_id, const Status& why) { collections_.Cancel(call_id, why); }

 private:
  Status OnHeadFromReactor(std::string_view metadata, InFrame* frame) override;
  Status OnFrameFromReactor(InFrame* frame) override;
  void OnClosedFromReactor(const Status& why, InFrame* unfinished) override;

  Status TakeLoanFromReactor(std::string_view* metadata, InFrame* frame);
  void PrepareFromReactor(std::string_view metadata, InFrame* frame);
  void CollectFromReactor(InFrame frame);
  void FetchFromReactor(InFrame frame, Collections::At collection);
  void CopyFromReactor(InFrame frame, Collections::At collection);
  // Ends a collection and returns the payload to the peer. Any thread.
  Collection TakeCollection(Collections::At at);
  Status LostInMidPayload() const;

  const std::shared_ptr<ChannelImpl> channel_;
  const std::shared_ptr<Context> context_;  // keeps reactor_ alive, too
  const std::shared_ptr<Connection> connection_;
  Reactor* const reactor_;
  std::shared_ptr<const ForeignMemory> memory_;
  const std::vector<std::shared_ptr<Stream>> streams_;
  Collections collections_;
};

}  // namespace tensorwire::wire
