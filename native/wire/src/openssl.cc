#include "openssl.h"

#include <dlfcn.h>

#include <array>
#include <string>

namespace tensorwire::wire {
namespace {

// TensorFlow's libraries export a BoringSSL with OpenSSL's names. Deep binding keeps OpenSSL from
// calling that one. The sanitizers do not support deep binding; they run without TensorFlow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kMode = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

// One of OpenSSL's two libraries, in the newest version that is installed.
class Library {
 public:
  explicit Library(const std::string& name) {
    for (const char* version : {".so.3", ".so.1.1"}) {
      handle_ = dlopen((name + version).c_str(), kMode);
      if (handle_ != nullptr) return;
      if (why_.empty()) why_ = dlerror();
    }
    status_ = Status(Code::kFailedPrecondition,
                     "a job token needs OpenSSL's library " + name + ".so.3 (" + why_ +
                         "): install the package libssl3 or openssl-libs");
  }

  template <typename Function>
  void Find(const char* name, Function** out) {
    if (handle_ == nullptr) return;
    // dlsym looks in this library first and then in those that it needs, so it finds OpenSSL's
    // function.
    *out = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (*out == nullptr && status_.ok()) {
      status_ = Status(Code::kFailedPrecondition,
                       std::string("OpenSSL's library has no function ") + name);
    }
  }
  const Status& status() const { return status_; }

 private:
  void* handle_ = nullptr;
  std::string why_;
  Status status_;
};

}  // namespace

Status LibCrypto::Load(const LibCrypto** out) {
  static LibCrypto functions;
  static const Status status = [] {
    Library library("libcrypto");
    library.Find("EVP_sha256", &functions.EVP_sha256);
    library.Find("HMAC", &functions.HMAC);
    library.Find("CRYPTO_memcmp", &functions.CRYPTO_memcmp);
    return library.status();
  }();
  *out = &functions;
  return status;
}

std::string LibCrypto::Hmac(std::string_view key, std::string_view text) const {
  std::array<unsigned char, kHmacBytes> digest;
  unsigned int digest_bytes = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
           &digest_bytes) == nullptr ||
      digest_bytes != kHmacBytes) {
    return "";
  }
  return {reinterpret_cast<const char*>(digest.data()), kHmacBytes};
}

Status LibSsl::Load(const LibSsl** out) {
  static LibSsl functions;
  static const Status status = [] {
    Library ssl("libssl");
    ssl.Find("OPENSSL_init_ssl", &functions.OPENSSL_init_ssl);
    ssl.Find("TLS_method", &functions.TLS_method);
    ssl.Find("SSL_CTX_new", &functions.SSL_CTX_new);
    ssl.Find("SSL_CTX_free", &functions.SSL_CTX_free);
    ssl.Find("SSL_CTX_ctrl", &functions.SSL_CTX_ctrl);
    ssl.Find("SSL_CTX_set_ciphersuites", &functions.SSL_CTX_set_ciphersuites);
    ssl.Find("SSL_CTX_set_num_tickets", &functions.SSL_CTX_set_num_tickets);
    ssl.Find("SSL_CTX_set_default_read_buffer_len", &functions.SSL_CTX_set_default_read_buffer_len);
    ssl.Find("SSL_CTX_set_psk_use_session_callback",
             &functions.SSL_CTX_set_psk_use_session_callback);
    ssl.Find("SSL_CTX_set_psk_find_session_callback",
             &functions.SSL_CTX_set_psk_find_session_callback);
    ssl.Find("SSL_new", &functions.SSL_new);
    ssl.Find("SSL_free", &functions.SSL_free);
    ssl.Find("SSL_set_bio", &functions.SSL_set_bio);
    ssl.Find("SSL_set_accept_state", &functions.SSL_set_accept_state);
    ssl.Find("SSL_set_connect_state", &functions.SSL_set_connect_state);
    ssl.Find("SSL_set_ex_data", &functions.SSL_set_ex_data);
    ssl.Find("SSL_get_ex_data", &functions.SSL_get_ex_data);
    ssl.Find("SSL_set_verify", &functions.SSL_set_verify);
    ssl.Find("SSL_do_handshake", &functions.SSL_do_handshake);
    ssl.Find("SSL_session_reused", &functions.SSL_session_reused);
    ssl.Find("SSL_export_keying_material", &functions.SSL_export_keying_material);
    ssl.Find("SSL_read_ex", &functions.SSL_read_ex);
    ssl.Find("SSL_write_ex", &functions.SSL_write_ex);
    ssl.Find("SSL_get_error", &functions.SSL_get_error);
    ssl.Find("SSL_has_pending", &functions.SSL_has_pending);
    ssl.Find("SSL_key_update", &functions.SSL_key_update);
    ssl.Find("SSL_CIPHER_find", &functions.SSL_CIPHER_find);
    ssl.Find("SSL_SESSION_new", &functions.SSL_SESSION_new);
    ssl.Find("SSL_SESSION_free", &functions.SSL_SESSION_free);
    ssl.Find("SSL_SESSION_set1_master_key", &functions.SSL_SESSION_set1_master_key);
    ssl.Find("SSL_SESSION_set_cipher", &functions.SSL_SESSION_set_cipher);
    ssl.Find("SSL_SESSION_set_protocol_version", &functions.SSL_SESSION_set_protocol_version);
    if (!ssl.status().ok()) return ssl.status();
    Library crypto("libcrypto");
    crypto.Find("BIO_get_new_index", &functions.BIO_get_new_index);
    crypto.Find("BIO_meth_new", &functions.BIO_meth_new);
    crypto.Find("BIO_meth_free", &functions.BIO_meth_free);
    crypto.Find("BIO_meth_set_write", &functions.BIO_meth_set_write);
    crypto.Find("BIO_meth_set_read", &functions.BIO_meth_set_read);
    crypto.Find("BIO_meth_set_ctrl", &functions.BIO_meth_set_ctrl);
    crypto.Find("BIO_new", &functions.BIO_new);
    crypto.Find("BIO_set_data", &functions.BIO_set_data);
    crypto.Find("BIO_get_data", &functions.BIO_get_data);
    crypto.Find("BIO_set_init", &functions.BIO_set_init);
    crypto.Find("BIO_set_flags", &functions.BIO_set_flags);
    crypto.Find("BIO_clear_flags", &functions.BIO_clear_flags);
    crypto.Find("ERR_clear_error", &functions.ERR_clear_error);
    crypto.Find("ERR_peek_last_error", &functions.ERR_peek_last_error);
    crypto.Find("ERR_reason_error_string", &functions.ERR_reason_error_string);
    return crypto.status();
  }();
  *out = &functions;
  return status;
}

}  // namespace tensorwire::wire
