// Whether the ranks of a group have done the same: comparing histories while they run, and goodbyes
// when they leave. A *side* is the set of members that have the same chain at one seq.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "control/host_state.h"
#include "control/words.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

/// Those members that have the same chain at a seq.
struct Side {
  std::uint64_t chain;
  std::vector<int> members;
  std::string what;
  std::optional<Shown> description = {};
  std::string purpose = {};

  /// The same operation, called on top of different pasts.
  bool same_as(const Side& other) const {
    return description && other.description && purpose == other.purpose &&
           describe(*description) == describe(*other.description);
  }
};

/// The chain that the owner of `line` had after the operation `seq`, if that can still be read.
std::optional<std::uint64_t> chain_at(const Line& line, std::uint64_t seq) noexcept {
  const auto entry = line.history[seq % kHistory].read();
  if (entry && entry->seq == seq) return entry->chain;
  if (line.goodbye_seq.load() == seq && has_left(line.state.load()))
    return line.goodbye_chain.load();
  return std::nullopt;
}

/// In what operations that look alike differ.
std::string_view hidden_difference(const Side& side) noexcept {
  const std::uint8_t op = side.description ? side.description->op : 0;
  if ((op & kUnevenBit) != 0) return "their counts differ";
  if (op_index(op) == static_cast<std::size_t>(Op::all_reduce))
    return "they differ in the buffers of a list";
  return {};
}

}  // namespace

bool Membership::State::find_mismatch(std::uint64_t seq, int peer,
                                      const Description* seen) noexcept {
  std::vector<Side> sides;
  for (int member = 0; member < size(); ++member) {
    const Line* theirs = line_of(member);
    if (theirs == nullptr) continue;
    std::optional<Shown> there = theirs->history[seq % kHistory].read();
    if (there && there->seq != seq) there.reset();
    if (!there && member == peer && seen != nullptr && seen->seq == seq) there = Shown{*seen};
    std::uint64_t chain = 0;
    if (there) {
      chain = there->chain;
    } else if (has_left(theirs->state.load(std::memory_order_acquire)) &&
               theirs->goodbye_seq.load(std::memory_order_acquire) == seq) {
      chain = theirs->goodbye_chain.load(std::memory_order_acquire);
    } else {
      continue;
    }
    auto side =
        std::find_if(sides.begin(), sides.end(), [&](const Side& s) { return s.chain == chain; });
    if (side == sides.end()) side = sides.insert(sides.end(), Side{chain, {}, {}});
    side->members.push_back(member);
    if (!side->description && there) {
      side->description = there;
      side->what = describe(slot_of(member), *there);
      side->purpose = describe_purpose(slot_of(member), *there);
    }
  }
  if (sides.size() < 2) return false;

  Cause cause;
  cause.code = ErrorCode::kCollectiveMismatch;
  cause.text = fmt::format("the ranks{} disagree about operation #{}", of_group(), seq);
  bool all_equal = true;
  std::size_t most = 0, with_most = 0;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    Side& side = sides[i];
    if (side.what.empty()) side.what = "an operation that the board no longer shows";
    cause.text +=
        fmt::format("{} {} called {}", i == 0 ? ":" : ";", ranks_text(side.members), side.what);
    all_equal = all_equal && side.same_as(sides[0]);
    if (side.members.size() > most) with_most = 0;
    most = std::max(most, side.members.size());
    if (side.members.size() == most) ++with_most;
  }
  // The smaller sides; of equals nobody can say which of them is wrong.
  for (const Side& side : sides)
    if (side.members.size() < most || with_most > 1)
      cause.culprits.insert(cause.culprits.end(), side.members.begin(), side.members.end());
  std::sort(cause.culprits.begin(), cause.culprits.end());
  if (all_equal) {
    const bool same_past = std::all_of(sides.begin(), sides.end(), [&](const Side& side) {
      return seq == 1 || !differ(seq - 1, side.members[0], sides[0].members[0]).value_or(true);
    });
    const std::string_view here = hidden_difference(sides[0]);
    const std::string before = fmt::format("they differ in an operation before #{}", seq);
    cause.text += here.empty() ? fmt::format(" ({})", before)
                  : same_past  ? fmt::format(" ({})", here)
                               : fmt::format(" ({}, or {})", here, before);
  }
  cause.text += ". Every rank must call the same operations in the same order";
  fail(std::move(cause), Tell::everybody);
  return true;
}

