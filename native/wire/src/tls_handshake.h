#pragma once

#include "tensorwire/wire/status.h"
#include "tls.h"

namespace tensorwire::wire {

// Opens a TLS session on one connection, before its first frame. Recognises a peer that does not
// use TLS, and tells it why it is refused.
class TlsHandshake {
 public:
  enum class Outcome {
    kGoesOn,   // Step has to be called again
    kDone,     // frames may follow
    kLost,     // the peer is gone
    kRefused,  // the peer is not a task of this job, or is configured differently
  };
  // Takes one step. To be called when the socket `fd` of `stream` is readable, or writable after
  // Flushed was false. `why` is set for kRefused.
  Outcome Step(int fd, TlsStream* stream, Status* why);

 private:
  bool peer_speaks_tls_ = false;
};

}  // namespace tensorwire::wire
