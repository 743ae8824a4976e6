#pragma once

#include <atomic>
#include <cstdint>

namespace tensorwire::plugin {

// Counts of this process on the data plane, over all its servers.
struct PluginCounters {
  std::atomic<uint64_t> recv_tensors{0};    // asked of other tasks
  std::atomic<uint64_t> pushed_tensors{0};  // that came from them unasked
  std::atomic<uint64_t> served_tensors{0};  // asked by other tasks
  std::atomic<uint64_t> run_graphs{0};      // asked by a master elsewhere
  // As the master of sessions: how many it has open at other tasks, and the parts of its steps that
  // those execute, now.
  std::atomic<uint64_t> open_sessions{0};
  std::atomic<uint64_t> running_graphs{0};
  std::atomic<uint64_t> fused_messages{0};  // sent by tensor_fuse, under any protocol
  std::atomic<uint64_t> fused_tensors{0};   // that travelled in them
  std::atomic<uint64_t> looked_up_ids{0};   // that unique_pull was given, under any protocol
  std::atomic<uint64_t> unique_ids{0};      // that were left of them
  std::atomic<uint64_t> eager_calls{0};     // operations and functions that TF2 elsewhere ran here
};

PluginCounters& Counters();

}  // namespace tensorwire::plugin
