// Times and counts in words for people, and texts that others read.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/types.h"

namespace tutti::control {

/// Nothing in it steers a terminal any more.
void make_printable(std::string& text) noexcept;
/// A text of one line as whoever reads it off a place of so many bytes will: what is cut off says
/// so.
std::string as_shown(std::string text, std::size_t bytes);
std::string seconds(std::chrono::nanoseconds duration);  ///< "0.05 s"
std::string budget_text(const Deadline& deadline);       ///< the same, of the time it was given
std::string times_text(std::uint64_t count, std::string_view what);  ///< "1 op", "2 ops"

}  // namespace tutti::control
