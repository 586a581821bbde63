// The agent: where the ranks of a job meet.
//
// It serves the store at an abstract socket with a random name, which is all that the environment
// holds. Who connects must be the same user (or root) and descend from the launcher; the welcome
// carries the status board. A rank has *joined* once it was welcomed. The agent lives in the
// launcher, not in the keeper: it has a thread and talks to strangers, and the keeper must be able
// to fork at any time and to survive what goes wrong here.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control/board/board.h"
#include "launch/outcome.h"
#include "net/fd.h"
#include "net/poller.h"
#include "store/server.h"

namespace tutti::launch {

/// Ranks are numbers of the job, whatever numbers the program has given its processes in the world.
class Agent {
 public:
  explicit Agent(int rank_count);
  /// Begins to let ranks in; makes a thread.
  void serve();

  const std::string& address() const noexcept { return address_; }
  /// Readable after a rank has joined.
  net::Wakeup& news() noexcept { return news_; }
  /// It was welcomed to a world of all ranks of the job.
  bool has_joined(int rank) const noexcept { return joined_[static_cast<std::size_t>(rank)]; }
  /// The process that joined first.
  pid_t first_joined() const noexcept { return first_joined_; }
  /// Those who wait in the store, or come later, get this as their error: the rank `lost` is.
  void fail(const std::string& reason, int lost);

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
  std::optional<store::Server> server_;  // last: its thread uses the others
};

}  // namespace tutti::launch
