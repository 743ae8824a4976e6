#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tensorwire/wire/status.h"

// Cryptography comes from OpenSSL, which is loaded at its first use. So the machine that compiles
// this needs no headers of OpenSSL, and the machine that runs it needs no library unless a job
// token is used. The functions declared here are the same in 1.1.1 and 3.

namespace tensorwire::wire {

struct LibCrypto {
  const void* (*EVP_sha256)();
  unsigned char* (*HMAC)(const void* digest, const void* key, int key_bytes,
                         const unsigned char* data, size_t bytes, unsigned char* out,
                         unsigned int* out_bytes);
  int (*CRYPTO_memcmp)(const void* a, const void* b, size_t bytes);

  static constexpr size_t kHmacBytes = 32;
  // HMAC-SHA256: kHmacBytes, or "" if OpenSSL fails.
  std::string Hmac(std::string_view key, std::string_view text) const;

  // Loads the library once per process. Fails with a message that says what to install.
  static Status Load(const LibCrypto** out);
};

// TLS, and the functions of libcrypto that it needs.
struct LibSsl {
  struct Context;    // SSL_CTX
  struct Stream;     // SSL
  struct Session;    // SSL_SESSION
  struct Bio;        // BIO
  struct BioMethod;  // BIO_METHOD
  using UseSession = int (*)(Stream*, const void* digest, const unsigned char** id,
                             size_t* id_bytes, Session** out);
  using FindSession = int (*)(Stream*, const unsigned char* id, size_t id_bytes, Session** out);
  using Verify = int (*)(int is_good, void* certificates);

  int (*OPENSSL_init_ssl)(uint64_t options, const void* settings);
  const void* (*TLS_method)();
  Context* (*SSL_CTX_new)(const void* method);
  void (*SSL_CTX_free)(Context*);
  long (*SSL_CTX_ctrl)(Context*, int command, long number, void* pointer);
  int (*SSL_CTX_set_ciphersuites)(Context*, const char* names);
  int (*SSL_CTX_set_num_tickets)(Context*, size_t);
  void (*SSL_CTX_set_default_read_buffer_len)(Context*, size_t);
  void (*SSL_CTX_set_psk_use_session_callback)(Context*, UseSession);
  void (*SSL_CTX_set_psk_find_session_callback)(Context*, FindSession);
  Stream* (*SSL_new)(Context*);
  void (*SSL_free)(Stream*);
  void (*SSL_set_bio)(Stream*, Bio* read, Bio* write);
  void (*SSL_set_accept_state)(Stream*);
  void (*SSL_set_connect_state)(Stream*);
  int (*SSL_set_ex_data)(Stream*, int index, void* data);
  void* (*SSL_get_ex_data)(const Stream*, int index);
  void (*SSL_set_verify)(Stream*, int mode, Verify);
  int (*SSL_do_handshake)(Stream*);
  int (*SSL_session_reused)(const Stream*);
  int (*SSL_export_keying_material)(Stream*, unsigned char* out, size_t bytes, const char* label,
                                    size_t label_bytes, const unsigned char* context,
                                    size_t context_bytes, int use_context);
  int (*SSL_read_ex)(Stream*, void* to, size_t bytes, size_t* got);
  int (*SSL_write_ex)(Stream*, const void* from, size_t bytes, size_t* written);
  int (*SSL_get_error)(const Stream*, int returned);
  int (*SSL_has_pending)(const Stream*);
  int (*SSL_key_update)(Stream*, int type);
  const void* (*SSL_CIPHER_find)(Stream*, const unsigned char* id);
  Session* (*SSL_SESSION_new)();
  void (*SSL_SESSION_free)(Session*);
  int (*SSL_SESSION_set1_master_key)(Session*, const unsigned char* key, size_t bytes);
  int (*SSL_SESSION_set_cipher)(Session*, const void* cipher);
  int (*SSL_SESSION_set_protocol_version)(Session*, int version);

  int (*BIO_get_new_index)();
  BioMethod* (*BIO_meth_new)(int type, const char* name);
  void (*BIO_meth_free)(BioMethod*);
  int (*BIO_meth_set_write)(BioMethod*, int (*)(Bio*, const char*, int));
  int (*BIO_meth_set_read)(BioMethod*, int (*)(Bio*, char*, int));
  int (*BIO_meth_set_ctrl)(BioMethod*, long (*)(Bio*, int, long, void*));
  Bio* (*BIO_new)(const BioMethod*);
  void (*BIO_set_data)(Bio*, void*);
  void* (*BIO_get_data)(Bio*);
  void (*BIO_set_init)(Bio*, int);
  void (*BIO_set_flags)(Bio*, int);
  void (*BIO_clear_flags)(Bio*, int);
  void (*ERR_clear_error)();
  unsigned long (*ERR_peek_last_error)();
  const char* (*ERR_reason_error_string)(unsigned long error);

  // Loads the library; see LibCrypto::Load.
  static Status Load(const LibSsl** out);
};

}  // namespace tensorwire::wire
