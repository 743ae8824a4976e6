#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "openssl.h"
#include "tensorwire/wire/status.h"

namespace tensorwire::wire {

// Shared by the connections of one engine: TLS 1.3, by a key made from the job token. There are no
// certificates: whoever has the token is one of the job's tasks. The keys of a connection are
// agreed on anew (psk_dhe_ke), so the token does not open what was recorded before.
class TlsContext {
 public:
  static Status Create(const std::string& token, std::unique_ptr<const TlsContext>* out);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsStream;
  TlsContext() = default;

  LibSsl::Context* context_ = nullptr;
  LibSsl::BioMethod* method_ = nullptr;
  std::string key_;
};

// TLS on one connected socket that does not block: what sendmsg and readv are without it. Reading
// and writing may be in two threads.
//
// What Send takes it has encrypted; a part of that may still wait for room in the socket. Until
// Flushed the caller stays responsible: it calls Send again, with more or with nothing.
class TlsStream {
 public:
  // 2^24.5 records of AES-GCM are what one key may encrypt (RFC 8446, 5.5): 380 GB.
  static constexpr uint64_t kBytesPerKey = uint64_t{128} << 30;

  // A stream over the socket `fd`, which outlives this as `context` does.
  TlsStream(const TlsContext* context, int fd, bool client, uint64_t bytes_per_key = kBytesPerKey);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  enum class Handshake { kDone, kGoesOn, kFailed, kLost };
  // Goes on with the handshake, when the socket is readable, or writable after Flushed was false.
  // kDone: the peer has the key that is made from the job token. kFailed: `why` says what OpenSSL
  // says. kLost: the peer is gone.
  Handshake Shake(std::string* why);
  // Once that is done: 32 bytes that only the two ends of this TLS session know (RFC 8446, 7.5).
  const std::string& binding() const { return binding_; }

  // The number of bytes taken, or -1 and errno: EAGAIN when what it took before has not left.
  ssize_t Send(const iovec* pieces, int count);
  bool Flushed();

  // The number of bytes that came, 0 at the end of the stream, or -1 and errno: EAGAIN, or EBADMSG
  // when they were altered on their way.
  ssize_t Receive(const iovec* pieces, int count);
  // True if there is more than the socket shows.
  bool HasMore();

 private:
  friend struct TlsBio;

  // Checks that it is the session that we want, and learns what binds proofs to it.
  Handshake CheckLocked(std::string* why);
  bool FlushLocked();  // false: the socket is full, or broken (errno)
  bool WriteLocked(const void* from, size_t bytes);
  bool AtEndLocked() const;

  const int fd_;
  const uint64_t bytes_per_key_;
  std::mutex mutex_;
  LibSsl::Stream* stream_ = nullptr;
  std::string binding_;
  std::vector<char> record_;  // small pieces on their way into one record
  std::vector<char> out_;     // encrypted
  size_t out_at_ = 0;         // what is before it has left
  uint64_t with_this_key_ = 0;
};

}  // namespace tensorwire::wire
