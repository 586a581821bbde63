#include "net/keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/random.h"
#include "net/openssl.h"
#include "tutti/error.h"

namespace tutti::net {
namespace {

/// Before anybody uses OpenSSL: else it ends with an exit handler, and a world that is a global
/// object lives longer.
[[maybe_unused]] const bool kOutlivesExitHandlers =
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;

struct Free {
  void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
  void operator()(EVP_PKEY_CTX* context) const noexcept { EVP_PKEY_CTX_free(context); }
};
using PKey = std::unique_ptr<EVP_PKEY, Free>;
using PKeyContext = std::unique_ptr<EVP_PKEY_CTX, Free>;

void require(bool succeeded, const char* what) {
  if (!succeeded)
    throw Error(ErrorCode::kSystem, std::string("OpenSSL cannot ") + what + ": is it installed?");
}

Digest hmac(std::span<const std::byte> key, std::span<const std::byte> data) {
  Digest made;
  require(HMAC(EVP_sha256(), in(key), static_cast<int>(key.size()), in(data), data.size(),
               out(made), nullptr) != nullptr,
          "compute an HMAC-SHA256");
  return made;
}

}  // namespace

void wipe(std::span<std::byte> bytes) noexcept { OPENSSL_cleanse(bytes.data(), bytes.size()); }

Key::~Key() { wipe(bytes_); }

Digest digest_of(std::span<const std::byte> data) {
  Digest made;
  SHA256(in(data), data.size(), out(made));
  return made;
}

Digest proof_of(std::span<const std::byte> data, const Key& key) { return hmac(key.bytes(), data); }

bool is_same(std::span<const std::byte> one, std::span<const std::byte> other) noexcept {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

Key derive(std::span<const std::byte> secret, std::span<const std::byte> salt,
           std::string_view purpose) {
  constexpr Digest kNoSalt{};
  const Key extracted(hmac(salt.empty() ? std::span<const std::byte>(kNoSalt) : salt, secret));
  std::vector<std::byte> info(purpose.size() + 1);
  std::ranges::copy(bytes_of(purpose), info.begin());
  info.back() = std::byte{1};
  return Key(hmac(extracted.bytes(), info));
}

KeyPair KeyPair::make() {
  Digest bytes;
  fill_random(bytes.data(), bytes.size());
  const Key own(bytes);
  wipe(bytes);
  return KeyPair(own);
}

Digest KeyPair::public_key_of(const Key& own) {
  const PKey key(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, in(own.bytes()), sizeof(Digest)));
  Digest made;
  std::size_t length = made.size();
  require(key && EVP_PKEY_get_raw_public_key(key.get(), out(made), &length) == 1 &&
              length == made.size(),
          "make an X25519 key");
  return made;
}

std::optional<Key> KeyPair::agree_with(const Digest& other) const {
  const PKey key(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, in(own_.bytes()), sizeof(Digest)));
  const PKey peer(EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, in(other), other.size()));
  require(key && peer, "load an X25519 key");
  const PKeyContext context(EVP_PKEY_CTX_new(key.get(), nullptr));
  require(context && EVP_PKEY_derive_init(context.get()) == 1, "begin an X25519 agreement");
  Digest made;
  std::size_t length = made.size();
  const bool has_agreed = EVP_PKEY_derive_set_peer(context.get(), peer.get()) == 1 &&
                          EVP_PKEY_derive(context.get(), out(made), &length) == 1;
  const Key agreed(made);
  wipe(made);
  return has_agreed ? std::optional(agreed) : std::nullopt;
}

}  // namespace tutti::net
