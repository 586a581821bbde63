// Mixing of 64-bit words, for chains, ids and tables. Not for keys that an enemy chooses.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace tutti {

/// A bijection of 64 bits in which every input bit moves about half of the output bits.
/// Source: Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (2014), variant 13.
constexpr std::uint64_t mix64(std::uint64_t word) noexcept {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

/// Adds one word to a running hash; the order of words counts.
constexpr std::uint64_t hash_combine(std::uint64_t hash, std::uint64_t word) noexcept {
  return mix64((std::rotl(hash, 27) + 0x9e3779b97f4a7c15u) ^ mix64(word + 0x9e3779b97f4a7c15u));
}

/// Adds two words, whose order counts, in the time of one: they are mixed side by side.
constexpr std::uint64_t hash_combine(std::uint64_t hash, std::uint64_t first,
                                     std::uint64_t second) noexcept {
  return mix64((std::rotl(hash, 27) + 0x9e3779b97f4a7c15u) ^ mix64(first + 0x9e3779b97f4a7c15u) ^
               std::rotl(mix64(second + 0x9e3779b97f4a7c15u), 27));
}

/// The same on every machine and in every run.
constexpr std::uint64_t hash_text(std::string_view text) noexcept {
  std::uint64_t hash = text.size();
  std::uint64_t word = 0;
  int filled = 0;
  for (const char byte : text) {
    word = word << 8 | static_cast<unsigned char>(byte);
    if (++filled == 8) {
      hash = hash_combine(hash, word);
      word = 0;
      filled = 0;
    }
  }
  return filled == 0 ? hash : hash_combine(hash, word);
}

}  // namespace tutti
