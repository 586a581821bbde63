// Made-up groups for the judges: facts without a board, a thread or a clock.
#pragma once

#include <initializer_list>
#include <numeric>
#include <vector>

#include "control/judge/agree.h"
#include "control/judge/decider.h"
#include "control/judge/look.h"
#include "control/judge/meeting.h"
#include "control/judge/standing.h"

namespace tutti::control {

using namespace std::chrono_literals;

/// The moment at which all waits of a scene begin.
inline constexpr Clock::time_point kStart{1000s};

/// The operation `seq` of a program whose operations are all the same; `other`: of another one.
inline Shown operation(std::uint64_t seq, std::uint64_t other = 0) {
  Shown shown;
  shown.seq = seq;
  shown.chain = seq * 1000 + other;
  shown.count = 10 + other;
  shown.op = static_cast<std::uint8_t>(Op::all_reduce);
  return shown;
}

inline Request collective_at(std::uint64_t seq) {
  Request request;
  request.op = Op::all_reduce;
  request.seq = seq;
  request.chain = operation(seq).chain;
  request.arrive = Deadline::after(10s);
  request.stall = Deadline::after(5s);
  return request;
}

inline Request message_of(Op op, int peer) {
  Request request;
  request.op = op;
  request.message.peer = peer;
  request.arrive = Deadline::after(10s);
  request.stall = Deadline::after(5s);
  return request;
}

/// A group whose members have all made it and done nothing yet.
class Scene {
 public:
  explicit Scene(int size, int rank = 0) {
    facts.rank = rank;
    facts.members.resize(static_cast<std::size_t>(size));
    for (MemberFacts& member : facts.members) member.line.emplace();
  }

  LineFacts& line(int member) { return *of(member).line; }
  MemberFacts& of(int member) { return facts.members[static_cast<std::size_t>(member)]; }

  /// `member` enters what comes next, up to `seq`, and has ended all but the last.
  Scene& enters(int member, std::uint64_t seq, std::uint64_t other = 0) {
    LineFacts& theirs = line(member);
    while (theirs.entered < seq) {
      const std::uint64_t next = theirs.entered + 1;
      theirs.history[next % kHistory] = operation(next, next == seq ? other : past_);
      theirs.completed = theirs.entered;
      theirs.entered = next;
    }
    return *this;
  }
  Scene& all_enter(std::uint64_t seq) {
    for (int member = 0; member < facts.size(); ++member) enters(member, seq);
    return *this;
  }
  Scene& ends(int member) {
    line(member).completed = line(member).entered;
    return *this;
  }
  /// `member` says goodbye after what it has entered.
  Scene& leaves(int member, LineState state = LineState::closing) {
    LineFacts& theirs = ends(member).line(member);
    theirs.goodbye_seq = theirs.entered;
    const KnownCall* const last = shown_at(theirs, theirs.entered);
    theirs.goodbye_chain = last != nullptr ? last->chain : 0;
    theirs.state = state;
    return *this;
  }
  Scene& absent(int member) {
    of(member).line.reset();
    return *this;
  }
  Scene& fails(int member, ErrorCode code, std::vector<int> culprits, std::string text) {
    line(member).failure = FailureFacts{code, std::move(culprits), std::move(text)};
    return *this;
  }
  /// What the members do before the last operation is of another program from now on.
  Scene& with_past(std::uint64_t other) {
    past_ = other;
    return *this;
  }

  GroupFacts facts;

 private:
  std::uint64_t past_ = 0;
};

/// One wait, looked at `waited` after it began.
struct Wait {
  explicit Wait(const Request& of, int member = -1) : request(of), awaited(member) {
    clock.begin(request, kStart, 30s);
  }
  Look look_after(std::chrono::nanoseconds waited, const Scene& scene) {
    return look(request, awaited, scene.facts, clock, arrive, kStart + waited);
  }

  Request request;
  int awaited;
  WaitClock clock;
  ArriveClock arrive;
};

inline std::vector<int> range(int first, int last) {
  std::vector<int> ranks(static_cast<std::size_t>(std::max(0, last - first)));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

/// The finding, if it is of that kind.
template <class Kind>
const Kind* as(const std::optional<Finding>& finding) {
  return finding ? std::get_if<Kind>(&finding->what) : nullptr;
}

}  // namespace tutti::control
