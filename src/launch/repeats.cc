#include "launch/repeats.h"

#include <fmt/format.h>

#include "base/rank_list.h"

namespace tutti::launch {
namespace {

std::string own_words(int rank) { return fmt::format("tutti: rank {}: ", rank); }

bool is_uncaught(int rank, std::string_view line) {
  return line.starts_with(own_words(rank) + "uncaught ");
}

/// Empty: it is no line of the library in that rank.
std::string_view cause_of(int rank, std::string_view line) {
  const std::string own = own_words(rank);
  if (!line.starts_with(own)) return {};
  line.remove_prefix(own.size());
  // "all_reduce #41 (rank 3) at train.cc:88: CAUSE"
  const std::size_t about = line.find(fmt::format(" (rank {})", rank));
  const std::size_t colon = line.find(": ", about == std::string_view::npos ? line.size() : about);
  return colon == std::string_view::npos ? line : line.substr(colon + 2);
}

}  // namespace

bool Repeats::is_repeat(int rank, std::string_view line, Clock::time_point now) {
  constexpr std::size_t kMostCauses = 16;
  const std::string_view cause = cause_of(rank, line);
  if (cause.empty()) return false;
  for (Said& said : said_) {
    if (said.until <= now || said.cause != cause) continue;
    said.ranks.insert(rank);
    if (is_uncaught(rank, line)) said.uncaught.insert(rank);
    ++said.folded;
    return true;
  }
  if (said_.size() < kMostCauses) said_.push_back({std::string(cause), now + kWindow, {}, {}, 0});
  return false;
}

Repeats::Clock::time_point Repeats::next_close() const noexcept {
  return said_.empty() ? Clock::time_point::max() : said_.front().until;
}

std::vector<std::string> Repeats::close(Clock::time_point now) {
  constexpr std::size_t kShown = 60;
  std::vector<std::string> lines;
  for (; !said_.empty() && said_.front().until <= now; said_.pop_front()) {
    const Said& said = said_.front();
    if (said.folded == 0) continue;
    const std::vector<int> ranks(said.ranks.begin(), said.ranks.end());
    const std::vector<int> uncaught(said.uncaught.begin(), said.uncaught.end());
    lines.push_back(fmt::format("tutti: the same from {}{}{}: {}{}", ranks_text(ranks),
                                said.folded == 1 ? "" : fmt::format(" ({} lines)", said.folded),
                                uncaught.empty() ? "" : ", uncaught on " + ranks_text(uncaught),
                                said.cause.substr(0, kShown),
                                said.cause.size() > kShown ? "..." : ""));
  }
  return lines;
}

}  // namespace tutti::launch
