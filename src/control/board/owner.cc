#include "control/board/owner.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/memory_reserve.h"
#include "control/board/layout.h"
#include "control/board/own_line.h"

namespace tutti::control {

void show_elsewhere(const Board& agents, SlotIndex slot) noexcept {
  RankState unused = RankState::absent;  // else it is the rank's own, of this world or an earlier
  agents.slot(slot).state.compare_exchange_strong(unused, RankState::elsewhere);
}

void outlive_failures(const Board& board, SlotIndex slot) noexcept {
  for (Line& line : Lines(board, slot))
    if (line.failure.load() != 0) line.failure.fetch_or(kOutlived);
}

bool SlotOwner::take(const Cores& cores) noexcept {
  RankState free = RankState::absent;
  if (!slot_.state.compare_exchange_strong(free, RankState::starting) || !slot_.mark.take())
    return false;
  slot_.pid.store(::getpid());
  sleeps_at(index_);
  for (std::size_t i = 0; i < cores.mask.size(); ++i) slot_.cores[i].store(cores.mask[i]);
  slot_.core_quota.store(cores.quota);
  slot_.state.store(RankState::running);
  return true;
}

void SlotOwner::leave() noexcept {
  slot_.state.store(RankState::left);
  slot_.news.fetch_add(1);
  slot_.mark.let_go();
}

void SlotOwner::sleeps_at(SlotIndex slot) noexcept { slot_.control_slot.store(slot.value); }

void SlotOwner::beat() noexcept { slot_.beat.fetch_add(1); }

namespace {

/// Of a long name of a file the end: the line must be seen.
std::string site_text(const Where& where) {
  constexpr std::size_t kMost = kSiteBytes - 1;
  constexpr std::string_view kCut = "...";
  std::string text = name_of(where);
  if (text.size() <= kMost) return text;
  std::size_t at = text.size() - (kMost - kCut.size());
  while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;  // inside a letter
  return std::string(kCut) + text.substr(at);
}

}  // namespace

std::uint8_t SlotOwner::add_site(const Where& where) noexcept {
  const std::lock_guard lock(mutex_);
  const std::size_t first = bucket_of(where);
  for (std::size_t step = 0; step < known_.size(); ++step) {
    Known& known = known_[(first + step) % known_.size()];
    const std::uint8_t index = known.index.load(std::memory_order_relaxed);
    if (index == 0) {
      // Index 0 means unknown; so do all further sites of a program with more than kSites - 1.
      if (sites_used_ + 1 >= kSites) return 0;
      std::string text;
      if (!with_reserve([&] { text = site_text(where); })) return 0;
      ++sites_used_;
      slot_.sites[static_cast<std::size_t>(sites_used_)].write(text);
      known.file.store(where.file, std::memory_order_relaxed);
      known.line.store(where.line, std::memory_order_relaxed);
      known.index.store(static_cast<std::uint8_t>(sites_used_), std::memory_order_release);
      return static_cast<std::uint8_t>(sites_used_);
    }
    if (known.file.load(std::memory_order_relaxed) == where.file &&
        known.line.load(std::memory_order_relaxed) == where.line)
      return index;
  }
  return 0;
}

std::optional<OwnLine> SlotOwner::open_line(GroupId group, GroupId asked_of,
                                            const std::vector<WorldRank>& members) noexcept {
  const std::lock_guard lock(mutex_);
  for (Line& line : Lines(board_, index_)) {
    if (line.state.load(std::memory_order_relaxed) != LineState::free) continue;
    for (auto* word : {&line.entered, &line.completed, &line.goodbye_seq, &line.goodbye_chain,
                       &line.progress, &line.waiting, &line.queued})
      word->store(0, std::memory_order_relaxed);
    line.failure.store(0, std::memory_order_relaxed);
    line.since.store(0, std::memory_order_relaxed);
    line.message.clear();
    for (SharedShown& entry : line.history) entry.clear();
    line.asked_of.store(asked_of, std::memory_order_relaxed);
    line.site.store(0, std::memory_order_relaxed);
    line.times.store(0, std::memory_order_relaxed);
    line.core.store(0, std::memory_order_relaxed);
    write_set(line.ranks, members, board_.world_size());
    outlive_failures(board_, index_);
    line.state.store(LineState::meeting, std::memory_order_relaxed);
    line.group.store(group, std::memory_order_seq_cst);
    slot_.news.fetch_add(1);
    return OwnLine(line, &slot_.news);
  }
  return std::nullopt;
}

bool SlotOwner::add_lines() {
  const std::lock_guard lock(mutex_);
  const int count = board_.line_count(index_);
  if (count >= kMaxLines || !memory_) return false;
  const auto more = static_cast<std::uint32_t>(count - kLinesPerSlot);
  reserve_memory(memory_, board_.more_lines_offset(index_) + more * sizeof(Line),
                 kLinesPerSlot * sizeof(Line));
  slot_.more_lines.store(more + kLinesPerSlot, std::memory_order_release);
  return true;
}

void SlotOwner::free_line(OwnLine own) noexcept {
  Line& line = *own.line_;
  line.group.store(0);
  slot_.news.fetch_add(1);
  line.state.store(LineState::free);
}

void SlotOwner::publish_failure(OwnLine own, ErrorCode code,
                                const std::vector<WorldRank>& culprits) noexcept {
  Line& line = *own.line_;
  const std::lock_guard lock(mutex_);
  write_set(line.ranks, culprits, board_.world_size());
  failures_ = std::min(failures_ + 1, kLastFailure);
  line.failure.store(failure_word(code, failures_));
  slot_.news.fetch_add(1);
}

namespace {

void write(Proposal& place, std::uint64_t number, const Verdict& verdict, int world_size) noexcept {
  place.number.store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < place.groups.size(); ++i) {
    place.groups[i].store(i < verdict.groups.size() ? verdict.groups[i] : 0,
                          std::memory_order_release);
  }
  place.failure.store(failure_word(verdict.code), std::memory_order_release);
  place.finder.store(verdict.finder.value, std::memory_order_release);
  write_set(place.culprits, verdict.culprits, world_size);
  place.text.write(verdict.text);
  place.number.store(number);
}

}  // namespace

