// Links between hosts, and connections over them: in order and without loss as long as they last.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <vector>

#include "control/vote/vote.h"

namespace tutti::simulate::votes {

using control::Clock;
using Time = Clock::time_point;

/// A process of a host.
struct End {
  int host = 0, process = 0;
  bool operator==(const End&) const = default;
};

struct Connection {
  std::array<End, 2> ends;
  std::array<std::deque<std::pair<Time, std::optional<control::VoteFrame>>>, 2>
      flying;                     ///< to an end; none: EOF
  std::array<bool, 2> shut = {};  ///< that end has gone: nothing more comes from it
  bool broken = false;            ///< what is still flying is lost
};

/// What lies between two hosts. A direction may be blocked; without both there is no ACK.
class Links {
 public:
  explicit Links(int hosts) : hosts_(hosts), pairs_(static_cast<std::size_t>(hosts * hosts)) {}

  bool passes(int from, int to) const { return pair(from, to).blocked == 0; }
  bool is_up(int one, int other) const { return passes(one, other) && passes(other, one); }
  void block(int from, int to, Time now) {
    if (is_up(from, to)) pair(from, to).down_since = pair(to, from).down_since = now;
    ++pair(from, to).blocked;
  }
  void unblock(int from, int to, Time now) {
    --pair(from, to).blocked;
    if (!is_up(from, to)) return;
    keep_longest(from, to, now);
    keep_longest(to, from, now);
  }
  /// Since when there has been no ACK; only where it is not up.
  Time down_since(int one, int other) const { return pair(one, other).down_since; }
  /// The longest time without an ACK so far.
  Clock::duration longest_down(int one, int other, Time now) const {
    const Pair& it = pair(one, other);
    return is_up(one, other) ? it.longest : std::max(it.longest, now - it.down_since);
  }

 private:
  struct Pair {
    int blocked = 0;
    Time down_since = {};
    Clock::duration longest{0};
  };
  const Pair& pair(int from, int to) const {
    return pairs_[static_cast<std::size_t>(from * hosts_ + to)];
  }
  Pair& pair(int from, int to) { return pairs_[static_cast<std::size_t>(from * hosts_ + to)]; }
  void keep_longest(int from, int to, Time now) {
    pair(from, to).longest = std::max(pair(from, to).longest, now - pair(from, to).down_since);
  }

  int hosts_;
  std::vector<Pair> pairs_;
};

}  // namespace tutti::simulate::votes
