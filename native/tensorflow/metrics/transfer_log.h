#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "tensorflow/core/distributed_runtime/worker_cache_logger.h"

namespace tensorwire::plugin {

// The tensors that this task has received in steps that are traced (RunOptions.FULL_TRACE): rows
// "RecvTensor" of the timeline, as gRPC's worker cache records them. Thread-safe.
class TransferLog {
 public:
  ~TransferLog() { ClearLogs(); }

  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }

  // --- as tensorflow::WorkerCacheInterface ---
  void SetLogging(bool on) {
    log_.SetLogging(on);
    is_on_.store(log_.LoggingActive(), std::memory_order_relaxed);
  }
  void ClearLogs() { log_.ClearLogs(); }
  bool RetrieveLogs(int64_t step_id, tensorflow::StepStats* to) {
    return log_.RetrieveLogs(step_id, to);
  }

  // `from_us`, `until_us`: when it was on the way, by wire::NowUs(). `waited_us`: how long the Recv
  // waited for it. `key`: of the rendezvous.
  void Record(int64_t step_id, const std::string& key, int64_t bytes, int64_t from_us,
              int64_t until_us, int64_t waited_us);

 private:
  std::atomic<bool> is_on_{false};
  tensorflow::WorkerCacheLogger log_;
};

}  // namespace tensorwire::plugin
