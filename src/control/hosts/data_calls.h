// The data connections of a rank: made by whichever end wants one first.
//
// Both ends may call at the same time. Then the call of the lower rank counts: the lower one
// answers the higher one's call with `crossing`, and the higher one, called by the lower, drops its
// own. So each connection is made once, whatever comes when.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "control/hosts/door.h"
#include "control/hosts/shortage.h"

namespace tutti::control {

class DataCalls {
 public:
  /// How to call `peer`. Throws where something lacks for it, and notes that as a shortage.
  using Begin = std::function<std::unique_ptr<Call>(const Hello&, Call::OnOutcome)>;
  /// There is a connection to take, or there will be none.
  using OnThere = std::function<void()>;
  DataCalls(net::Events& events, WorldRank rank, const Shortage& shortage, Begin begin,
            OnThere on_there);

  /// As PeerSockets says it. Any thread.
  void expect(GroupId group);
  void forget(GroupId group) noexcept;
  net::Secured try_take(GroupId group, WorldRank peer, std::uint8_t lane);
  bool has_come(GroupId group, WorldRank peer, std::uint8_t lane);

  // ---- on the thread of `events`
  Answer on_hello(const Hello& hello);
  void on_guest(const Hello& hello, net::Secured socket);
  /// Calls again whom it could not reach; when to do so next.
  Clock::time_point sweep(Clock::time_point now);

 private:
  struct Key {
    GroupId group = 0;
    WorldRank peer{0};
    std::uint8_t lane = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Line {
    bool is_wanted = false;
    std::unique_ptr<Call> call = {};
    Clock::time_point next_call = {};
    int refusals = 0;  ///< one after the other
    net::Secured socket = {};
    bool has_told = false;    ///< that who is there is not believed
    bool is_changed = false;  ///< what that door has answered
  };
  void call(const Key& key);
  void on_outcome(const Key& key, Call::Outcome outcome);
  void drop(std::unique_ptr<Call> call);
  void drop_lines(GroupId group);

  net::Events& events_;
  const WorldRank rank_;
  const Shortage& shortage_;
  const Begin begin_;
  const OnThere on_there_;
  std::mutex mutex_;
  std::map<Key, Line> lines_;   // mutex_; those that were taken are no more
  std::set<GroupId> expected_;  // mutex_; others may call for these alone
};

}  // namespace tutti::control
