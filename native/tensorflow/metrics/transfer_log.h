#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/distributed_runtime/worker_cache_logger.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/platform/env.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {

// The tensors that this task has received in steps that are traced (RunOptions.FULL_TRACE): rows
// "RecvTensor" of the timeline, as gRPC's worker cache records them. Thread-safe.
class TransferLog : public tensorflow::WorkerCacheLogger {
 public:
  ~TransferLog() { ClearLogs(); }

  // Without the lock that LoggingActive takes.
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  void Switch(bool on) {
    WorkerCacheLogger::SetLogging(on);
    is_on_.store(LoggingActive(), std::memory_order_relaxed);
  }

  // `from_us`, `until_us`: when it was on the way, by wire::NowUs(). `waited_us`: how long the Recv
  // waited for it. `key`: of the rendezvous.
  void Record(int64_t step_id, const std::string& key, int64_t bytes, int64_t from_us,
              int64_t until_us, int64_t waited_us) {
    tensorflow::Rendezvous::ParsedKey parsed;
    if (!tensorflow::Rendezvous::ParseKey(key, &parsed).ok()) return;
    // TensorFlow's times are of the wall clock.
    const int64_t behind_us =
        static_cast<int64_t>(tensorflow::Env::Default()->NowMicros()) - wire::NowUs();
    const std::string edge(parsed.edge_name);
    const std::string src(parsed.src_device);
    const std::string dst(parsed.dst_device);
    RecordDataTransfer(step_id, from_us + behind_us, std::max(from_us + 1, until_us) + behind_us,
                       edge, src, dst, bytes,
                       absl::StrCat("[", bytes, "B] ", edge, " from ", src, " to ", dst,
                                    "; waited ", waited_us, " us"),
                       "RecvTensor");
  }

 private:
  std::atomic<bool> is_on_{false};
};

}  // namespace tensorwire::plugin
