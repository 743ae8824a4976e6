#pragma once

#include <cstdint>
#include <string>

#include "tensorwire/wire/message.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// A server's answer to kAbout: its version and its clock. The request's payload is dropped.
Message About();

// What a peer learns about a server.
struct Reached {
  std::string version;         // of tensorwire; "" if the server does not say
  int64_t round_trip_us = 0;   // the smallest of several
  int64_t clock_ahead_us = 0;  // of the server's clock, plus or minus half a round trip
  double bytes_per_s = 0;      // to the server, over one connection; 0 if not measured
};

// Greets the task `peer` at `address`, with the job token and TLS that the environment names, and
// asks it about itself; then sends it data for about `rate_ms`, if that is not 0. Connecting may
// take `timeout_ms`. Blocks, but not for ever; the name service may take longest. `second_port` as
// in Engine::Connect.
Status Reach(const std::string& address, int second_port, const std::string& peer, int timeout_ms,
             int rate_ms, Reached* out);

}  // namespace tensorwire::wire
