// Ranks of the world on other hosts, as this host knows them: over sockets once there are hosts, in
// the simulator out of the boards that it keeps for them.
//
// State, goodbye and failure of a member come by themselves, late and in their order; what it has
// entered comes when somebody asks. Nothing is ever older than what was read before.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/roster.h"
#include "control/judge/deadlock.h"
#include "control/judge/facts.h"
#include "control/vote/vote.h"

namespace tutti::control {

/// What the relay of a host uses to speak with those of the others. One thread.
class RelayLinks {
 public:
  virtual ~RelayLinks() = default;
  /// From now on this rank is the relay: the others may connect to it, and what comes rouses its
  /// control thread. It receives what an earlier relay has not, if that lives: others may have sent
  /// it and left.
  virtual void open() = 0;
  virtual void close() noexcept = 0;
  /// What is known of all hosts, by host; the own one is reachable. A host is not dead and has not
  /// left before all that has come from it was received.
  virtual std::vector<HostFacts> facts() const = 0;
  /// The next frame that has come, and from which host; those of one connection in their order.
  virtual std::optional<std::pair<int, std::string>> receive() = 0;
  /// Waits for nothing. Where no relay is known there, its ranks keep it for the one that comes.
  virtual void send(int host, std::string frame) = 0;
  /// Returns once what was sent is with the kernel, as far as there is a way and room; or soon.
  virtual void await_sent() noexcept = 0;
  /// Tells the others what is new of the ranks of this host; on each tick of its relay.
  virtual void report() = 0;
  /// From now on nothing is told to those hosts of the ranks of this one: they have parted. Who
  /// heard how these end for that reason would take it for a reason of its own.
  virtual void part_from(const HostSet& hosts) = 0;
};

/// Any thread, but for `links`.
class OtherHosts {
 public:
  virtual ~OtherHosts() = default;
  /// What is known of `rank` in `group`, with what it makes elsewhere. The culprits of a failure
  /// are ranks of the world.
  virtual MemberFacts facts_of(GroupId group, WorldRank rank) const = 0;
  /// Of those facts the state of its line, and whether that tells of a failure.
  virtual std::optional<LineState> state_of(GroupId group, WorldRank rank) const noexcept = 0;
  virtual bool shows_failure(GroupId group, WorldRank rank) const noexcept = 0;
  /// Whether `rank` has left the world in order, as far as is known.
  virtual bool has_left(WorldRank rank) const noexcept = 0;
  /// The groups of which `rank` is known to have a line, if it has said goodbye to each; else none.
  virtual std::vector<GroupId> said_goodbye_to(WorldRank rank) const = 0;
  /// The failures that the lines of `rank` show, by group; culprits are ranks of the world.
  virtual std::map<GroupId, FailureFacts> failures_of(WorldRank rank) const = 0;
  /// Puts the question what `rank` does in `group`: soon facts_of has an answer to it, unless the
  /// rank is lost, or the way to it. Waits for nothing.
  virtual void ask(GroupId group, WorldRank rank) noexcept = 0;
  /// What the program of `rank` waits for, as it was answered last; and the question.
  virtual WaitFacts wait_of(WorldRank rank) const = 0;
  virtual void ask_wait(WorldRank rank) noexcept = 0;
  /// This rank has changed what `rank` may await. Waits for nothing.
  virtual void notify(WorldRank rank) noexcept = 0;
  /// For the relay of this host, on its control thread.
  virtual RelayLinks& links() noexcept = 0;
};

}  // namespace tutti::control
