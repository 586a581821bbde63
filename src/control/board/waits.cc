#include "control/board/waits.h"

#include <algorithm>

#include "control/board/layout.h"

namespace tutti::control {

namespace {

WaitPart read_part(const Board& board, const ShownPart& place) {
  WaitPart part;
  part.group = place.group.load(std::memory_order_acquire);
  const std::uint32_t kind = place.kind.load(std::memory_order_acquire);
  part.makes_group = (kind & kMakesGroup) != 0;
  part.one_suffices = (kind & kOneSuffices) != 0;
  part.what = place.what.read().value_or(Shown{});
  part.awaited = read_set(place.awaited, board.world_size());
  return part;
}

}  // namespace

WaitFacts read_wait(const Board& board, SlotIndex slot) {
  const ShownWait& wait = board.slot(slot).wait;
  WaitFacts facts;
  facts.is_running = board.state_of(slot) == RankState::running;
  facts.has_several_threads = wait.has_several_threads.load(std::memory_order_acquire) != 0;
  facts.version = wait.version.load(std::memory_order_acquire);
  if (facts.version == 0) return facts;
  facts.looks = wait.looks.load(std::memory_order_acquire);
  facts.since = Clock::time_point(Clock::duration(wait.since.load(std::memory_order_acquire)));
  const auto count =
      std::min<std::size_t>(wait.part_count.load(std::memory_order_acquire), wait.parts.size());
  for (std::size_t i = 0; i < count; ++i) facts.parts.push_back(read_part(board, wait.parts[i]));
  const bool is_torn = wait.version.load(std::memory_order_relaxed) != facts.version;
  const bool awaits = !facts.parts.empty() &&
                      std::none_of(facts.parts.begin(), facts.parts.end(),
                                   [](const WaitPart& part) { return part.awaited.empty(); });
  if (is_torn || !awaits) facts.version = 0;
  return facts;
}

}  // namespace tutti::control
