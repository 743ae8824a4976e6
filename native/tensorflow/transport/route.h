#pragma once

#include <memory>
#include <string>

#include "metrics/tensor_figures.h"
#include "metrics/transfer_log.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorwire/wire/engine.h"
#include "transport/push_inbox.h"

namespace tensorwire::plugin {

// The way to another task, and the inbox for what that task pushes.
struct Link {
  std::shared_ptr<wire::Channel> channel;
  std::shared_ptr<PushInbox> inbox;
};

// From where, and for which device, the tensor with one rendezvous key arrives. A session asks for
// the same keys in every step, so it keeps the route of a key, with the order for it.
struct Route {
  std::string key;
  // Of the session when the route was found. Another worker cache, or none, means other addresses
  // or other devices: the route has to be found again.
  std::weak_ptr<tensorflow::WorkerCacheInterface> cache;
  Link link;
  tensorflow::Device* device = nullptr;  // as the session
  TensorCounters* counters = nullptr;
  std::shared_ptr<TransferLog> log;  // of `cache`
  PushInbox::Order order;
};

}  // namespace tensorwire::plugin
