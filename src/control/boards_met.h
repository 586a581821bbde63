// How the ranks of a world find out who shares a host with whom, and get their boards.
#pragma once

#include <memory>
#include <span>

#include "base/roster.h"
#include "control/host.h"
#include "control/hosts/remote_hosts.h"
#include "net/fd.h"
#include "tutti/error.h"

namespace tutti::control {

struct BoardsMet {
  net::Fd memory;  ///< of the board of this host
  Roster roster;
  std::unique_ptr<RemoteHosts>
      remote;  ///< null: there is one host, or the options say who is where
  /// Held until the slot on the agent's board is taken: another world of this process that meets
  /// meanwhile has a board of its own.
  std::shared_ptr<const void> agents_slot = {};
};

/// Every rank says in the store on which host it is. Ranks of one host share a board, which the
/// lowest of them makes; with several hosts every rank opens a door as well, and says where.
/// Errors  as Host::join.
BoardsMet meet_at_boards(const HostOptions& options, Deadline& deadline);

/// With several hosts: until all ranks of all of them have taken their slots. To be called once
/// those of this host have.
void await_hosts(const HostOptions& options, const Roster& roster, Deadline& deadline);

/// Once the world is complete: shows on a board of the agent's that this world does not use,
/// because its ranks say that they are on several hosts, that the rank has met the others.
void show_elsewhere(const HostOptions& options);

/// kTimeout: ranks that have come to the meeting, and have not gone on since.
Error not_gone_on(std::span<const int> ranks, const Deadline& deadline);

}  // namespace tutti::control
