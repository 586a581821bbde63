#include "control/untold.h"

#include <algorithm>
#include <utility>

#include "base/memory_reserve.h"
#include "control/board/notice.h"
#include "control/process.h"

namespace tutti::control {

void Untold::forget() noexcept {
  const std::lock_guard lock(mutex_);
  failures_.clear();
  told_.clear();
  board_.reset();
  shown_.reset();
}

void Untold::show_on(const net::Fd& board, SlotIndex slot) {
  Board shown(board);
  if (slot.value < 0 || slot.value >= shown.slot_count()) return;
  const std::lock_guard lock(mutex_);
  board_ = std::move(shown);
  shown_.reset();
  slot_ = slot;
  show();
}

namespace {

/// How many failures that were told are kept, to know those that tell the same later on.
constexpr std::size_t kTold = 64;

/// Whether who was told of `told` knows of `other` as well: the same ranks' loss, or the same
/// circle.
bool tells_of(const Untold::Failure& told, const Untold::Failure& other) noexcept {
  if (told.world != other.world || told.of != other.of || told.code != other.code) return false;
  if (told.code == ErrorCode::kDeadlock) return told.text == other.text;
  return told.code == ErrorCode::kPeerLost && !other.culprits.empty() &&
         std::all_of(other.culprits.begin(), other.culprits.end(), [&](WorldRank culprit) {
           return std::find(told.culprits.begin(), told.culprits.end(), culprit) !=
                  told.culprits.end();
         });
}

}  // namespace

void Untold::add(Failure failure) {
  const std::lock_guard lock(mutex_);
  const bool is_known = std::any_of(told_.begin(), told_.end(),
                                    [&](const Failure& told) { return tells_of(told, failure); });
  const bool is_there = std::any_of(failures_.begin(), failures_.end(), [&](const Failure& other) {
    return !other.is_told && other.world == failure.world && other.group == failure.group &&
           other.rank == failure.rank;
  });
  if (is_known || is_there) return;
  failures_.push_back(std::move(failure));
  show();
}

void Untold::keep(GroupId group, int rank) noexcept {
  const std::lock_guard lock(mutex_);
  for (Failure& failure : failures_)
    if (failure.group == group && failure.rank == rank) failure.for_ever = true;
}

void Untold::told(GroupId group, int rank, ErrorCode code) noexcept {
  if (Process::forked()) return;  // what a child hears its parent has not heard
  const std::lock_guard lock(mutex_);
  // The latest: a world that has ended may have had the same name, and what stays for ever is told.
  const auto found =
      std::find_if(failures_.rbegin(), failures_.rend(), [&](const Failure& failure) {
        return failure.group == group && failure.rank == rank && failure.code == code &&
               !failure.is_told;
      });
  if (found == failures_.rend()) return;
  if (!with_reserve([&] { told_.push_back(*found); })) return;
  found->is_told = true;
  if (told_.size() > kTold) told_.erase(told_.begin());
  for (Failure& failure : failures_)
    if (tells_of(told_.back(), failure)) failure.is_told = true;
  std::erase_if(failures_,
                [](const Failure& failure) { return failure.is_told && !failure.for_ever; });
  show();
}

std::optional<Untold::Failure> Untold::last_told(std::uint64_t world, WorldRank of) {
  if (Process::forked()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto last = std::find_if(told_.rbegin(), told_.rend(), [&](const Failure& told) {
    const auto& culprits = told.culprits;
    const bool is_own = std::find(culprits.begin(), culprits.end(), of) != culprits.end();
    return told.world == world && told.of == of && !is_own && !told.is_outlived;
  });
  return last != told_.rend() ? std::optional(*last) : std::nullopt;
}

void Untold::outlive(std::uint64_t world, WorldRank of) noexcept {
  const std::lock_guard lock(mutex_);
  for (Failure& told : told_)
    if (told.world == world && told.of == of) told.is_outlived = true;
}

bool Untold::is_untold(std::uint64_t world, GroupId group, int rank) noexcept {
  if (Process::forked()) return false;
  const std::lock_guard lock(mutex_);
  return std::any_of(failures_.begin(), failures_.end(), [&](const Failure& failure) {
    return failure.world == world && failure.group == group && failure.rank == rank &&
           !failure.is_told;
  });
}

void Untold::show() noexcept {
  if (board_) with_reserve([this] { show_first(); });
}

void Untold::show_first() {
  if (failures_.empty()) {
    shown_.reset();
    return write_untold(*board_, slot_, {});
  }
  const auto untold = std::find_if(failures_.begin(), failures_.end(),
                                   [](const Failure& failure) { return !failure.is_told; });
  const Failure& first = untold != failures_.end() ? *untold : failures_.front();
  // The process may end at any time: what stands there is not taken away for a moment.
  if (shown_ == first) return;
  const bool is_of_job = first.world_size == board_->world_size();
  write_untold(*board_, slot_,
               UntoldFailure{.code = first.code,
                             .culprits = is_of_job ? first.culprits : std::vector<WorldRank>(),
                             .text = first.text,
                             .is_told = first.is_told});
  shown_ = first;
}

}  // namespace tutti::control