bool Membership::State::find_mismatch() noexcept {
  const std::uint64_t entered = line.entered.load(std::memory_order_relaxed);
  const std::uint64_t first = entered >= kHistory ? entered - kHistory + 1 : 1;
  for (std::uint64_t seq = first; seq <= entered; ++seq)
    if (find_mismatch(seq, -1, nullptr)) return true;
  return false;
}
void Membership::fail_mismatch(const Request& own, int peer, const Description* seen) noexcept {
  if (state_->adopt_failure()) return;  // whoever comes after it takes its cause
  if (state_->find_mismatch() || state_->find_mismatch(own.seq, peer, seen)) return;
  Cause cause;
  cause.code = ErrorCode::kCollectiveMismatch;
  cause.culprits = {std::min(state_->rank, peer), std::max(state_->rank, peer)};
  cause.text = fmt::format(
      "the ranks{} disagree about operation #{}: rank {} called {}; rank {} called {}. Every rank "
      "must call the same operations in the same order",
      state_->of_group(), own.seq, state_->rank,
      describe(state_->host->own.slot(), shown_of(own, state_->host->own.site(own.where))), peer,
      seen != nullptr ? describe(state_->slot_of(peer), Shown{*seen})
                      : std::string("another one, earlier"));
  fail(std::move(cause));
}

std::string Membership::State::call_of(int member, const Request& request) const {
  const Line* theirs = member == rank ? &line : line_of(member);
  const auto shown =
      theirs != nullptr ? theirs->history[request.seq % kHistory].read() : std::optional<Shown>();
  const bool is_known =
      shown && shown->seq == request.seq && shown->site != 0 && shown->site < kSites;
  return fmt::format("{} #{}{}", call_name(request), request.seq,
                     is_known ? " at " + slot_of(member).sites[shown->site].read() : "");
}

void Membership::fail_counts(const Request& request, int from, std::uint64_t sent, int to,
                             std::uint64_t awaited) noexcept {
  fail({.code = ErrorCode::kCollectiveMismatch,
        .text = fmt::format(
            "rank {}'s {} sends {} elements to rank {}, whose {} has a count of {} for them. The "
            "counts of both ends must agree",
            from, state_->call_of(from, request), sent, to, state_->call_of(to, request), awaited),
        .culprits = {from},
        .host = {}});
}

/// Waits for the goodbyes of all; compares each as soon as it is there.
class Membership::State::Farewell final : public Patience {
 public:
  Farewell(State& state, Deadline deadline) : state_(state), deadline_(deadline) {}
  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    if (state_.adopt_failure() || compare()) {
      *next = now + kLongestBackoff;
      return Verdict::keep_waiting;
    }
    if (deadline_.expired(now)) return Verdict::give_up;
    *next = std::min(after(now, deadline_.left(now)), now + std::chrono::milliseconds(20));
    return Verdict::keep_waiting;
  }
  bool all_have_left() const noexcept {
    for (int member = 0; member < state_.size(); ++member)
      if (!has_left(member)) return false;
    return true;
  }
  bool has_left(int member) const noexcept {
    const Line* theirs = state_.line_of(member);
    // All have had a line since they met: the owner of one that is gone has made room for another.
    return theirs == nullptr || control::has_left(theirs->state.load(std::memory_order_acquire));
  }
  /// True: a disagreement was found, or a failure that explains it; the group has failed.
  bool compare() {
    const std::uint64_t own_seq = state_.line.goodbye_seq.load();
    for (int member = 0; member < state_.size(); ++member) {
      const Line* theirs = state_.line_of(member);
      if (member == state_.rank || theirs == nullptr || !has_left(member)) continue;
      const std::uint64_t seq = theirs->goodbye_seq.load();
      const bool same_chain = theirs->goodbye_chain.load() == state_.line.goodbye_chain.load();
      if (seq == own_seq && (same_chain || seq == 0)) continue;
      for (std::uint64_t s = std::min(seq, own_seq); s > 0 && s + kHistory > std::min(seq, own_seq);
           --s)
        if (state_.differ(s, member, state_.rank).value_or(false)) first_different_ = s;
      if (first_different_ != 0) return state_.find_mismatch(first_different_, -1, nullptr);
      return fail_count(member, seq, own_seq);
    }
    return false;
  }

 private:
  /// One side has done more operations than the other.
  bool fail_count(int member, std::uint64_t seq, std::uint64_t own_seq) {
    const int more = seq > own_seq ? member : state_.rank;
    const int fewer = seq > own_seq ? state_.rank : member;
    const std::uint64_t extra = std::min(seq, own_seq) + 1;
    const auto entry = state_.line_of(more)->history[extra % kHistory].read();
    Cause cause;
    cause.code = ErrorCode::kCollectiveMismatch;
    cause.culprits = {fewer};
    cause.text = fmt::format(
        "the ranks did not call the same number of collectives: {}. Rank {} left without #{}{}. "
        "Every rank must call the same operations in the same order",
        state_.calls_text(), fewer, extra,
        entry && entry->seq == extra
            ? fmt::format(", on rank {} {}", more, describe(state_.slot_of(more), *entry))
            : "");
    state_.fail(std::move(cause), Tell::everybody);
    return true;
  }

  State& state_;
  Deadline deadline_;
  std::uint64_t first_different_ = 0;
};

