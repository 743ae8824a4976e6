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

// TLS 1.3 with a key that is made from the job token; shared by the connections of one engine.
// There are no certificates: a peer that has the token is a task of the job. Each connection agrees
// on new keys (psk_dhe_ke), so the token does not decrypt traffic that was recorded earlier.
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

// TLS on one connected, non-blocking socket; replaces sendmsg and readv. One thread may read while
// another one writes.
//
// Send encrypts the bytes that it takes; a part of them may still wait for room in the socket.
// Until Flushed returns true, the caller has to call Send again, with more bytes or with none.
class TlsStream {
 public:
  // One key of AES-GCM may encrypt 2^24.5 records (RFC 8446, 5.5), that is 380 GB.
  static constexpr uint64_t kBytesPerKey = uint64_t{128} << 30;

  // A stream over the socket `fd`. The socket and `context` must outlive this.
  TlsStream(const TlsContext* context, int fd, bool client, uint64_t bytes_per_key = kBytesPerKey);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  enum class Handshake { kDone, kGoesOn, kFailed, kLost };
  // Continues the handshake. To be called when the socket is readable, or writable after Flushed
  // was false. kDone: the peer has the key that is made from the job token. kFailed: `why` is
  // OpenSSL's message. kLost: the peer is gone.
  Handshake Shake(std::string* why);
  // After kDone: 32 bytes that only the two ends of this TLS session know (RFC 8446, 7.5).
  const std::string& binding() const { return binding_; }

  // The number of bytes taken, or -1 and errno: EAGAIN if bytes that were taken before have not
  // been sent.
  ssize_t Send(const iovec* pieces, int count);
  bool Flushed();

  // The number of bytes received, 0 at the end of the stream, or -1 and errno: EAGAIN, or EBADMSG
  // if the bytes were altered.
  ssize_t Receive(const iovec* pieces, int count);
  // True if there are received bytes that epoll does not see.
  bool HasMore();

 private:
  friend struct TlsBio;

  // Checks that the session uses our key, and computes binding_.
  Handshake CheckLocked(std::string* why);
  bool FlushLocked();  // false: the socket is full, or broken (errno)
  bool WriteLocked(const void* from, size_t bytes);
  bool AtEndLocked() const;

  const int fd_;
  const uint64_t bytes_per_key_;
  std::mutex mutex_;
  LibSsl::Stream* stream_ = nullptr;
  std::string binding_;
  std::vector<char> out_;  // encrypted
  size_t out_at_ = 0;      // the bytes before it have been sent
  uint64_t with_this_key_ = 0;
};

}  // namespace tensorwire::wire
