#pragma once

#include <algorithm>
#include <cstdint>

#include "simulator.h"

namespace tensorwire::simulation {

// The choices of a seed.
struct Plan {
  static constexpr uint64_t kUnbounded = uint64_t{1} << 30;

  int tasks = 2;
  int machines = 2;
  int calls = 10;  // of each caller
  int callers = 1;
  int64_t fault_ns = 200 * kMs;
  int64_t longest_pause_ns = 5 * kMs;  // between two calls of a caller
  int64_t most_bytes = 64 << 10;
  int64_t large_bytes = 0;  // size of some replies
  int larges = 0;           // the number of such replies
  int64_t longest_deadline_ns = 100 * kMs;
  uint64_t deadline_one_in = 3;
  uint64_t cancel_one_in = 6;
  bool cancels_patiently = false;  // for some of the cancelled calls
  bool long_deadlines = false;     // for calls that end long before
  bool shared_memory = false;
  bool checksum = false;
  bool refusing_address = false;  // tasks have another address, where no process listens
  bool silent_address = false;    // tasks have another address, which no machine has
  bool stop_early = false;
  bool leaves_channels = false;  // some channels are not used after the faults
  uint64_t unanswered_bytes = kUnbounded;
  int strangers = 0;  // that may be in their greeting at the same time
  int silent_ms = 1000;
  int connect_ms = 2000;
  int handshake_ms = 1000;
  int64_t slowest_closure_ns = 0;

  // The kinds of faults.
  bool kills = false;
  bool restarts = false;
  bool power = false;
  bool resets = false;
  bool half_open = false;
  bool clogs = false;
  bool long_clogs = false;
  bool freezes = false;
  bool long_freezes = false;
  bool flips = false;
  bool epoll_failures = false;
  bool descriptor_failures = false;

  bool bounds_unanswered() const { return unanswered_bytes < kUnbounded; }
  // True if a connection may be lost, or may not be made.
  bool loses() const {
    return kills || restarts || power || resets || long_clogs || long_freezes || flips ||
           epoll_failures || descriptor_failures;
  }
  // True if a loss, or that a connection cannot be made, may be detected late.
  bool loses_silently() const {
    return loses() && (power || half_open || clogs || long_freezes || flips || epoll_failures ||
                       descriptor_failures);
  }
  bool prompt() const {
    return !(power || half_open || clogs || freezes || flips || descriptor_failures ||
             silent_address || slowest_closure_ns > 0);
  }
};

// Draws a plan, and sets the seed's choices for the machines of `world`.
Plan ChoosePlan(Random& random, World* world);

}  // namespace tensorwire::simulation
