#include "tls.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <shared_mutex>

namespace tensorwire::wire {
namespace {

// Constants of OpenSSL's headers, which are not available when this is compiled.
constexpr uint64_t kInitNoAtExit = 0x00080000;
constexpr int kCtrlMode = 33;
constexpr int kCtrlSetReadAhead = 41;
constexpr int kCtrlSetMinProtoVersion = 123;
constexpr long kModeAcceptMovingBuffer = 2;
constexpr long kModeReleaseBuffers = 16;
constexpr int kTls13 = 0x0304;
constexpr int kVerifyPeer = 1;
constexpr int kErrorWantRead = 2;
constexpr int kErrorWantWrite = 3;
constexpr int kErrorSyscall = 5;
constexpr int kErrorZeroReturn = 6;
constexpr int kBioSourceSink = 0x0400;
constexpr int kBioRetryRead = 0x01 | 0x08;
constexpr int kBioRetryFlags = 0x0f;
constexpr int kBioCtrlFlush = 11;
constexpr std::array<unsigned char, 2> kAes128Gcm = {0x13, 0x01};  // IANA's number
constexpr const char* kCipherSuites = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr std::string_view kIdentity = "tensorwire job token";
constexpr std::string_view kBindingLabel = "EXPORTER-tensorwire-token";
constexpr size_t kBindingBytes = 32;

constexpr size_t kRecordBytes = 16u << 10;  // the largest that TLS has
// This much is encrypted and then sent at once, while it is in the cache.
constexpr size_t kBatchBytes = 8 * kRecordBytes;
constexpr size_t kReadBytes = 64u << 10;
// Limit of one Receive, during which a writer waits for the lock.
constexpr size_t kReceiveBytes = 256u << 10;

// The buffers of this thread. So a stream needs memory of its own only for bytes that the socket
// has not taken.
struct Buffers {
  std::vector<char> record;  // small pieces that are joined to one record
  std::vector<char> spare;
  static Buffers& OfThread() {
    static thread_local Buffers buffers;
    return buffers;
  }
};

// OpenSSL may be shut down while the process ends (Python's ssl registers that), and reactors may
// still run then. From that moment on this class keeps every thread from calling OpenSSL.
class WhileAlive {
 public:
  WhileAlive() : lock_(Mutex(), std::try_to_lock) {}
  explicit operator bool() const { return lock_.owns_lock(); }
  static void EndWithProcess() {
    static const bool registered = [] {
      return std::atexit([] { Mutex().lock(); }) == 0;  // never unlocked
    }();
    static_cast<void>(registered);
  }

