// Applying the log of the world's verdicts, and entering into it.
#include <algorithm>
#include <utility>

#include "base/memory_reserve.h"
#include "control/board/words.h"
#include "control/host_state.h"

namespace tutti::control {

void Host::State::apply_log() noexcept {
  const std::lock_guard lock(log_mutex);
  with_reserve([this] { apply_new_entries(); });
}

bool Host::State::enter(const std::function<std::optional<Verdict>()>& verdict) {
  const std::lock_guard lock(log_mutex);
  for (;;) {
    apply_new_entries();
    std::optional<Verdict> wanted = verdict();
    if (!wanted) return false;
    wanted->text = as_shown(std::move(wanted->text), kVerdictBytes);
    if (others != nullptr) {
      wish(*wanted);
      return false;
    }
    if (!log.propose(next_entry, *wanted)) continue;
    // It is entered: where there is no memory now, it is applied as those of others are.
    if (with_reserve([&] { apply(*wanted); })) ++next_entry;
    return true;
  }
}

bool Host::State::enter_parts(const Verdict& verdict, const std::function<bool()>& stands) {
  // Others must have read the first one before its place is used again. What is left then is told
  // by those whom it concerns, where they still find it.
  constexpr std::size_t kMost = kVerdictGroups * (kProposals - 1);
  const std::size_t count = std::min(verdict.groups.size(), kMost);
  bool holds = true;
  for (std::size_t first = 0; holds && first < count; first += kVerdictGroups) {
    Verdict part = verdict;
    const auto groups = verdict.groups.begin();
    part.groups.assign(
        groups + static_cast<std::ptrdiff_t>(first),
        groups + static_cast<std::ptrdiff_t>(std::min(first + kVerdictGroups, count)));
    enter([&]() -> std::optional<Verdict> {
      if (first == 0) holds = stands();
      return holds ? std::optional(part) : std::nullopt;
    });
    if (holds) rouse_others();
  }
  return holds;
}

// ---- between hosts: the relay proposes what its ranks wish -------------------------------------

void Host::State::wish(const Verdict& verdict) {
  const auto same = std::find_if(wishes.begin(), wishes.end(), [&](const Wish& each) {
    return each.verdict.groups == verdict.groups;
  });
  if (same != wishes.end() && (!verdict.is_loss() || same->verdict == verdict)) return;
  if (same != wishes.end()) {
    same->verdict = verdict;
  } else {
    const auto all = all_memberships();
    const bool is_own =
        verdict.is_loss() || std::any_of(all.begin(), all.end(), [&](const auto& membership) {
          return verdict.fails(membership->id);
        });
    wishes.push_back({verdict, is_own, Clock::time_point::max()});
  }
  process->rouse_self();
}

/// A deadlock is settled once any of its groups has failed: its members are told of that cause. Of
/// members that ask for different groups each is to be told, unless nobody is left to differ from.
bool Host::State::is_settled(const Wish& shown) const {
  const Verdict& wish = shown.verdict;
  const auto is_ahead = [this](GroupId group) { return ahead_of_log.contains(group); };
  if (std::any_of(wish.groups.begin(), wish.groups.end(), is_ahead)) return false;
  if (!wish.is_loss()) {
    const bool is_dispute = wish.code == ErrorCode::kCollectiveMismatch && wish.groups.size() > 1;
    const std::size_t failed = count_failed(wish);
    if (failed > 0 && !is_dispute) return true;
    if (failed + (shown.is_own ? 1 : 0) >= wish.groups.size() && is_dispute) return true;
  }
  if (!shown.is_own) return Clock::now() >= shown.until;
  const std::lock_guard lock(mutex);
  if (wish.is_loss()) {
    return std::all_of(wish.culprits.begin(), wish.culprits.end(),
                       [&](WorldRank culprit) { return lost.contains(culprit); });
  }
  return std::none_of(memberships.begin(), memberships.end(), [&](const auto& membership) {
    return wish.fails(membership->id) && membership->abort_word.load() == kRunning;
  });
}

/// Whether a group has failed with this one; else nobody may read its text as the reason.
bool Host::State::was_chosen(const Verdict& wish) const {
  const bool is_remembered = std::any_of(
      remembered.begin(), remembered.end(),
      [&](const Verdict& each) { return each.groups == wish.groups && each.text == wish.text; });
  if (is_remembered) return true;
  const auto all = all_memberships();
  return std::any_of(all.begin(), all.end(), [&](const auto& membership) {
    const std::lock_guard lock(membership->mutex);
    const auto& cause = membership->first_cause;
    return wish.fails(membership->id) && cause && cause->text == wish.text;
  });
}

void Host::State::show_wish() {
  std::optional<Verdict> first;
  bool is_over = false;
  {
    const std::lock_guard lock(log_mutex);
    std::erase_if(wishes, [this](const Wish& each) { return is_settled(each); });
    // Losses first: others may follow from them.
    auto next = std::find_if(wishes.begin(), wishes.end(),
                             [](const Wish& each) { return each.verdict.is_loss(); });
    if (next == wishes.end()) next = wishes.begin();
    if (next != wishes.end()) {
      constexpr std::chrono::seconds kForOthers{5};  // who is stuck cannot go on by itself
      if (!next->is_own) next->until = std::min(next->until, after(Clock::now(), kForOthers));
      first = next->verdict;
    }
    if (first == shown_wish) return;
    is_over = shown_wish && !was_chosen(*shown_wish);
  }
  if (is_over) own.withdraw_wish();
  own.show_wish(first);
  shown_wish = std::move(first);
  if (shown_wish) rouse_others();
}

void Host::State::hear_while_held_up() {
  std::set<WorldRank> told;
  for (const SlotIndex slot : shared.slots()) {
    if (shared.is_known_dead(slot)) continue;
    for (const WorldRank each : shared.held_up_by(slot))
      if (!is_lost(each)) told.insert(each);
  }
  if (told.empty()) return;
  const std::lock_guard lock(log_mutex);  // who is told in one group finds the others failed
  for (const auto& membership : all_memberships())
    if (membership->abort_word.load() == kRunning) membership->peers_lost(told, {});
}

void Host::State::settle_what_is_held_up(Clock::time_point now, Clock::time_point* next) {
  // In looks: while this process was stopped the relay may have been, too.
  static constexpr std::chrono::milliseconds kBetween{20};
  static constexpr int kLooks = static_cast<int>(kHeldUp / kBetween);
  for (const SlotIndex slot : shared.slots()) {
    const std::uint64_t shown = shared.wish_of(slot);
    SeenWish& seen = seen_wishes[slot];
    if (std::exchange(seen.number, shown) != shown) seen.looks = 0;
    if (shown == 0 || shared.is_known_dead(slot)) continue;
    if (now >= seen.next_look) {
      seen.next_look = now + kBetween;
      ++seen.looks;
    }
    *next = std::min(*next, seen.next_look);
    if (seen.looks <= kLooks) continue;
    const auto wish = read_wish(shared, slot);
    if (!wish || wish->is_loss()) continue;
    const std::lock_guard lock(log_mutex);
    apply_new_entries();
    for (const auto& membership : all_memberships()) {
      if (!wish->fails(membership->id) || membership->abort_word.load() != kRunning) continue;
      ahead_of_log.insert(membership->id);
      membership->fail_by(*wish);
    }
  }
}

// ---- applying them -----------------------------------------------------------------------------

// No entry is passed before it has been applied to the end, and applying one again does no harm.
void Host::State::apply_new_entries() {
  for (;;) {
    Verdict verdict;
    const BoardLog::State state = log.read(next_entry, &verdict);
    if (state == BoardLog::State::open) break;
    if (state == BoardLog::State::entered) {
      apply(verdict);
      ++next_entry;
      continue;
    }
    if (!has_to_catch_up) catch_up();
    has_to_catch_up = true;
    next_entry = log.after_missed(next_entry);
  }
  if (!has_to_catch_up) return;
  catch_up();
  has_to_catch_up = false;
}

void Host::State::apply(const Verdict& verdict) {
  if (deadlock != Deadlock::off) {
    ended_groups.all = ended_groups.all || verdict.is_loss();
    ended_groups.ids.insert(verdict.groups.begin(), verdict.groups.end());
  }
  if (verdict.is_loss()) {
    apply_loss(verdict.culprits, verdict.text);
    return remember(verdict);
  }
  std::size_t here = 0;
  for (const GroupId group : verdict.groups) ahead_of_log.erase(group);
  for (const auto& membership : all_memberships()) {
    if (!verdict.fails(membership->id)) continue;
    membership->fail_by(verdict);
    ++here;
  }
  if (here < verdict.groups.size()) remember(verdict);
}

/// Its place on the board may be used again before this rank makes a group that it fails.
void Host::State::remember(const Verdict& verdict) {
  remembered.push_back(verdict);
  if (remembered.size() <= kRemembered) return;
  remembered.pop_front();
  has_missed_entries.store(true);  // for groups that are made from now on
}

void Host::State::apply_loss(const std::vector<WorldRank>& culprits, const std::string& why) {
  std::set<WorldRank> all;
  {
    const std::lock_guard lock(mutex);
    lost.insert(culprits.begin(), culprits.end());
    all = lost;
  }
  own.publish_lost({all.begin(), all.end()});
  loss_word.store(kFailed);
  ring(own.bell());
  for (const auto& membership : all_memberships()) membership->peers_lost(all, why);
}

// Others have applied what this rank has missed: their slots say who is lost, their lines why
// groups have failed.
void Host::State::catch_up() {
  has_missed_entries.store(true);
  ended_groups.all = true;
  std::set<WorldRank> shown;
  for (const SlotIndex slot : shared.slots())
    for (const WorldRank each : shared.lost_by(slot)) shown.insert(each);
  for (const auto& membership : all_memberships()) membership->adopt_from_lines();
  if (!shown.empty()) apply_loss({shown.begin(), shown.end()}, {});
}

bool Host::State::has_failed(GroupId group) noexcept {
  const std::lock_guard lock(log_mutex);
  with_reserve([this] { apply_new_entries(); });
  return std::any_of(remembered.begin(), remembered.end(),
                     [group](const Verdict& verdict) { return verdict.fails(group); });
}

bool Host::State::was_disputed(GroupId group, std::span<const GroupId> asked) noexcept {
  const std::lock_guard lock(log_mutex);
  with_reserve([this] { apply_new_entries(); });
  const auto first = std::find_if(remembered.begin(), remembered.end(), [&](const Verdict& each) {
    return each.code == ErrorCode::kCollectiveMismatch && each.fails(group);
  });
  if (first == remembered.end()) return false;
  return std::any_of(remembered.begin(), remembered.end(), [&](const Verdict& each) {
    return each.text == first->text &&  // maybe another part of it
           std::any_of(each.groups.begin(), each.groups.end(), [&](GroupId failed) {
             return std::find(asked.begin(), asked.end(), failed) != asked.end();
           });
  });
}

void Host::State::tell_from_now_on(const std::shared_ptr<Membership::State>& membership) {
  const std::lock_guard lock(log_mutex);
  apply_new_entries();
  std::set<WorldRank> all_lost;
  {
    const std::lock_guard also(mutex);
    all_lost = lost;
    memberships.push_back(membership);
  }
  until_done([&] {
    for (const Verdict& verdict : remembered) {
      if (verdict.fails(membership->id)) membership->fail_by(verdict);
      if (verdict.is_loss())
        membership->peers_lost({verdict.culprits.begin(), verdict.culprits.end()}, verdict.text);
    }
    membership->peers_lost(all_lost, {});
    membership->adopt_missed();
  });
}

}  // namespace tutti::control
