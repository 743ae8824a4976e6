#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "key_table.h"
#include "push_inbox.h"
#include "tensor_figures.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

// The way to another task, and the inbox for what that task pushes.
struct Link {
  std::shared_ptr<wire::Channel> channel;
  std::shared_ptr<PushInbox> inbox;
};

// From where, and for which device, the tensor with one rendezvous key arrives. A session asks for
// the same keys in every step, so the route of a key is kept once there is an order for it.
struct Route {
  uint64_t scope = 0;  // of the session
  std::string key;
  // Of the session when the route was found. Another worker cache, or none, means other addresses
  // or other devices: the route has to be found again.
  std::weak_ptr<tensorflow::WorkerCacheInterface> cache;
  Link link;
  tensorflow::Device* device = nullptr;  // as the session
  TensorCounters* counters = nullptr;
  std::shared_ptr<PushInbox::Order> order;  // null: none has been given
};

// The routes of a task.
class Routes {
 public:
  std::shared_ptr<const Route> Find(uint64_t scope, std::string_view key) const {
    return table_.Find(scope, key, HashOfKey(key));
  }
  // Not kept if there are too many: then the route is found again each time.
  void Keep(std::shared_ptr<const Route> route) { table_.Put(std::move(route)); }
  // The session was closed. A step of a session that was closed before may have kept a route since.
  void EndScope(uint64_t scope) {
    table_.DropIf(
        [scope](const Route& route) { return route.scope == scope || route.cache.expired(); });
  }

 private:
  KeyTable<Route> table_{size_t{1} << 18};
};

}  // namespace tensorwire::plugin
