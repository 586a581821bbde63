#include "device/own.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string_view>

namespace tutti::device {

namespace {

/// The words of a line; the last one is what is left of it.
constexpr std::size_t kWords = 5;

int number_of(std::string_view word) {
  int number = 0;
  std::from_chars(word.data(), word.data() + word.size(), number);
  return number;
}

}  // namespace

std::string SeenDevices::text() const {
  return fmt::format("{} {} {} {} {}", count, local_ranks, has_nccl ? 1 : 0, host, list);
}

SeenDevices SeenDevices::parse(const std::string& line) {
  std::string_view words[kWords];
  std::string_view rest = line;
  for (std::size_t i = 0; i + 1 < kWords; ++i) {
    const std::size_t end = rest.find(' ');
    if (end == std::string_view::npos) return {};
    words[i] = rest.substr(0, end);
    rest.remove_prefix(end + 1);
  }
  SeenDevices seen;
  seen.count = number_of(words[0]);
  seen.local_ranks = number_of(words[1]);
  seen.has_nccl = words[2] == "1";
  seen.host = words[3];
  seen.list = rest;
  return seen;
}

std::string why_no_nccl(std::span<const SeenDevices> ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const SeenDevices& own = ranks[rank];
    if (own.count == 0) return fmt::format("rank {} sees no device", rank);
    if (!own.has_nccl) {
      return fmt::format("rank {} has no NCCL that can be used (tutti backends says why)", rank);
    }
    if (own.count >= own.local_ranks) continue;
    // Fewer than the host has ranks: they must be others than those of the other ranks.
    for (std::size_t other = 0; other < ranks.size(); ++other) {
      const bool shares = ranks[other].host == own.host && ranks[other].list == own.list;
      if (other != rank && shares) {
        return fmt::format(
            "ranks {} and {} of {} share its {} device{}, and NCCL wants one for each",
            std::min(rank, other), std::max(rank, other), own.host, own.count,
            own.count == 1 ? "" : "s");
      }
    }
  }
  return {};
}

}  // namespace tutti::device
