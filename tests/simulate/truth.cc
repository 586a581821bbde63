#include "simulate/truth.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace tutti::simulate {

using namespace std::chrono_literals;
using control::Verdict;

namespace {

using Chains = std::vector<std::optional<std::uint64_t>>;  // by member

/// The number behind `mark`; nothing: the text has no such mark.
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  return std::stoull(std::string(text.substr(at + mark.size(), 20)));
}

/// One verdict on one group.
class Truth {
 public:
  Truth(const Happened& happened, const Verdict& verdict, Clock::time_point since)
      : happened_(happened),
        verdict_(verdict),
        group_(happened.groups.at(verdict.groups.front())),
        since_(since) {}

  std::string why_not() const {
    if (has("its parent failed meanwhile")) return {};  // what is said of that has been looked at
    // Of a rank that has left its line is known, which has a code and no names.
    if (verdict_.culprits.empty() && !has(" had failed (")) return "it names nobody";
    if (verdict_.code == ErrorCode::kDeadlock) return why_no_knot();
    if (has("not called after ")) return why_had_come();
    if (has(" disagree about operation #")) return why_no_disagreement();
    if (has("did not call the same number of collectives")) return why_not_fewer();
    if (has(" closed, or could not make, the parent of this group"))
      return why_still_in(group_.parent);
    if (has(" left the group")) return why_still_in(verdict_.groups.front());
    if (has(" left the world")) return why_still_in_world();
    if (verdict_.text.starts_with("no byte ")) return why_not_stalled();
    if (verdict_.text.starts_with("after ")) return why_disagreed(number_after(text(), " #"));
    return {};
  }

 private:
  std::string_view text() const { return verdict_.text; }
  bool has(std::string_view words) const { return text().find(words) != std::string_view::npos; }
  std::size_t member_of(int rank) const {
    const auto& ranks = group_.world_ranks;
    return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
  /// The first culprit of whom `is_wrong` holds, and what that means.
  template <class IsWrong>
  std::string culprit(IsWrong&& is_wrong, std::string_view means) const {
    for (const auto [rank] : verdict_.culprits)
      if (is_wrong(rank)) return fmt::format("rank {} {}", rank, means);
    return {};
  }

  std::string why_no_knot() const {
    if (verdict_.culprits.size() < 2) return "it names no two ranks";
    // Its own time may have passed between the last look of who found it and the entry.
    return culprit(
        [&](int rank) {
          const auto out = happened_.came_out.find(rank);
          const bool was_in = out != happened_.came_out.end() && out->second >= since_;
          return !happened_.inside.contains(rank) && !was_in;
        },
        "waits for nobody");
  }

  std::string why_had_come() const {
    return culprit(
        [&](int rank) {
          const auto made = group_.made.find(rank);
          return made != group_.made.end() && made->second < since_ &&
                 !happened_.has_fault(FaultKind::error);
        },
        "had come to make it");
  }

  std::string why_still_in(GroupId id) const {
    const auto of = happened_.groups.find(id);
    if (of == happened_.groups.end()) return {};
    return culprit([&](int rank) { return !of->second.leaving.contains(rank); },
                   "has not left the group");
  }

  std::string why_still_in_world() const {
    const auto is_in = [&](int rank) {
      return happened_.joined.contains(rank) && !happened_.leaving.contains(rank);
    };
    return culprit(is_in, "has not left the world");
  }

  /// Culprits are the smaller sides. A judge has seen all of them that it names, and of others
  /// perhaps not all.
  std::string why_no_disagreement() const {
    const auto found = group_.chains.find(number_after(text(), "operation #").value());
    if (found == group_.chains.end()) return "nobody has called it";
    // What a rank of another host has called may come after its data.
    if (has("an operation that the board no longer shows")) return {};
    std::map<std::uint64_t, std::size_t> named, all;
    for (const auto& chain : found->second)
      if (chain) ++all[*chain];
    for (const auto [rank] : verdict_.culprits) {
      const auto& chain = found->second[member_of(rank)];
      if (!chain) return fmt::format("rank {} has not called it", rank);
      ++named[*chain];
    }
    if (all.size() < 2) return "they agree";
    std::size_t largest = 0;
    for (const auto& [chain, count] : all)
      if (!named.contains(chain)) largest = std::max(largest, count);
    // Of equals that it has seen all are named, and another side may not have been seen.
    const bool are_equal =
        named.size() > 1 && std::all_of(named.begin(), named.end(), [&](const auto& side) {
          return side.second == named.begin()->second;
        });
    if (named.size() == all.size() || are_equal) return {};
    for (const auto& [chain, count] : named)
      if (count >= largest) return "it names the larger side";
    return {};
  }

  std::string why_not_fewer() const {
    const auto found = group_.chains.find(number_after(text(), "left without #").value());
    if (found == group_.chains.end()) return "nobody has called it";
    return culprit([&](int rank) { return found->second[member_of(rank)].has_value(); },
                   "has called it");
  }

  std::string why_not_stalled() const {
    const auto seq = number_after(text(), " #");
    if (!seq || has("'s send(") || has("'s recv(")) return {};
    if (auto wrong = why_disagreed(seq); !wrong.empty()) return wrong;
    const auto ended = group_.ended.find(*seq);
    if (ended == group_.ended.end()) return {};
    return culprit(
        [&](int rank) {
          const Clock::time_point when = ended->second[member_of(rank)];
          return when != Clock::time_point{} && when < since_;
        },
        "had ended it");
  }

  /// Whose operations differ is told that, and not that somebody is late.
  std::string why_disagreed(std::optional<std::uint64_t> seq) const {
    if (!seq || has("'s send(") || has("'s recv(")) return {};
    for (std::uint64_t number = *seq; number > 0 && number + 4 > *seq; --number) {
      const auto chains = group_.chains.find(number);
      const auto entered = group_.entered.find(number);
      if (chains == group_.chains.end() || entered == group_.entered.end()) continue;
      std::optional<std::uint64_t> first;
      for (std::size_t member = 0; member < chains->second.size(); ++member) {
        const Clock::time_point when = entered->second[member];
        if (!chains->second[member] || when == Clock::time_point{} || when >= since_) continue;
        if (first.value_or(*chains->second[member]) != *chains->second[member])
          return fmt::format("they disagree about #{}", number);
        first = chains->second[member];
      }
    }
    return {};
  }

  const Happened& happened_;
  const Verdict& verdict_;
  const Happened::Group& group_;
  const Clock::time_point since_;
};

}  // namespace

