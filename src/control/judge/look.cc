#include "control/judge/look.h"

#include <algorithm>
#include <utility>

#include "control/judge/agree.h"
#include "control/judge/standing.h"

namespace tutti::control {

void WaitClock::begin(const Request& request, Clock::time_point now,
                      std::chrono::nanoseconds first_line_after) noexcept {
  if (began != Clock::time_point{}) return;
  began = now;
  arrive = request.arrive;
  stall = request.stall;
  next_line = after(now, first_line_after);
}

Clock::time_point WaitClock::back_off(Clock::time_point now) noexcept {
  const Clock::time_point next = now + backoff;
  backoff = std::min(backoff * 2, kLongestBackoff);
  return next;
}

namespace {

/// A wait that has lasted so long asks other hosts what their ranks do. Whoever is lost, has failed
/// or leaves is told unasked, and an operation of some megabytes over TCP ends before.
constexpr std::chrono::milliseconds kAsksAfter{50};
/// How long it is worth to learn from other hosts how many collectives their ranks have called.
constexpr std::chrono::milliseconds kCountsCome{250};

class Judge {
 public:
  Judge(const Request& request, int awaited, const GroupFacts& facts, WaitClock& clock,
        ArriveClock& arrive, Clock::time_point now) noexcept
      : request_(request),
        awaited_(awaited),
        facts_(facts),
        clock_(clock),
        arrive_(arrive),
        now_(now) {
    look_.next = clock_.back_off(now);
  }

  Look collective() && {
    look_.finding = find_disagreement(facts_);
    if (look_.finding || left()) return std::move(look_);
    const std::vector<int> missing = find_missing();
    if (missing.empty()) {
      stalled(awaited_);
    } else {
      late(missing);
    }
    return std::move(look_);
  }

  Look message() && {
    if (left()) return std::move(look_);
    if (clock_.matched) {
      stalled(awaited_);
      return std::move(look_);
    }
    if (clock_.arrive.expired(now_)) {
      look_.verdict = Patience::Verdict::give_up;
      return std::move(look_);
    }
    until(clock_.arrive);
    const int peer = request_.message.peer;
    say_who_is_awaited(peer != kAnyRank ? std::vector<int>{peer} : others());
    return std::move(look_);
  }

 private:
  /// Whether somebody who is needed has left in order. Twice seen, since the data that a member
  /// left behind may have come between the wait's last look at them and this one.
  bool left() {
    const int member = find_left();
    if (member < 0) return clock_.peer_left = false;
    if (!std::exchange(clock_.peer_left, true)) {
      look_.next = now_ + std::chrono::milliseconds(1);
      return true;
    }
    if (is_message(request_.op)) {
      const bool is_any = awaited_ < 0;
      look_.finding = {ErrorCode::kClosed, is_any ? others() : std::vector<int>{member},
                       LeftUnmatched{is_any ? -1 : member}};
    } else if (!are_old(those_still_in(), kCountsCome)) {
      look_.finding = {ErrorCode::kClosed,
                       {member},
                       LeftEarly{member, last_of(member), calls_of(facts_, clock_.due)}};
    }
    return true;
  }

  /// Whether nothing comes from a member any more. While it says goodbye it goes on sending what it
  /// has buffered.
  bool has_gone(int member) const noexcept {
    const bool is_closing = facts_.does(member).state == LineState::closing;
    const bool may_send = is_closing && (clock_.matched || clock_.more_comes);
    return facts_.has_gone(member) && !clock_.in_flight && !may_send;
  }

  int find_left() const {
    // A message from any rank comes from any that is still there.
    if (is_message(request_.op) && awaited_ == kAnyRank) {
      const std::vector<int> members = others();
      if (std::any_of(members.begin(), members.end(), [&](int other) { return !has_gone(other); }))
        return -1;
    }
    for (int member = 0; member < facts_.size(); ++member) {
      if (member == facts_.rank || (awaited_ >= 0 && member != awaited_)) continue;
      const bool has_done = request_.seq != 0 && last_of(member) >= request_.seq;
      if (has_gone(member) && !has_done) return member;
    }
    return -1;
  }

