#include "tls_handshake.h"

#include <sys/socket.h>

#include <array>
#include <string>
#include <utility>

#include "authenticator.h"
#include "out_frame.h"

namespace tensorwire::wire {
namespace {

// Refuses the peer with a frame without TLS, because this peer expects such frames.
void RefusePlain(int fd, const std::string& why) {
  // If bytes were left unread, closing the socket would send a reset, which would overtake the
  // reason.
  std::array<char, 16u << 10> unread;
  ::recv(fd, unread.data(), unread.size(), 0);
  Message goodbye;
  goodbye.AppendMetadata(why);
  const OutFrame frame(FrameKind::kGoodbye, 0, 0, std::move(goodbye));
  ::send(fd, frame.head.data(), frame.head.size(), MSG_NOSIGNAL);
}

}  // namespace

TlsHandshake::Outcome TlsHandshake::Step(int fd, TlsStream* stream, Status* why) {
  if (!peer_speaks_tls_) {
    char first = 0;
    const ssize_t got = ::recv(fd, &first, 1, MSG_PEEK);
    if (got > 0 && first == 'T') {  // the first letter of "TWIR"
      *why = Status(Code::kFailedPrecondition,
                    "one end of the connection uses TLS and the other does not: set "
                    "TENSORWIRE_TLS in every task of the job, or in none");
      RefusePlain(fd, why->message());
      return Outcome::kRefused;
    }
    peer_speaks_tls_ = got > 0;
  }
  std::string reason;
  switch (stream->Shake(&reason)) {
    case TlsStream::Handshake::kGoesOn:
      return Outcome::kGoesOn;
    case TlsStream::Handshake::kDone:
      return Outcome::kDone;
    case TlsStream::Handshake::kLost:
      return Outcome::kLost;
    case TlsStream::Handshake::kFailed:
      break;
  }
  *why =
      Status(Code::kFailedPrecondition, "the TLS handshake failed (" + reason + ")" + kSameToken);
  return Outcome::kRefused;
}

}  // namespace tensorwire::wire
