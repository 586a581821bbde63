#include "control/board/words.h"

#include <fmt/format.h>

namespace tutti::control {

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