std::string Membership::State::calls_text() const {
  std::map<std::uint64_t, std::vector<int>, std::greater<>> by_count;
  for (int member = 0; member < size(); ++member) {
    const Line* theirs = member == rank ? &line : line_of(member);
    by_count[theirs != nullptr ? std::max(theirs->entered.load(), theirs->goodbye_seq.load()) : 0]
        .push_back(member);
  }
  std::string text;
  for (const auto& [count, members] : by_count)
    text += fmt::format("{}{} by {}", text.empty() ? "" : ", ", count, ranks_text(members));
  return text;
}

std::optional<bool> Membership::State::differ(std::uint64_t seq, int one,
                                              int other) const noexcept {
  const auto chain_of = [&](int member) {
    const Line* const their_line = line_of(member);
    return their_line != nullptr ? chain_at(*their_line, seq) : std::nullopt;
  };
  const auto one_chain = chain_of(one), other_chain = chain_of(other);
  if (!one_chain || !other_chain) return std::nullopt;
  return *one_chain != *other_chain;
}

void Membership::close(std::uint64_t last_seq, std::uint64_t chain, Deadline deadline,
                       const Where& where) {
  State& state = *state_;
  if (state.abort_word.load() != kRunning) throw state.make_error(nullptr);
  const std::string site = name_of(where);
  state.host->own.publish_purpose(closing_key(state.id),
                                  site.empty() ? "the destructor" : "close at " + site);
  state.line.goodbye_seq.store(last_seq);
  state.line.goodbye_chain.store(chain);
  state.line.state.store(LineState::closing);
  notify_all();

  State::Farewell farewell(state, deadline);
  const WaitResult result = wait(state.waiter, farewell, [&] { return farewell.all_have_left(); });
  state.line.state.store(result == WaitResult::gave_up ? LineState::gave_up : LineState::closed);
  // What these two return counts, not the abort word alone: the control thread may be about to set
  // it.
  const bool failed = result == WaitResult::ready && (state.adopt_failure() || farewell.compare());
  if (failed || state.abort_word.load() != kRunning) throw state.make_error(nullptr);
  if (result == WaitResult::ready) return;

  ErrorContext context{.op = "close", .rank = state.rank, .call_site = site};
  std::string text;
  for (int member = 0; member < state.size(); ++member) {
    if (farewell.has_left(member)) continue;
    context.culprits.push_back(member);
    text += fmt::format("; {} {}", state.person(member), state.doing(member));
  }
  context.host = state.host->host_name;
  throw Error(
      ErrorCode::kTimeout,
      fmt::format("{}: {} not left after {}{}", heading(context, state.name),
                  ranks_text(context.culprits) + (context.culprits.size() == 1 ? " has" : " have"),
                  budget_text(deadline), text),
      context);
}

}  // namespace tutti::control
