#pragma once

#include <string>
#include <string_view>

namespace tensorwire::wire {

// A name from the network, fit for a log and for figures: cut, and without control characters.
std::string Printable(std::string_view name);

// The greeting of the two ends of a connection: `key=value` lines in the metadata of
// kHello, kChallenge, kProof and kHelloAck; what is "" is left out. Keys that a reader does not
// know are skipped. Who proves what, and when, is in authenticator.h.
struct Hello {
  std::string task;       // who speaks
  std::string peer;       // kHello: whom it wants to speak to; "" for whoever is there
  std::string memory;     // kHelloAck: the ticket to its shared memory
  bool checksum = false;  // kHello, kHelloAck: all that goes either way shall have checksums
  std::string challenge;  // kHello, kChallenge: only with a job token
  std::string proof;      // kProof, kHelloAck: only with a job token; the last line

  std::string Encode() const;
  static Hello Decode(std::string_view metadata);
  // The part of the metadata that a proof in it is about.
  static std::string_view BeforeProof(std::string_view metadata);
};

}  // namespace tensorwire::wire