 private:
  static std::shared_mutex& Mutex() {
    static auto* const mutex = new std::shared_mutex;  // outlives all threads of the process
    return *mutex;
  }
  std::shared_lock<std::shared_mutex> lock_;
};

// May be called after TlsContext::Create has loaded OpenSSL.
const LibSsl& Ssl() {
  static const LibSsl* const ssl = [] {
    const LibSsl* found = nullptr;
    LibSsl::Load(&found);
    return found;
  }();
  return *ssl;
}

// Makes an external pre-shared key (TLS 1.3); the caller owns it.
LibSsl::Session* SharedKey(LibSsl::Stream* stream) {
  const auto* const key = static_cast<const std::string*>(Ssl().SSL_get_ex_data(stream, 0));
  LibSsl::Session* const session = Ssl().SSL_SESSION_new();
  const void* const cipher = Ssl().SSL_CIPHER_find(stream, kAes128Gcm.data());
  if (session == nullptr || cipher == nullptr ||
      Ssl().SSL_SESSION_set1_master_key(
          session, reinterpret_cast<const unsigned char*>(key->data()), key->size()) != 1 ||
      Ssl().SSL_SESSION_set_cipher(session, cipher) != 1 ||
      Ssl().SSL_SESSION_set_protocol_version(session, kTls13) != 1) {
    Ssl().SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int UseSession(LibSsl::Stream* stream, const void* /*digest*/, const unsigned char** id,
               size_t* id_bytes, LibSsl::Session** out) {
  *id = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *id_bytes = kIdentity.size();
  *out = SharedKey(stream);
  return *out != nullptr ? 1 : 0;
}

int FindSession(LibSsl::Stream* stream, const unsigned char* id, size_t id_bytes,
                LibSsl::Session** out) {
  *out = nullptr;  // then the handshake fails, because there is no certificate
  if (std::string_view(reinterpret_cast<const char*>(id), id_bytes) != kIdentity) return 1;
  *out = SharedKey(stream);
  return *out != nullptr ? 1 : 0;
}

// A server may ignore the offered key and show a certificate. All certificates are refused.
int RefuseCertificate(int /*is_good*/, void* /*certificates*/) { return 0; }

std::string LastError() {
  const char* reason = Ssl().ERR_reason_error_string(Ssl().ERR_peek_last_error());
  return reason == nullptr ? "no reason given" : reason;
}

}  // namespace

// Connects OpenSSL to the socket. OpenSSL reads from the socket directly; what it writes is kept
// until the stream sends it.
struct TlsBio {
  static TlsStream* StreamOf(LibSsl::Bio* bio) {
    return static_cast<TlsStream*>(Ssl().BIO_get_data(bio));
  }
  static int Write(LibSsl::Bio* bio, const char* bytes, int size) {
    auto& out = StreamOf(bio)->out_;
    if (out.empty()) out.swap(Buffers::OfThread().spare);
    out.insert(out.end(), bytes, bytes + size);
    return size;
  }
  static int Read(LibSsl::Bio* bio, char* to, int size) {
    Ssl().BIO_clear_flags(bio, kBioRetryFlags);
    ssize_t got = 0;
    do {
      got = ::recv(StreamOf(bio)->fd_, to, static_cast<size_t>(size), MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      Ssl().BIO_set_flags(bio, kBioRetryRead);
    }
    return static_cast<int>(got);
  }
  static long Control(LibSsl::Bio* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
    return command == kBioCtrlFlush ? 1 : 0;
  }
};

// --- TlsContext ----------------------------------------------------------------------------------

Status TlsContext::Create(const std::string& token, std::unique_ptr<const TlsContext>* out) {
  const LibSsl* ssl = nullptr;
  const LibCrypto* crypto = nullptr;
  if (Status s = LibSsl::Load(&ssl); !s.ok()) return s;
  if (Status s = LibCrypto::Load(&crypto); !s.ok()) return s;
  ssl->OPENSSL_init_ssl(kInitNoAtExit, nullptr);
  WhileAlive::EndWithProcess();

  std::unique_ptr<TlsContext> made(new TlsContext);
  made->key_ = crypto->Hmac(token, "tensorwire: the key of TLS 1.3");
  made->context_ = ssl->SSL_CTX_new(ssl->TLS_method());
  made->method_ = ssl->BIO_meth_new(ssl->BIO_get_new_index() | kBioSourceSink, "tensorwire");
  if (made->key_.empty() || made->context_ == nullptr || made->method_ == nullptr ||
      ssl->SSL_CTX_ctrl(made->context_, kCtrlSetMinProtoVersion, kTls13, nullptr) != 1 ||
      ssl->SSL_CTX_set_ciphersuites(made->context_, kCipherSuites) != 1 ||
      // No tickets: sessions are not resumed, and each connection has its own key.
      ssl->SSL_CTX_set_num_tickets(made->context_, 0) != 1) {
    return Status(Code::kInternal, "OpenSSL has no TLS 1.3: " + LastError());
  }
  ssl->SSL_CTX_ctrl(made->context_, kCtrlMode, kModeAcceptMovingBuffer | kModeReleaseBuffers,
                    nullptr);
  ssl->SSL_CTX_ctrl(made->context_, kCtrlSetReadAhead, 1, nullptr);
  ssl->SSL_CTX_set_default_read_buffer_len(made->context_, kReadBytes);
  ssl->SSL_CTX_set_psk_use_session_callback(made->context_, UseSession);
  ssl->SSL_CTX_set_psk_find_session_callback(made->context_, FindSession);
  ssl->BIO_meth_set_write(made->method_, TlsBio::Write);
  ssl->BIO_meth_set_read(made->method_, TlsBio::Read);
  ssl->BIO_meth_set_ctrl(made->method_, TlsBio::Control);
  *out = std::move(made);
  return Status();
}

TlsContext::~TlsContext() {
  const WhileAlive alive;
  if (!alive) return;
  Ssl().SSL_CTX_free(context_);
  Ssl().BIO_meth_free(method_);
}

// --- TlsStream -----------------------------------------------------------------------------------

TlsStream::TlsStream(const TlsContext* context, int fd, bool client, uint64_t bytes_per_key)
    : fd_(fd), bytes_per_key_(bytes_per_key) {
  const WhileAlive alive;
  if (!alive) return;
  stream_ = Ssl().SSL_new(context->context_);
  LibSsl::Bio* const bio = Ssl().BIO_new(context->method_);
  if (stream_ == nullptr || bio == nullptr) std::abort();  // no memory for a few hundred bytes
  Ssl().BIO_set_data(bio, this);
  Ssl().BIO_set_init(bio, 1);
  Ssl().SSL_set_bio(stream_, bio, bio);  // the stream owns `bio` now
  Ssl().SSL_set_ex_data(stream_, 0, const_cast<std::string*>(&context->key_));
  if (client) {
    Ssl().SSL_set_verify(stream_, kVerifyPeer, RefuseCertificate);
    Ssl().SSL_set_connect_state(stream_);
  } else {
    Ssl().SSL_set_accept_state(stream_);
  }
}

TlsStream::~TlsStream() {
  const WhileAlive alive;
  if (alive) Ssl().SSL_free(stream_);
}

TlsStream::Handshake TlsStream::Shake(std::string* why) {
  const WhileAlive alive;
  if (!alive) return Handshake::kLost;
  std::lock_guard lock(mutex_);
  Ssl().ERR_clear_error();
  const int done = Ssl().SSL_do_handshake(stream_);
  const int error = done == 1 ? 0 : Ssl().SSL_get_error(stream_, done);
  if (done != 1) *why = LastError();
  // Also when it fails: OpenSSL's alert must reach the peer.
  if (!FlushLocked() && errno != EAGAIN && errno != EWOULDBLOCK) return Handshake::kLost;
  if (done == 1) return CheckLocked(why);
  if (error == kErrorWantRead || error == kErrorWantWrite) return Handshake::kGoesOn;
  return error == kErrorSyscall || error == kErrorZeroReturn ? Handshake::kLost
                                                             : Handshake::kFailed;
}

TlsStream::Handshake TlsStream::CheckLocked(std::string* why) {
  // OpenSSL reports a session with our pre-shared key as resumed, and no other session is resumed.
  if (Ssl().SSL_session_reused(stream_) != 1) {
    *why = "the peer does not use the key that is made from the job token";
    return Handshake::kFailed;
  }
  std::array<unsigned char, kBindingBytes> binding;
  if (Ssl().SSL_export_keying_material(stream_, binding.data(), binding.size(),
                                       kBindingLabel.data(), kBindingLabel.size(), nullptr, 0,
                                       0) != 1) {
    *why = LastError();
    return Handshake::kFailed;
  }
  binding_.assign(reinterpret_cast<const char*>(binding.data()), binding.size());
  return Handshake::kDone;
}

bool TlsStream::FlushLocked() {
  if (out_.empty()) return true;
  while (out_at_ < out_.size()) {
    const ssize_t sent =
        ::send(fd_, out_.data() + out_at_, out_.size() - out_at_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    out_at_ += static_cast<size_t>(sent);
  }
  out_at_ = 0;
  out_.clear();
  if (auto& spare = Buffers::OfThread().spare; spare.capacity() == 0) spare.swap(out_);
  out_.shrink_to_fit();
  return true;
}

bool TlsStream::Flushed() {
  std::lock_guard lock(mutex_);
  return out_.empty();
}

bool TlsStream::WriteLocked(const void* from, size_t bytes) {
  if (with_this_key_ > bytes_per_key_) {
    with_this_key_ = 0;
    Ssl().SSL_key_update(stream_, 0);  // leaves with the next record
  }
  with_this_key_ += bytes;
  size_t written = 0;
  return Ssl().SSL_write_ex(stream_, from, bytes, &written) == 1 && written == bytes;
}

ssize_t TlsStream::Send(const iovec* pieces, int count) {
  const WhileAlive alive;
  if (!alive) {
    errno = EPIPE;
    return -1;
  }
  std::lock_guard lock(mutex_);
  if (!FlushLocked()) return -1;
  Ssl().ERR_clear_error();
  std::vector<char>& record = Buffers::OfThread().record;
  ssize_t taken = 0;
  size_t offset = 0;
  for (int i = 0; i < count;) {
    const char* from = static_cast<const char*>(pieces[i].iov_base) + offset;
    size_t bytes = std::min(pieces[i].iov_len - offset, kRecordBytes);
    if (bytes == kRecordBytes) {
      offset += bytes;
    } else {
      // Heads, small tensors, and the ends of large ones: as many as fit into one record.
      record.clear();
      while (i < count && record.size() < kRecordBytes) {
        from = static_cast<const char*>(pieces[i].iov_base) + offset;
        bytes = std::min(pieces[i].iov_len - offset, kRecordBytes - record.size());
        record.insert(record.end(), from, from + bytes);
        offset += bytes;
        if (offset < pieces[i].iov_len) break;
        ++i;
        offset = 0;
      }
      from = record.data();
      bytes = record.size();
    }
    if (bytes > 0 && !WriteLocked(from, bytes)) {
      errno = EPIPE;
      return -1;
    }
    taken += static_cast<ssize_t>(bytes);
    if (i < count && offset == pieces[i].iov_len) {
      ++i;
      offset = 0;
    }
    if (out_.size() >= kBatchBytes && !FlushLocked()) {
      return errno == EAGAIN || errno == EWOULDBLOCK ? taken : -1;
    }
  }
  if (!FlushLocked() && errno != EAGAIN && errno != EWOULDBLOCK) return -1;
  return taken;
}

ssize_t TlsStream::Receive(const iovec* pieces, int count) {
  const WhileAlive alive;
  if (!alive) {
    errno = EAGAIN;
    return -1;
  }
  std::lock_guard lock(mutex_);
  Ssl().ERR_clear_error();
  size_t total = 0;
  for (int i = 0; i < count; ++i) {
    for (size_t offset = 0; offset < pieces[i].iov_len;) {
      if (total >= kReceiveBytes) return static_cast<ssize_t>(total);
      const size_t most = std::min(pieces[i].iov_len - offset, kReceiveBytes - total);
      size_t got = 0;
      const int done =
          Ssl().SSL_read_ex(stream_, static_cast<char*>(pieces[i].iov_base) + offset, most, &got);
      if (done == 1) {
        offset += got;
        total += got;
        continue;
      }
      if (total > 0) return static_cast<ssize_t>(total);  // the next call returns the reason
      switch (Ssl().SSL_get_error(stream_, done)) {
        case kErrorWantRead:
        case kErrorWantWrite:
          errno = EAGAIN;
          return -1;
        case kErrorZeroReturn:
          return 0;
        case kErrorSyscall:
          return errno == 0 ? 0 : -1;
        default:
          if (AtEndLocked()) return 0;
          errno = EBADMSG;
          return -1;
      }
    }
  }
  return static_cast<ssize_t>(total);
}

bool TlsStream::AtEndLocked() const {
  // OpenSSL treats an end without close_notify as an error. We accept it, because a frame's length
  // shows whether it is complete.
  char next = 0;
  return ::recv(fd_, &next, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

bool TlsStream::HasMore() {
  const WhileAlive alive;
  if (!alive) return false;
  std::lock_guard lock(mutex_);
  return Ssl().SSL_has_pending(stream_) == 1;
}

}  // namespace tensorwire::wire
