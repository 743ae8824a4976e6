#include "openssl.h"

#include <dlfcn.h>

#include <string>

namespace tensorwire::wire {
namespace {

// TensorFlow's libraries export a BoringSSL with OpenSSL's names. The deep binding keeps OpenSSL
// from calling into that one; the sanitizers, which come without TensorFlow, refuse it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kMode = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

// One of OpenSSL's two libraries, of the newest version that is here.
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
    // From this library and what it needs, in this order; so the first is OpenSSL's.
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

}  // namespace tensorwire::wire
