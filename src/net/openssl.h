// Bytes as OpenSSL takes them.
#pragma once

#include <cstddef>
#include <span>

namespace tutti::net {

inline const unsigned char* in(std::span<const std::byte> bytes) noexcept {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
inline unsigned char* out(std::span<std::byte> bytes) noexcept {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

}  // namespace tutti::net
