// What the fuzzers share: the bytes of an input one after the other, and what must hold.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/error.h"
#include "tutti/log.h"

namespace tutti::fuzz {

inline void require(bool holds) {
  if (!holds) std::abort();
}

/// What is called takes its input, or refuses it by one of `refusals`.
template <class Call>
void take_or_refuse(const Call& call,
                    std::initializer_list<ErrorCode> refusals = {ErrorCode::kInvalidArgument}) {
  try {
    call();
  } catch (const Error& error) {
    require(std::find(refusals.begin(), refusals.end(), error.code()) != refusals.end());
  }
}

/// What is logged of an input is of no use.
inline void log_nothing() {
  static const bool is_set = [] {
    set_log_callback([](LogLevel, std::string_view) {});
    return true;
  }();
  (void)is_set;
}

/// Takes bytes from the input; zeros behind its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t byte_count) : bytes_(data, byte_count) {}
  bool is_empty() const { return bytes_.empty(); }
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }
  std::span<const std::byte> piece(std::size_t most) {
    const auto piece = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(piece.size());
    return std::as_bytes(piece);
  }
  std::string text(std::size_t most = SIZE_MAX) {
    const auto bytes = piece(most);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  /// What is left, cut at line ends.
  std::vector<std::string> lines() {
    std::vector<std::string> lines;
    while (!is_empty()) {
      const auto end = std::find(bytes_.begin(), bytes_.end(), '\n');
      lines.push_back(text(static_cast<std::size_t>(end - bytes_.begin())));
      byte();
    }
    return lines;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace tutti::fuzz
