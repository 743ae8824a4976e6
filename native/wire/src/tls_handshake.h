#pragma once

#include "tensorwire/wire/status.h"
#include "tls.h"

namespace tensorwire::wire {

// The opening of a TLS session on one connection, before its first frame. A peer that does not use
// TLS is recognised, and told why it is refused.
class TlsHandshake {
 public:
  enum class Outcome {
    kGoesOn,   // to be called again
    kDone,     // frames can come
    kLost,     // the peer is gone
    kRefused,  // the peer is not one of ours, or not set up as we are
  };
  // Takes one step, whenever the socket `fd` of `stream` is readable, or writable after Flushed was
  // false. `why` belongs to kRefused.
  Outcome Step(int fd, TlsStream* stream, Status* why);

 private:
  bool peer_speaks_tls_ = false;
};

}  // namespace tensorwire::wire
