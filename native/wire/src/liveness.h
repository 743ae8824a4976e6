#pragma once

#include <algorithm>
#include <cstdint>

namespace tensorwire::wire {

// Decides whether the peer of a connection is still alive, by its signs of life: bytes that it
// sends, and bytes that it takes. The owner calls Look from time to time. This class reads no clock
// and sends nothing.
class Liveness {
 public:
  Liveness(int ping_after_ms, int silent_timeout_ms)
      : ping_after_ms_(ping_after_ms), silent_timeout_ms_(silent_timeout_ms) {}

  // A sign of life.
  void Heard(int64_t now_ms) { heard_ms_ = now_ms; }

  enum class Verdict { kAlive, kPing, kSilent };
  // kPing: it is time to ask for a sign of life. kSilent: the peer counts as lost.
  Verdict Look(int64_t now_ms) {
    // While this process was stopped (SIGSTOP, a debugger), it read nothing, although the peer may
    // have sent signs of life. So that time does not count as silence.
    if (next_look_ms_ > 0) heard_ms_ += std::max<int64_t>(0, now_ms - next_look_ms_);
    heard_ms_ = std::min(heard_ms_, now_ms);
    next_look_ms_ = now_ms + LookMs();
    if (silent_ms(now_ms) >= silent_timeout_ms_) return Verdict::kSilent;
    if (silent_ms(now_ms) < ping_after_ms_ || now_ms - pinged_ms_ < ping_after_ms_) {
      return Verdict::kAlive;
    }
    pinged_ms_ = now_ms;
    return Verdict::kPing;
  }
  // When to look again.
  int64_t next_look_ms() const { return next_look_ms_; }
  int64_t silent_ms(int64_t now_ms) const { return now_ms - heard_ms_; }

 private:
  int64_t LookMs() const {
    constexpr int kLongestMs = 1000;
    constexpr int kShortestMs = 10;
    return std::max(kShortestMs, std::min({kLongestMs, ping_after_ms_, silent_timeout_ms_}));
  }

  const int ping_after_ms_;
  const int silent_timeout_ms_;
  int64_t heard_ms_ = 0;  // moved forward by the time in which this process was stopped
  int64_t pinged_ms_ = 0;
  int64_t next_look_ms_ = 0;
};

}  // namespace tensorwire::wire
