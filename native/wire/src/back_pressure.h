#pragma once

#include "outbox.h"

namespace tensorwire::wire {

// Decides if a connection goes on reading, or leaves what comes in its socket because its peer
// leaves much untaken that was sent to it. For servers: if both ends did it, they could wait for
// each other.
class BackPressure {
 public:
  explicit BackPressure(const Outbox* outbox) : outbox_(outbox) {}

  // Makes reading pause when it should, from now on.
  void Apply() { reading_ = Reading::kOn; }
  // True if what is read would only pile up.
  bool ShouldPause() const { return reading_ != Reading::kAlways && outbox_->HasBacklog(); }
  bool paused() const { return reading_ == Reading::kPaused; }
  // False: reading was paused already.
  bool Pause() {
    if (paused()) return false;
    reading_ = Reading::kPaused;
    return true;
  }
  // False: reading was not paused, or has to stay so.
  bool Resume() {
    if (!paused() || ShouldPause()) return false;
    reading_ = Reading::kOn;
    return true;
  }

 private:
  enum class Reading { kAlways, kOn, kPaused };

  const Outbox* const outbox_;
  Reading reading_ = Reading::kAlways;
};

}  // namespace tensorwire::wire
