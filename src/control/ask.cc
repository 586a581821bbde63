// What a wait asks the board once it has become long: has the group failed, do the ranks disagree,
// has somebody left, who is missing, does anything move. The order of the questions is the order of
// blame.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/host_state.h"
#include "control/words.h"
#include "tutti/error.h"

namespace tutti::control {

using std::chrono::nanoseconds;

/// One look of a wait that has become long; the order of its questions is the order of blame.
class Membership::State::Look {
 public:
  Look(State& state, const Request& request, int awaited, WaitClock& clock, Clock::time_point now)
      : state_(state), request_(request), awaited_(awaited), clock_(clock), now_(now) {
    if (clock_.began == Clock::time_point{}) {
      clock_.began = now;
      clock_.arrive = request.arrive;
      clock_.stall = request.stall;
      clock_.next_line = after(now, state.host->first_line_after);
    }
    next_ = now + clock_.backoff;
    clock_.backoff = std::min(clock_.backoff * 2, kLongestBackoff);
  }

  Patience::Verdict run() {
    publish();
    if (state_.adopt_failure()) return Patience::Verdict::keep_waiting;
    return is_message(request_.op) ? message() : collective();
  }
  Clock::time_point next() const noexcept { return next_; }

 private:
  /// Says on the board who is awaited.
  void publish() noexcept {
    if (request_.seq == 0) return;
    state_.line.since.store(clock_.began.time_since_epoch().count(), std::memory_order_relaxed);
    const Awaited awaited = {
        static_cast<std::uint32_t>(request_.seq), awaited_,
        awaited_ < 0 ? 0 : state_.world_ranks[static_cast<std::size_t>(awaited_)]};
    state_.line.waiting.store(awaited.pack(), std::memory_order_release);
  }

  Patience::Verdict collective() {
    if (state_.find_mismatch() || left()) return Patience::Verdict::keep_waiting;
    find_missing();
    if (!missing_.empty()) {
      late();
    } else {
      stalled(/*message_peer=*/-1);
    }
    return Patience::Verdict::keep_waiting;
  }

  Patience::Verdict message() {
    if (left()) return Patience::Verdict::keep_waiting;
    if (clock_.matched) {
      stalled(awaited_);
      return Patience::Verdict::keep_waiting;
    }
    if (clock_.arrive.expired(now_)) return Patience::Verdict::give_up;
    const int peer = request_.message.peer;
    until(clock_.arrive);
    if (now_ >= clock_.next_line) {
      say_who_is_awaited(peer != kAnyRank ? std::vector<int>{peer} : others());
    }
    next_ = std::min(next_, clock_.next_line);
    return Patience::Verdict::keep_waiting;
  }

  /// Whether somebody who is needed has left in order. Twice seen, since what he left behind may
  /// have come between the wait's last look at the data and this one.
  bool left() {
    // A message from any rank comes from whoever is still there.
    if (is_message(request_.op) && awaited_ == kAnyRank) {
      const std::vector<int> members = others();
      if (std::any_of(members.begin(), members.end(), [this](int other) { return is_open(other); }))
        return false;
    }
    for (int member = 0; member < state_.size(); ++member) {
      if (member == state_.rank || (awaited_ >= 0 && member != awaited_)) continue;
      if (is_open(member)) continue;
      const Line* theirs = state_.line_of(member);
      const std::uint64_t last = theirs != nullptr ? theirs->goodbye_seq.load() : 0;
      if (request_.seq != 0 && last >= request_.seq) continue;
      if (!std::exchange(clock_.peer_left, true)) {
        next_ = now_ + std::chrono::milliseconds(1);
        return true;
      }
      Cause cause;
      cause.code = ErrorCode::kClosed;
      cause.culprits = {member};
      cause.text = is_message(request_.op) ? left_unmatched(member) : left_early(member, last);
      state_.fail(std::move(cause), Tell::everybody);
      return true;
    }
    return false;
  }

  std::string left_early(int member, std::uint64_t last) const {
    return fmt::format(
        "{} left the group {}, while rank {} is in {}. Collectives called so far: {}. Every rank "
        "must call the same operations before it leaves",
        state_.person(member),
        last == 0 ? "before its first collective" : "after " + times_text(last, "collective"),
        state_.rank, state_.in_words(request_), state_.calls_text());
  }

  std::string left_unmatched(int member) const {
    return fmt::format(
        "{} left the group, while {} was unmatched. {} before any rank closes, or take it "
        "back with Work::cancel",
        awaited_ == kAnyRank ? "every other rank" : state_.person(member), state_.own(request_),
        request_.op == Op::send ? "Receive it" : "Send what it waits for");
  }

  bool is_open(int member) const noexcept {
    const Line* theirs = state_.line_of(member);
    return theirs != nullptr ? !has_left(theirs->state.load(std::memory_order_acquire))
                             : !control::has_left(state_.slot_of(member));
  }

