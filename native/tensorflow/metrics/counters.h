#pragma once

#include <atomic>
#include <cstdint>

#include "metrics/single.h"

namespace tensorwire::plugin {

// Counts of this process on the data plane, over all its servers.
struct PluginCounters {
  std::atomic<uint64_t> recv_tensors{0};    // Recvs from other tasks
  std::atomic<uint64_t> pushed_tensors{0};  // pushed by other tasks
  std::atomic<uint64_t> served_tensors{0};  // requested by other tasks
  std::atomic<uint64_t> run_graphs{0};      // requested by a master in another task
  // As the master of sessions: those that are open at other tasks now, and the parts of its steps
  // that run there now.
  std::atomic<uint64_t> open_sessions{0};
  std::atomic<uint64_t> running_graphs{0};
  std::atomic<uint64_t> fused_messages{0};  // sent by tensor_fuse, under any protocol
  std::atomic<uint64_t> fused_tensors{0};   // that travelled in them
  std::atomic<uint64_t> looked_up_ids{0};   // given to unique_pull, under any protocol
  std::atomic<uint64_t> unique_ids{0};      // distinct ones among them
  std::atomic<uint64_t> eager_calls{0};     // run here for TF2 in other tasks
};

inline PluginCounters& Counters() { return Single<PluginCounters>(); }

}  // namespace tensorwire::plugin
