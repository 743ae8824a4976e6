#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "openssl.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// The end of every message about tokens that differ.
inline constexpr const char* kSameToken =
    ": TENSORWIRE_TOKEN_FILE must give every task of the job the same token";

// Proves and checks the job token. The opening of a connection whose two ends both have one:
//
//   client                                     server
//   kHello      task, peer, challenge   ->
//                                       <-     kChallenge  challenge
//   kProof      proof                   ->
//                                       <-     kHelloAck   task, lane, proof
//
// A proof is an HMAC-SHA256 over the protocol's version, the role of the sender, and all frames
// before it: both tasks' names, both challenges and, in the server's proof, the rest of its answer.
// The challenges are 32 random bytes each, made for this connection. The client proves first, so
// that a stranger gets nothing that is computed from the token.
//
// With TLS a proof is also over TlsStream::binding, so that it is valid in one TLS session only: an
// attacker between two sessions cannot use it in the other.
//
// A proof authenticates the opening of a connection, not the data that is sent later; TLS protects
// that.
class Authenticator {
 public:
  static Status Create(const std::string& token, std::unique_ptr<const Authenticator>* out);

  // Hexadecimal digits; "" if the system has no random bytes.
  static std::string Challenge();

  enum class Role { kClient, kServer };
  using Said = std::initializer_list<std::string_view>;  // the metadata of the frames so far
  // `binding` is the TLS session's; "" without TLS.
  std::string Prove(Role role, Said said, std::string_view binding = {}) const;
  // Checks a proof, in a time that does not depend on `proof`.
  bool Check(Role role, Said said, std::string_view proof, std::string_view binding = {}) const;

 private:
  explicit Authenticator(const LibCrypto* crypto) : crypto_(crypto) {}

  const LibCrypto* const crypto_;
  std::string key_;
};

}  // namespace tensorwire::wire
