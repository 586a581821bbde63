// Failures of which the program has not been told: by a throw, by a callback or by error().
//
// A group that fails while its rank is elsewhere, or in its destructor, fails in silence: the rank
// may end with 0. So every failure is *untold* until the program has got it, and the first one
// that is untold is shown on the board of the agent of `tutti run`, whichever board the group
// itself is on: the agent reads it when the rank has ended, however it ended. One list for the
// process, as a launched process is one rank to its agent, whatever ranks its threads have.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "control/board/board.h"
#include "tutti/error.h"

namespace tutti::control {

class Untold {
 public:
  struct Failure {
    GroupId group = 0;
    int rank = 0;             ///< in the group: with its id the name of one Membership
    WorldRank of{0};          ///< the rank that is told
    std::uint64_t world = 0;  ///< of which it is a rank: a number of the process's own
    ErrorCode code = ErrorCode::kInternal;
    std::vector<WorldRank> culprits;
    int world_size = 0;
    std::string text;
    bool is_told = false;
    bool for_ever = false;     ///< concerns a member that has left the group, whom nothing can tell
    bool is_outlived = false;  ///< the program has got it, and made another group since
    bool operator==(const Failure&) const = default;
  };

  static Untold& of_process();
  /// For a forked child that becomes a rank: what it has copied is its parent's.
  void forget() noexcept;
  /// From now on the first failure is shown in `slot` of the agent's board.
  void show_on(const net::Fd& board, SlotIndex slot);
  /// Nothing, if it is there or the program has been told the same of another group.
  void add(Failure failure);
  /// Nothing can tell everybody whom it concerns: it stays.
  void keep(GroupId group, int rank) noexcept;
  /// The program has got an Error of that code from the group. Nothing happens if it is another
  /// one than the group's. One loss or deadlock fails several groups: who is told by one knows of
  /// all.
  void told(GroupId group, int rank, ErrorCode code) noexcept;
  /// The last one that the program has got as that rank of that world, and is no culprit of.
  std::optional<Failure> last_told(std::uint64_t world, WorldRank of);
  /// What the rank has been told so far is no cause of what comes.
  void outlive(std::uint64_t world, WorldRank of) noexcept;
  /// Whether the program has yet to get the group's failure.
  bool is_untold(std::uint64_t world, GroupId group, int rank) noexcept;

 private:
  void show() noexcept;
  void show_first();

  std::mutex mutex_;
  std::vector<Failure> failures_;  // mutex_
  std::vector<Failure> told_;      // mutex_; the last ones
  std::optional<Board> board_;     // mutex_
  SlotIndex slot_{0};              // mutex_
  std::optional<Failure> shown_;   // mutex_; on that board
};

}  // namespace tutti::control
