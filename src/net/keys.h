// Keys, and what is made of them: other keys, proofs, and what two ends agree on in the open.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace tutti::net {

/// SHA-256, and the length of all that is made with it.
using Digest = std::array<std::byte, 32>;

inline std::span<const std::byte> bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span(text));
}

/// 32 bytes that others must not know: gone from memory with the object. Zeros at first.
class Key {
 public:
  Key() = default;
  explicit Key(const Digest& bytes) noexcept : bytes_(bytes) {}
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  Digest bytes_ = {};
};

/// Of a connection: one for each direction.
struct FrameKeys {
  Key send, receive;
};

Digest digest_of(std::span<const std::byte> data);
/// HMAC-SHA256 (RFC 2104): what only those can make who know the key.
Digest proof_of(std::span<const std::byte> data, const Key& key);
/// Overwrites what must not be found in memory.
void wipe(std::span<std::byte> bytes) noexcept;
/// In a time that does not tell how much of it is the same.
bool is_same(std::span<const std::byte> one, std::span<const std::byte> other) noexcept;

/// HKDF with SHA-256 (RFC 5869), the first block: a key for one purpose.
Key derive(std::span<const std::byte> secret, std::span<const std::byte> salt,
           std::string_view purpose);

/// One end of an agreement in the open: X25519 (RFC 7748). Who hears both public keys learns
/// nothing of what the ends agree on; who changes them agrees with each end instead.
class KeyPair {
 public:
  explicit KeyPair(const Key& own) : own_(own), public_key_(public_key_of(own)) {}
  static KeyPair make();
  const Digest& public_key() const noexcept { return public_key_; }
  /// None: `other` is no public key that anything can be agreed on with.
  std::optional<Key> agree_with(const Digest& other) const;

 private:
  static Digest public_key_of(const Key& own);
  Key own_;
  Digest public_key_;
};

}  // namespace tutti::net
