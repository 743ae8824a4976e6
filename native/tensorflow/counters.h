#pragma once

#include <atomic>
#include <cstdint>

namespace tensorwire::plugin {

// What this process did on the data plane, over all its servers.
struct PluginCounters {
  std::atomic<uint64_t> recv_tensors{0};    // asked of other tasks
  std::atomic<uint64_t> pushed_tensors{0};  // that came from them unasked
  std::atomic<uint64_t> served_tensors{0};  // asked by other tasks
  std::atomic<uint64_t> run_graphs{0};      // asked by a master elsewhere
};

PluginCounters& Counters();

}  // namespace tensorwire::plugin
