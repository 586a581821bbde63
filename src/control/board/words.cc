#include "control/board/words.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::control {

/// Bytes of UTF-8 stay, but for the controls that it has as well (C2 80 to C2 9F).
void make_printable(std::string& text) noexcept {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto code = static_cast<unsigned char>(text[i]);
    const bool after_c2 = i > 0 && static_cast<unsigned char>(text[i - 1]) == 0xc2;
    if (code < 0x20 || code == 0x7f || (after_c2 && code < 0xa0)) text[i] = '?';
  }
}

std::string as_shown(std::string text, std::size_t bytes) {
  constexpr std::string_view kCut = "...";
  std::replace(text.begin(), text.end(), '\n', ' ');
  text = text.substr(0, text.find('\0'));
  make_printable(text);
  if (text.size() < bytes) return text;
  std::size_t end = bytes - 1 - kCut.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end).append(kCut);
}

std::string seconds(std::chrono::nanoseconds duration) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(duration).count());
}

std::string budget_text(const Deadline& deadline) {
  const bool unknown = deadline.budget() == std::chrono::nanoseconds::max();
  return unknown ? "the time it was given" : seconds(deadline.budget());
}

std::string times_text(std::uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace tutti::control