std::uint32_t SlotOwner::write_proposal(const Verdict& verdict) noexcept {
  const std::uint64_t number = proposals_used_ + 1;
  write(slot_.proposals[number % kProposals], number, verdict, board_.world_size());
  return static_cast<std::uint32_t>(number & kProposalMask);
}

void SlotOwner::show_wish(const std::optional<Verdict>& wish) noexcept {
  if (wish) {
    write_proposal(*wish);
    keep_proposal();
  }
  slot_.wish.store(wish ? proposals_used_ : 0);
}

void SlotOwner::withdraw_wish() noexcept {
  const std::uint64_t number = slot_.wish.load();
  slot_.wish.store(0);
  if (number != 0) slot_.proposals[number % kProposals].number.store(0);
}

void SlotOwner::reserve_relay_area(std::size_t vote_bytes) {
  if (vote_bytes <= reserved_vote_bytes_) return;
  const RelayArea& area = board_.relay_area(index_);
  const auto reserve = [&](const void* begin, std::size_t byte_count) {
    const auto offset =
        static_cast<std::size_t>(static_cast<const std::byte*>(begin) - board_.data());
    reserve_memory(memory_, offset, byte_count);
  };
  for (const auto& vote : area.votes) reserve(&vote, sizeof(vote.byte_count) + vote_bytes);
  reserve(&area.chosen, sizeof(area.chosen));
  reserved_vote_bytes_ = vote_bytes;
}

std::uint32_t SlotOwner::write_chosen(const Verdict& verdict) noexcept {
  Proposal& place = board_.relay_area(index_).chosen[++chosen_ % kChosen];
  write(place, chosen_, verdict, board_.world_size());
  return static_cast<std::uint32_t>(chosen_ & kProposalMask);
}

void SlotOwner::withdraw_proposal() noexcept {
  slot_.proposals[(proposals_used_ + 1) % kProposals].number.store(0);
}

void SlotOwner::show_wait(Clock::time_point since, const std::vector<WaitPart>& parts) noexcept {
  ShownWait& wait = slot_.wait;
  wait.version.store(0, std::memory_order_relaxed);
  wait.since.store(since.time_since_epoch().count(), std::memory_order_release);
  const std::size_t count = std::min(parts.size(), wait.parts.size());
  for (std::size_t i = 0; i < count; ++i) {
    const WaitPart& part = parts[i];
    ShownPart& place = wait.parts[i];
    Shown what = part.what;
    what.seq = std::max<std::uint64_t>(what.seq, 1);  // the entry's version word
    place.group.store(part.group, std::memory_order_release);
    place.kind.store((part.makes_group ? kMakesGroup : 0) | (part.one_suffices ? kOneSuffices : 0),
                     std::memory_order_release);
    place.what.write(what);
    write_set(place.awaited, part.awaited, board_.world_size());
  }
  wait.part_count.store(static_cast<std::uint32_t>(count), std::memory_order_release);
  wait.version.store(++waits_shown_, std::memory_order_release);
}

void SlotOwner::take_back_wait() noexcept { slot_.wait.version.store(0); }

std::optional<Clock::time_point> SlotOwner::waits_since() const noexcept {
  if (slot_.wait.version.load() == 0) return std::nullopt;
  return Clock::time_point(Clock::duration(slot_.wait.since.load()));
}

void SlotOwner::add_look() noexcept { slot_.wait.looks.fetch_add(1); }

void SlotOwner::say_several_threads() noexcept { slot_.wait.has_several_threads.store(1); }

void SlotOwner::publish_lost(const std::vector<WorldRank>& lost) noexcept {
  write_set(slot_.lost, lost, board_.world_size());
}

void SlotOwner::publish_held_up(const std::vector<WorldRank>& lost) noexcept {
  write_set(slot_.held_up, lost, board_.world_size());
}

void SlotOwner::publish_closing(GroupId group, std::string_view text) noexcept {
  const std::uint64_t key = closing_key(group);
  {
    const std::lock_guard lock(mutex_);  // what was said of it before
    for (PurposeText& purpose : slot_.purposes) {
      if (purpose.chain.load(std::memory_order_relaxed) == key) {
        purpose.chain.store(0, std::memory_order_relaxed);
      }
    }
  }
  publish_purpose(key, text);
}

void SlotOwner::publish_purpose(std::uint64_t chain, std::string_view text) noexcept {
  const std::lock_guard lock(mutex_);
  PurposeText& purpose = slot_.purposes[purposes_used_++ % kPurposes];
  purpose.chain.store(0, std::memory_order_relaxed);
  purpose.text.write(text);
  purpose.chain.store(chain, std::memory_order_release);
}

}  // namespace tutti::control
