// Hosts as the checks see them: what lies on their boards, who lives, what their ranks want.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "simulate/votes/network.h"
#include "simulate/votes/plan.h"

namespace tutti::simulate::votes {

using control::Entry;
using control::HostSet;
using control::HostVote;

/// Something that a relay has made up its mind to do.
struct Effect {
  int to = -1;  ///< -1: write `write`, else send `frame`
  HostVote write = {};
  control::VoteFrame frame = {};
};

struct Relay {
  HostVote vote;
  control::VoteMemory memory;
  std::deque<Effect> effects;
  std::deque<std::pair<std::size_t, std::optional<control::VoteFrame>>> inbox;  ///< by connection
  std::vector<std::size_t> connection;  ///< by host; 0: none
};

struct Process {
  bool dead = false;
  Time died = {};
  Time stopped_since = {}, stopped_until = {};
  bool runs_at_once = false;  ///< an event for it is under way
  bool has_news = false;      ///< since its last step
  std::optional<Relay> relay = {};
};

struct Pending {
  GroupId group = 0;
  Time since = {};
};

struct Host {
  HostVote board;
  std::vector<Process> processes;
  int relay = -1;  ///< its process
  bool has_left = false;
  std::vector<Pending> pending;    ///< verdicts that its ranks want, but for losses
  Time wants_since = Time::max();  ///< without a pause
  bool held_up = false;            ///< and told its own ranks, since then
  std::vector<Entry> entries;      ///< all that its board has had; those slept through are empty
  std::vector<bool> has_slept_through;
  std::set<WorldRank> lost;  ///< ranks, by these
  std::uint64_t effects = 0;

  bool is_dead() const {
    return std::all_of(processes.begin(), processes.end(),
                       [](const Process& process) { return process.dead; });
  }
};

inline constexpr int kRanksOfAHost = 4;
inline int rank_of(int host, int process) noexcept { return host * kRanksOfAHost + process; }
inline int host_of(int rank) noexcept { return rank / kRanksOfAHost; }

/// All that is so at a moment.
struct State {
  explicit State(const Plan& plan);

  int count() const noexcept { return static_cast<int>(hosts.size()); }
  Host& host(int index) { return hosts[static_cast<std::size_t>(index)]; }
  const Host& host(int index) const { return hosts[static_cast<std::size_t>(index)]; }
  bool runs(int host) const;  ///< its relay can do something
  /// What the ranks of a host would enter next, if its relay knows this of the others.
  std::optional<Entry> want_of(int host, const std::vector<control::HostFacts>& facts) const;

  Time now = Time(std::chrono::hours(1));
  Time calm_since = now;  ///< when something last befell somebody
  std::vector<Host> hosts;
  Links links;
};

/// What must hold. Each answers with what is violated, or "".
class Checks {
 public:
  explicit Checks(const State& state, const Plan& plan) : state_(state), plan_(plan) {}

  void wanted(const Entry& entry);
  std::string written(int host, const HostVote& before, const HostVote& after);
  /// A frame that must change nothing.
  std::string ignored(const HostVote& before, const HostVote& after, const char* why) const;
  std::string settled(int host, Time since) const;
  std::string at_end(const std::vector<std::vector<control::HostFacts>>& facts) const;

 private:
  std::string is_legal(int host, const HostVote& before, const HostVote& after);
  std::string entered(int host, std::uint64_t number, const Entry& entry);
  std::string is_true(const Entry& entry) const;
  std::string cut_off(int host, const HostVote& before, const HostVote& after) const;
  std::string has_come_to_rest(int host, const std::vector<control::HostFacts>& facts) const;
  HostSet near_to(int host) const;
  Clock::duration limit() const;
  bool have_parted(int one, int other) const;

  const State& state_;
  const Plan& plan_;
  std::vector<control::Verdict> wanted_;
  /// Entry and ballot, and what was proposed in it.
  std::vector<std::tuple<std::uint64_t, control::Ballot, Entry>> proposed_;
};

}  // namespace tutti::simulate::votes
