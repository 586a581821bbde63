// The door of a host: where its ranks are let in to meet.
//
// It is an abstract socket with a random name, which is all that the environment of a rank holds.
// Who connects must descend from this process, as whatever user; the welcome carries the status
// board. A rank has *joined* once it was welcomed. The store behind the door is the
// job's, and so is its thread, which asks here about each who comes. Door and board are the
// launcher's, not the keeper's, which must be able to fork at any time and to survive what goes
// wrong here.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/outcome.h"
#include "control/board/board.h"
#include "net/fd.h"
#include "net/poller.h"
#include "store/server.h"

namespace tutti::agent {

/// Ranks are numbers of the job, whatever numbers the program has given its processes in the world.
class Door {
 public:
  /// `who`: "tutti run", for who is turned away.
  Door(int rank_count, std::string who);
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  /// What a store needs to let ranks in here. It must not outlive this. Call it once.
  store::ServerOptions open();

  const std::string& address() const noexcept { return address_; }
  /// Readable after a rank has joined.
  net::Wakeup& news() noexcept { return news_; }
  const net::Wakeup& news() const noexcept { return news_; }
  /// It was welcomed to a world of all ranks of the job.
  bool has_joined(int rank) const noexcept { return joined_[static_cast<std::size_t>(rank)]; }
  /// The process that joined first.
  pid_t first_joined() const noexcept { return first_joined_; }

  void rank_started(int rank, pid_t pid) noexcept;
  void rank_exited(int rank, int wait_status) noexcept {
    board_.set_exit(slot_of(rank), wait_status);
  }
  /// Whom the first failure blames that this rank has not outlived; empty if it has none.
  std::vector<int> blamed_by(int rank) const;
  /// About what it and others disagreed, if it failed because of that; else empty.
  std::string disagreement_of(int rank) const;
  /// Why its first group failed; empty if none did.
  std::string failure_of(int rank) const;
  /// The failure of which its program was not told.
  std::optional<UntoldFailure> untold_by(int rank) const;
  /// Its world is complete, or was.
  bool is_in_world(int rank) const;
  /// For people: "is in all_reduce #41(...) at train.cc:88"; empty if it was never in a world.
  std::string doing_of(int rank) const;

 private:
  std::optional<Error> admit(const store::Hello& hello, const net::Peer& peer);
  int started_as(pid_t pid, int said);
  /// On the board of the job's world, where a rank of the world is its slot.
  SlotIndex slot_of(int rank) const noexcept {
    return SlotIndex(slots_[static_cast<std::size_t>(rank)]);
  }
  std::vector<int> ranks_of(const std::set<WorldRank>& in_world) const;

  const std::string who_;
  std::string address_;
  net::Fd listener_;
  net::Fd board_fd_;
  control::Board board_;
  std::vector<std::atomic<bool>> joined_;
  std::vector<std::atomic<int>> slots_;  ///< by rank: another's, if the program has renumbered
  std::mutex mutex_;
  net::Condition started_;
  std::vector<pid_t> pids_;  ///< mutex_; by rank; 0: not known yet
  std::atomic<pid_t> first_joined_ = -1;
  net::Wakeup news_;
};

}  // namespace tutti::agent
