#include "authenticator.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "hex.h"
#include "random.h"
#include "tensorwire/wire/frame.h"

namespace tensorwire::wire {
namespace {

constexpr size_t kChallengeBytes = 32;

void Append(std::string_view part, std::string* text) {
  const uint64_t size = part.size();
  char bytes[sizeof(size)];
  std::memcpy(bytes, &size, sizeof(size));
  text->append(bytes, sizeof(size));
  text->append(part);
}

std::string Transcript(Authenticator::Role role, Authenticator::Said said,
                       std::string_view binding) {
  std::string text = "tensorwire ";
  text += static_cast<char>(kWireVersion);
  text += role == Authenticator::Role::kClient ? 'c' : 's';
  for (const std::string_view part : said) Append(part, &text);
  if (!binding.empty()) Append(binding, &text);
  return text;
}

}  // namespace

Status Authenticator::Create(const std::string& token, std::unique_ptr<const Authenticator>* out) {
  const LibCrypto* crypto = nullptr;
  if (Status s = LibCrypto::Load(&crypto); !s.ok()) return s;
  std::unique_ptr<Authenticator> made(new Authenticator(crypto));
  made->key_ = crypto->Hmac(token, "tensorwire: who opens a connection");
  if (made->key_.empty()) return Status(Code::kInternal, "OpenSSL computes no HMAC-SHA256");
  *out = std::move(made);
  return Status();
}

std::string Authenticator::Challenge() {
  std::array<char, kChallengeBytes> bytes;
  if (!RandomBytes(bytes.data(), bytes.size())) return "";
  return Hex({bytes.data(), bytes.size()});
}

std::string Authenticator::Prove(Role role, Said said, std::string_view binding) const {
  return Hex(crypto_->Hmac(key_, Transcript(role, said, binding)));
}

bool Authenticator::Check(Role role, Said said, std::string_view proof,
                          std::string_view binding) const {
  const std::string right = Prove(role, said, binding);
  return right.size() == 2 * LibCrypto::kHmacBytes && proof.size() == right.size() &&
         crypto_->CRYPTO_memcmp(right.data(), proof.data(), right.size()) == 0;
}

}  // namespace tensorwire::wire
