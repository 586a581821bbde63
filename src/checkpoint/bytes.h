// Numbers as files hold them: little-endian, wherever they stand.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

namespace tutti::checkpoint {

static_assert(std::endian::native == std::endian::little, "these files are little-endian");

/// The bytes at `at` must be there.
template <class Number>
Number number_at(std::span<const std::byte> bytes, std::size_t at) {
  Number number;
  std::memcpy(&number, bytes.subspan(at, sizeof(Number)).data(), sizeof(Number));
  return number;
}

template <class Number>
void append_number(std::string* bytes, Number number) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof(Number));
}

}  // namespace tutti::checkpoint
