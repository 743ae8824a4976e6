#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace tensorwire::plugin {

// Aborts the rendezvous of steps that were cleaned up, some time later and only those that still
// live.
//
// TensorFlow keeps every rendezvous that was aborted for the life of the process, a kilobyte or
// more each (LocalRendezvous::StartAbort). A cleanup aborts the rendezvous of its step unless the
// last reference to it has gone. The thread that sent the step's reply has one until it returns,
// and on a busy host the cleanup, which comes with the next step's request, is often faster. So a
// rendezvous gets time to go by itself; what still waits in it is told then. Thread-safe.
class LateAborts : public std::enable_shared_from_this<LateAborts> {
 public:
  using RunAfter = std::function<void(int delay_ms, std::function<void()> closure)>;
  explicit LateAborts(RunAfter run_after) : run_after_(std::move(run_after)) {}

  void Add(tensorflow::Rendezvous* rendezvous, const absl::Status& why);

 private:
  static constexpr int kAfterMs = 1000;

  struct Late {
    tsl::core::WeakPtr<tensorflow::Rendezvous> rendezvous;
    absl::Status why;
    int64_t due_ms = 0;
  };

  void PlanLocked(int64_t now_ms);
  void Abort();

  const RunAfter run_after_;
  std::mutex mutex_;
  std::deque<Late> late_;  // the earliest first; while there is one, an Abort is planned
};

}  // namespace tensorwire::plugin
