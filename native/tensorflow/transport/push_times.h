#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tensorwire::plugin {

// Estimates how long pushes from one task were under way. The producer says by its own clock when
// it made a tensor, and the clocks of two hosts are not synchronised. But the difference between
// that time and the arrival here is smallest for a push that nothing delayed, and such a push was
// under way for half of the smallest round trip. Clocks drift, so only recent differences count.
// Not thread-safe.
class PushTimes {
 public:
  void NoteRoundTrip(int64_t us) {
    least_round_trip_us_ = std::min(least_round_trip_us_, std::max<int64_t>(0, us));
  }

  // `made_us`: low bits of the producer's clock; `head_us`: this task's clock at the arrival.
  int64_t WayOf(uint32_t made_us, int64_t head_us) {
    if (!begun_) {
      begun_ = true;
      first_ = static_cast<uint32_t>(head_us) - made_us;
      window_ends_us_ = head_us + kWindowUs;
    }
    // Relative to the first difference, so that it is small whatever the clocks say.
    const auto difference = static_cast<int32_t>(static_cast<uint32_t>(head_us) - made_us - first_);
    if (head_us >= window_ends_us_) {
      before_ = least_;
      least_ = difference;
      window_ends_us_ = head_us + kWindowUs;
    }
    least_ = std::min(least_, difference);
    const int64_t held_up = static_cast<int64_t>(difference) - std::min(least_, before_);
    const bool known = least_round_trip_us_ != kUnknown;
    return held_up + (known ? least_round_trip_us_ / 2 : 0);
  }

 private:
  static constexpr int64_t kWindowUs = 10'000'000;
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

  bool begun_ = false;
  uint32_t first_ = 0;
  int64_t window_ends_us_ = 0;
  int32_t least_ = std::numeric_limits<int32_t>::max();   // in this window
  int32_t before_ = std::numeric_limits<int32_t>::max();  // in the window before
  int64_t least_round_trip_us_ = kUnknown;
};

}  // namespace tensorwire::plugin
