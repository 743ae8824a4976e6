#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorwire/wire/clock.h"
#include "tensorwire/wire/engine.h"

namespace tensorwire::plugin {

// Aborts the rendezvous of cleaned-up steps after a delay, and only those that still live then.
//
// TensorFlow keeps every aborted rendezvous for the life of the process, a kilobyte or more each
// (LocalRendezvous::StartAbort). A cleanup aborts the rendezvous of its step unless the last
// reference to it is gone. The thread that sent the step's reply holds a reference until it
// returns. On a busy host the cleanup, which arrives with the next step's request, is often faster.
// With the delay most rendezvous are gone before the abort; the others are aborted then.
// Thread-safe.
class LateAborts : public std::enable_shared_from_this<LateAborts> {
 public:
  explicit LateAborts(wire::Engine* engine) : engine_(engine) {}

  void Add(tensorflow::Rendezvous* rendezvous, const absl::Status& why) {
    std::lock_guard lock(mutex_);
    const int64_t now_ms = wire::NowMs();
    late_.push_back(
        {tsl::core::WeakPtr<tensorflow::Rendezvous>(rendezvous), why, now_ms + kAfterMs});
    if (late_.size() == 1) PlanLocked(now_ms);
  }

 private:
  static constexpr int kAfterMs = 1000;

  struct Late {
    tsl::core::WeakPtr<tensorflow::Rendezvous> rendezvous;
    absl::Status why;
    int64_t due_ms = 0;
  };

  void PlanLocked(int64_t now_ms) {
    const int64_t delay_ms = std::max<int64_t>(1, late_.front().due_ms - now_ms);
    engine_->RunAfter(static_cast<int>(delay_ms), [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Abort();
    });
  }

  void Abort() {
    std::vector<Late> due;
    {
      std::lock_guard lock(mutex_);
      const int64_t now_ms = wire::NowMs();
      while (!late_.empty() && late_.front().due_ms <= now_ms) {
        due.push_back(std::move(late_.front()));
        late_.pop_front();
      }
      if (!late_.empty()) PlanLocked(now_ms);
    }
    // Without the lock: an abort runs the callbacks of waiting calls.
    for (const Late& late : due) {
      if (const auto rendezvous = late.rendezvous.GetNewRef()) rendezvous->StartAbort(late.why);
    }
  }

  wire::Engine* const engine_;
  std::mutex mutex_;
  std::deque<Late> late_;  // the earliest first; an Abort is scheduled unless empty
};

}  // namespace tensorwire::plugin
