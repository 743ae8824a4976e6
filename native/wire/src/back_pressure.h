#pragma once

#include "outbox.h"

namespace tensorwire::wire {

// Decides whether a connection reads further. It pauses reading while its peer does not take what
// is sent to it, so that further requests stay in the socket. Only for servers: if both ends did
// this, they could wait for each other.
class BackPressure {
 public:
  explicit BackPressure(const Outbox* outbox) : outbox_(outbox) {}

  // Enables pausing from now on.
  void Apply() { reading_ = Reading::kOn; }
  // True if the outbox has a backlog, so that further replies would only pile up.
  bool ShouldPause() const { return reading_ != Reading::kAlways && outbox_->HasBacklog(); }
  bool paused() const { return reading_ == Reading::kPaused; }
  // Returns false if reading was paused already.
  bool Pause() {
    if (paused()) return false;
    reading_ = Reading::kPaused;
    return true;
  }
  // Returns false if reading was not paused, or has to stay paused.
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
