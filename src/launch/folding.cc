#include "launch/folding.h"

#include <algorithm>

#include "base/of_rank.h"

namespace tutti::launch {

void Folding::add(int rank, Stream stream, std::string_view line, Clock::time_point now) {
  std::size_t& last = of_rank(last_, rank);
  const std::size_t first = std::max(last, taken_) - taken_;
  for (std::size_t i = first; i < waiting_.size(); ++i) {
    Folded& folded = waiting_[i].folded;
    if (folded.stream != stream || folded.line != line) continue;
    folded.ranks.insert(std::upper_bound(folded.ranks.begin(), folded.ranks.end(), rank), rank);
    last = taken_ + i + 1;
    return;
  }
  // Right behind the last of its rank: equal lines that follow may still come together.
  const auto place = waiting_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto until =
      place == waiting_.end() ? now + kMoment : std::min(now + kMoment, place->until);
  waiting_.insert(place, {{{rank}, stream, std::string(line)}, until});
  for (std::size_t& behind : last_) behind += behind > taken_ + first ? 1 : 0;
  last = taken_ + first + 1;
}

std::vector<Folding::Folded> Folding::take(Clock::time_point now) {
  std::vector<Folded> due;
  while (!waiting_.empty()) {
    Waiting& front = waiting_.front();
    const bool is_said_by_all = front.folded.ranks.size() == last_.size();
    if (!is_said_by_all && front.until > now && waiting_.size() <= kMost) break;
    due.push_back(std::move(front.folded));
    waiting_.pop_front();
    ++taken_;
  }
  return due;
}

Folding::Clock::time_point Folding::next_due() const noexcept {
  return waiting_.empty() ? Clock::time_point::max() : waiting_.front().until;
}

}  // namespace tutti::launch
