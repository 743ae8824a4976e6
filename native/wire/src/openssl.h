#pragma once

#include <cstddef>

#include "tensorwire/wire/status.h"

// Cryptography is OpenSSL's, loaded when somebody first asks for it: the machine that compiles this
// has no headers of OpenSSL, and the one that runs it needs no library as long as no job token is
// used. What is declared here has been the same in 1.1 and 3.

namespace tensorwire::wire {

struct LibCrypto {
  const void* (*EVP_sha256)();
  unsigned char* (*HMAC)(const void* digest, const void* key, int key_bytes,
                         const unsigned char* data, size_t bytes, unsigned char* out,
                         unsigned int* out_bytes);
  int (*CRYPTO_memcmp)(const void* a, const void* b, size_t bytes);

  // Fails with a line that says what to install. Loaded once, for good.
  static Status Load(const LibCrypto** out);
};

}  // namespace tensorwire::wire