  std::uint64_t last_of(int member) const noexcept { return facts_.does(member).goodbye_seq; }

  std::vector<int> those_still_in() const {
    std::vector<int> members = others();
    std::erase_if(members, [&](int member) { return facts_.has_gone(member); });
    return members;
  }

  std::vector<int> others() const {
    std::vector<int> members;
    for (int member = 0; member < facts_.size(); ++member)
      if (member != facts_.rank) members.push_back(member);
    return members;
  }

  /// Members that have not entered: those furthest behind, for whom the others may wait, or all.
  std::vector<int> find_missing() const {
    std::vector<int> missing;
    std::uint64_t least = request_.seq;
    for (int member = 0; member < facts_.size(); ++member) {
      const std::uint64_t entered = facts_.entered(member);
      if (member == facts_.rank || entered >= request_.seq) continue;
      if (!request_.names_all) {
        if (entered > least) continue;
        if (entered < least) missing.clear();
        least = entered;
      }
      missing.push_back(member);
    }
    return missing;
  }

  void late(const std::vector<int>& missing) {
    if (arrive_.seq != request_.seq) arrive_ = {request_.seq, request_.arrive};
    arrive_.left.start(clock_.began);
    if (arrive_.left.expired(now_)) {
      if (are_old(missing, kAnswerComes)) return;
      look_.finding = {ErrorCode::kTimeout, missing, NotEntered{arrive_.left}, look_.ask};
      return;
    }
    clock_.due = Clock::time_point::max();
    clock_.stall = request_.stall;  // counts from when all are in
    until(arrive_.left);
    ask(missing);
    say_who_is_awaited(missing);
  }

  void stalled(int only) {
    std::uint64_t progress = 0;
    for (int member = 0; member < facts_.size(); ++member) progress += facts_.does(member).progress;
    if (progress != clock_.progress_seen) {
      clock_.progress_seen = progress;
      clock_.stall = request_.stall;
    }
    if (!clock_.stall.expired(now_)) {
      clock_.due = Clock::time_point::max();
      until(clock_.stall);
      ask(others());
      return;
    }
    if (are_old(others(), kAnswerComes)) return;
    look_.finding = stalled_in(request_, only, facts_);
    look_.finding->silent = look_.ask;
  }

  void ask(std::vector<int> members) {
    if (now_ >= clock_.began + kAsksAfter) look_.ask = std::move(members);
  }

  /// Whether what `members` have not done may only be old news: they were not asked since it
  /// counts, and may answer within `most`.
  bool are_old(const std::vector<int>& members, std::chrono::nanoseconds most) {
    clock_.due = std::min(clock_.due, now_);
    look_.ask = asked_before(clock_.due, members, facts_);
    return !look_.ask.empty() && now_ < clock_.due + most;
  }

  void say_who_is_awaited(std::vector<int> members) {
    if (now_ >= clock_.next_line) {
      look_.awaited = std::move(members);
      clock_.next_line = after(now_, now_ - clock_.began);
    }
    look_.next = std::min(look_.next, clock_.next_line);
  }

  void until(Deadline& deadline) {
    look_.next = std::min(look_.next, after(now_, deadline.left(now_)));
  }

  const Request& request_;
  const int awaited_;
  const GroupFacts& facts_;
  WaitClock& clock_;
  ArriveClock& arrive_;
  const Clock::time_point now_;
  Look look_;
};

}  // namespace

Look look(const Request& request, int awaited, const GroupFacts& facts, WaitClock& clock,
          ArriveClock& arrive, Clock::time_point now) {
  Judge judge(request, awaited, facts, clock, arrive, now);
  return is_message(request.op) ? std::move(judge).message() : std::move(judge).collective();
}

Finding stalled_in(const Request& request, int only, const GroupFacts& facts) {
  Finding finding{ErrorCode::kTimeout, {}, Stalled{request.stall}};
  for (int member = 0; member < facts.size(); ++member) {
    const bool has_ended = facts.does(member).completed >= request.seq;
    if (member == facts.rank || (only >= 0 ? member != only : has_ended)) continue;
    finding.culprits.push_back(member);
  }
  return finding;
}

}  // namespace tutti::control