std::string why_untrue(const Happened& happened, const Verdict& verdict, Clock::time_point since) {
  if (verdict.is_loss() || !happened.groups.contains(verdict.groups.front())) return {};
  // The first one counts; another host may wish for one before it hears of that.
  const std::vector<int>& ranks = happened.groups.at(verdict.groups.front()).world_ranks;
  const auto is_member = [&](WorldRank rank) {
    return std::find(ranks.begin(), ranks.end(), rank.value) != ranks.end();
  };
  const auto fails_it = [&](const auto& entry) {
    const Verdict& earlier = entry.first;
    return earlier.fails(verdict.groups.front()) ||
           (earlier.is_loss() &&
            std::any_of(earlier.culprits.begin(), earlier.culprits.end(), is_member));
  };
  if (std::any_of(happened.log.begin(), happened.log.end() - 1, fails_it)) return {};
  return Truth(happened, verdict, since).why_not();
}

std::string why_unequal(const Happened::Group& group) {
  for (const auto& [seq, chains] : group.chains) {
    std::optional<std::optional<std::uint64_t>> first;
    for (std::size_t member = 0; member < chains.size(); ++member) {
      if (!group.parted.contains(group.world_ranks[member])) continue;
      if (first && *first != chains[member])
        return fmt::format("its members have closed it well, and disagree about #{}", seq);
      first = chains[member];
    }
  }
  return {};
}

std::string why_unseen(const Happened& happened) {
  // Four looks of the slowest kind, beside the time itself: they begin anew where a group of the
  // circle's ranks ends.
  const auto seen_within = happened.plan.timeout / 4 + 1s;
  for (const Happened::InVain& one : happened.in_vain)
    for (const Happened::InVain& other : happened.in_vain) {
      const auto both = std::min(one.ended, other.ended) - std::max(one.began, other.began);
      if (one.peer == other.rank && other.peer == one.rank && both > seen_within)
        return fmt::format(
            "ranks {} and {} have waited for each other for {} ms: nobody has seen it", one.rank,
            other.rank, both / 1ms);
    }
  return {};
}

}  // namespace tutti::simulate