  std::vector<int> others() const {
    std::vector<int> members;
    for (int member = 0; member < state_.size(); ++member)
      if (member != state_.rank) members.push_back(member);
    return members;
  }

  /// Members that have not entered: those furthest behind, for whom the others may wait, or all.
  void find_missing() {
    least_ = request_.seq;
    for (int member = 0; member < state_.size(); ++member) {
      if (member == state_.rank) continue;
      const Line* theirs = state_.line_of(member);
      const std::uint64_t entered =
          theirs != nullptr ? theirs->entered.load(std::memory_order_acquire) : 0;
      if (entered >= request_.seq) continue;
      if (!request_.names_all) {
        if (entered > least_) continue;
        if (entered < least_) missing_.clear();
        least_ = entered;
      }
      missing_.push_back(member);
    }
  }

  void late() {
    Deadline left_to_arrive;
    {
      // The clock belongs to the operation, which may wait several times.
      const std::lock_guard lock(state_.mutex);
      if (state_.arrive_seq != request_.seq) {
        state_.arrive_seq = request_.seq;
        state_.arrive = request_.arrive;
      }
      state_.arrive.start(clock_.began);
      left_to_arrive = state_.arrive;
    }
    if (left_to_arrive.expired(now_)) {
      std::string text;
      for (const int member : missing_)
        text += fmt::format("{}{} had not entered; it {}", text.empty() ? "" : "; ",
                            state_.person(member), state_.doing(member));
      fail_timeout(missing_,
                   fmt::format("after {} in {}: {}. If it is only slow, give a longer timeout",
                               budget_text(left_to_arrive), state_.own(request_), text));
      return;
    }
    clock_.stall = request_.stall;  // counts from when all are in
    until(left_to_arrive);
    say_who_is_awaited(missing_);
  }

  void stalled(int message_peer) {
    std::uint64_t progress = 0;
    for (int member = 0; member < state_.size(); ++member)
      if (const Line* theirs = state_.line_of(member))
        progress += theirs->progress.load(std::memory_order_relaxed);
    if (progress != clock_.progress_seen) {
      clock_.progress_seen = progress;
      clock_.stall = request_.stall;
    }
    if (!clock_.stall.expired(now_)) {
      until(clock_.stall);
      return;
    }
    state_.fail_stalled(request_, message_peer >= 0 ? message_peer : awaited_);
  }

  void fail_timeout(std::vector<int> culprits, std::string text) {
    Cause cause;
    cause.code = ErrorCode::kTimeout;
    cause.culprits = std::move(culprits);
    cause.text = std::move(text);
    state_.fail(std::move(cause), Tell::everybody);
  }

  void say_who_is_awaited(const std::vector<int>& awaited) {
    if (now_ >= clock_.next_line) {
      const nanoseconds waited = now_ - clock_.began;
      std::string text;
      for (const int member : awaited)
        text += fmt::format("{}{}, which {}", text.empty() ? "" : "; ", state_.person(member),
                            state_.doing(member));
      log(LogLevel::warn,
          fmt::format("{}: waiting {} for {}", state_.heading_of(request_), seconds(waited), text));
      clock_.next_line = after(now_, waited);
    }
    next_ = std::min(next_, clock_.next_line);
  }

  void until(Deadline& deadline) { next_ = std::min(next_, after(now_, deadline.left(now_))); }

  State& state_;
  const Request& request_;
  const int awaited_;
  WaitClock& clock_;
  const Clock::time_point now_;
  Clock::time_point next_;
  std::vector<int> missing_;
  std::uint64_t least_ = 0;
};

void Membership::State::fail_stalled(const Request& request, int only) noexcept {
  Cause cause;
  cause.code = ErrorCode::kTimeout;
  cause.text = fmt::format("no byte has moved for {} (setting stall_timeout) in {}",
                           budget_text(request.stall), own(request));
  for (int member = 0; member < size(); ++member) {
    const Line* theirs = line_of(member);
    const bool ended = theirs != nullptr && theirs->completed.load() >= request.seq;
    if (member == rank || (only >= 0 ? member != only : ended)) continue;
    cause.culprits.push_back(member);
    cause.text += fmt::format("; {} {}", person(member), doing(member));
  }
  fail(std::move(cause), Tell::everybody);
}

void Membership::fail_stalled(const Request& request) noexcept {
  if (state_->adopt_failure()) return;  // whoever comes after it takes its cause
  state_->fail_stalled(request, is_message(request.op) ? request.message.peer : -1);
}

Patience::Verdict Membership::ask(const Request& request, int awaited, WaitClock& clock,
                                  Clock::time_point now, Clock::time_point* next) {
  if (state_->abort_word.load() != kRunning) {
    *next = now + kLongestBackoff;
    return Patience::Verdict::keep_waiting;
  }
  State::Look look(*state_, request, awaited, clock, now);
  const Patience::Verdict verdict = look.run();
  *next = look.next();
  return verdict;
}

}  // namespace tutti::control
