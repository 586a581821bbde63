// How a process leaves MPI when it exits, whatever has become of the others.
//
// MPI_Finalize ends once every process of the job has called it; a process that never will makes
// the others wait in it for ever, spinning. It cannot be given up. So a process that exits first
// waits until the others have *arrived* at their exits. As long as they live they may take their
// time. A peer that ends without having arrived will never finalise, and nobody does. A peer lost
// later, inside MPI_Finalize, is met by a watch that ends the process with the code it was about to
// exit with.
//
// Worlds and their status boards are gone by then. A process holds of each peer what outlives them:
// a descriptor that tells its end (a pid may come again), and a page of its memory that says
// whether it has arrived. MPI itself is no place to meet: MPICH's first message between two
// processes, sent just before MPI_Finalize, can make it hang.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <vector>

namespace tutti::mpi {

/// How often a process that exits looks at what it waits for.
inline constexpr std::chrono::milliseconds kTick{10};

/// Where the others find a process's page.
struct PageAddress {
  int pid = 0;
  int fd = -1;  ///< of that process; -1: it has none
};

/// Lifetime  As long as the process: pages and descriptors are never given back.
class Ending {
 public:
  /// `grace`: how long this process waits in MPI_Finalize after the end of a peer.
  explicit Ending(std::chrono::nanoseconds grace);
  PageAddress own() const noexcept { return own_; }
  /// The other processes of the job on this host. One that cannot be seen (another PID namespace,
  /// Linux before 5.6) is not waited for, nor are those of other hosts.
  void watch(const std::vector<PageAddress>& peers);
  /// This process has arrived at its exit: waits until the others have. False: one of them has
  /// ended without having arrived, or `has_failed` is set meanwhile. Then MPI is to be left as it
  /// is, and to the others this process has not arrived.
  bool await_peers(const std::atomic<bool>& has_failed) noexcept;
  /// Ends MPI then. `exit_code`: of this process, which is about to exit.
  void finalize(int exit_code) noexcept;

 private:
  using Page = std::atomic<int>;  ///< 1: its process has arrived at its exit

  bool any_ended(std::chrono::milliseconds patience) noexcept;
  bool all_arrived() const noexcept;
  bool await_all(const std::atomic<bool>& has_failed) noexcept;
  void watch_finalize(int exit_code) noexcept;

  std::atomic<bool> finalized_{false};
  const std::chrono::nanoseconds grace_;
  PageAddress own_;
  Page* arrived_ = nullptr;          // own
  std::vector<const Page*> others_;  // by peer
  std::vector<pollfd> ends_;         // by peer
};

}  // namespace tutti::mpi
