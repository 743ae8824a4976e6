#pragma once

#include <string>
#include <string_view>

namespace tensorwire::wire {

// Text from the network, made safe for logs and metrics: cut to a maximum length, without control
// characters.
std::string Printable(std::string_view text, size_t longest = 256);

// The greeting of the two ends of a connection: `key=value` lines in the metadata of kHello,
// kChallenge, kProof and kHelloAck; fields that are "" are left out. Keys that a reader does not
// know are skipped, and so is what follows the proof, because no proof covers it. authenticator.h
// describes the proofs.
struct Hello {
  std::string task;       // the sender's task name
  std::string peer;       // kHello: the task that the client wants; "" for any
  std::string lane;       // kHelloAck: the name of the server's Unix socket (lane.h)
  bool checksum = false;  // kHello, kHelloAck: frames in both directions must have checksums
  std::string challenge;  // kHello, kChallenge: only with a job token
  std::string proof;      // kProof, kHelloAck: only with a job token; the last line

  std::string Encode() const;
  static Hello Decode(std::string_view metadata);
  // The part of the metadata that its proof covers.
  static std::string_view BeforeProof(std::string_view metadata);
};

}  // namespace tensorwire::wire
