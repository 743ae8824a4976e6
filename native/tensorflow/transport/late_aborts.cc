#include "transport/late_aborts.h"

#include <algorithm>
#include <vector>

#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {

void LateAborts::Add(tensorflow::Rendezvous* rendezvous, const absl::Status& why) {
  std::lock_guard lock(mutex_);
  const int64_t now_ms = wire::NowMs();
  late_.push_back({tsl::core::WeakPtr<tensorflow::Rendezvous>(rendezvous), why, now_ms + kAfterMs});
  if (late_.size() == 1) PlanLocked(now_ms);
}

void LateAborts::PlanLocked(int64_t now_ms) {
  const int64_t delay_ms = std::max<int64_t>(1, late_.front().due_ms - now_ms);
  engine_->RunAfter(static_cast<int>(delay_ms), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Abort();
  });
}

void LateAborts::Abort() {
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

}  // namespace tensorwire::plugin
