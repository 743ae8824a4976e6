#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "openssl.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// Ends every message about a token that does not fit.
inline constexpr const char* kSameToken =
    ": TENSORWIRE_TOKEN_FILE (or TENSORWIRE_TOKEN) must give every task of the job the same token";

// Proves and checks the job token. The opening of a connection where both ends have one:
//
//   client                                     server
//   kHello      task, peer, challenge   ->
//                                       <-     kChallenge  challenge
//   kProof      proof                   ->
//                                       <-     kHelloAck   task, memory, proof
//
// A proof is an HMAC-SHA256 over the protocol's version, who proves, and all that was said before
// it: both tasks' names, both challenges and, in the server's, what it answers. The challenges are
// 32 random bytes each, made for this connection. The client proves first, so that a stranger gets
// nothing that is made with the token.
//
// With TLS a proof is also over TlsStream::binding, so that it holds in one TLS session: who stands
// between two sessions cannot use it in the other.
//
// It says who opened a connection, and nothing of what is sent on it afterwards: that is TLS's.
class Authenticator {
 public:
  static Status Create(const std::string& token, std::unique_ptr<const Authenticator>* out);

  // Hexadecimal digits; "" when the system has no random bytes.
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
