// MPI itself, of which a process has one: starting it, what it allows, ending it.
//
// Where the program has initialised MPI, it stays the program's: we take the thread level that it
// asked for and never finalise; its MPI_Finalize is the end of what worlds can do with MPI. Else we
// ask for MPI_THREAD_MULTIPLE, and finalise when the process exits (ending.h): MPI starts once, and
// a second world must find it alive. After a failure nobody finalises: MPI would wait for the dead.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "plugins/mpi/ending.h"
#include "tutti/types.h"

namespace tutti::mpi {

struct ProcessOptions {
  bool outlives = false;           ///< this process wants to outlive the ranks of others
  std::chrono::nanoseconds grace;  ///< what it gives MPI to end after a failure
  std::chrono::nanoseconds stall;  ///< what it gives calls to end once all processes exit
};

class Process {
 public:
  /// Initialises MPI at the first call, unless the program has done so. It has not been finalised
  /// (rendezvous/mpi_choice).
  static Process& get(const ProcessOptions& options);

  /// How this process will leave MPI, if it is ours to leave.
  Ending& ending() noexcept { return ending_; }

  int rank() const noexcept { return rank_; }              ///< in MPI_COMM_WORLD
  int world_size() const noexcept { return world_size_; }  ///< of MPI_COMM_WORLD
  int last_tag() const noexcept { return last_tag_; }

  /// Throws kUnsupported if MPI does not allow the calling thread to call it: below SERIALIZED only
  /// the thread that has initialised it may.
  void check_thread(const char* what) const;
  /// While it lives, something is under way in MPI, for which MPI_Finalize waits. Throws
  /// kInvalidArgument once calls have been ended, and what check_thread throws.
  class Inside {
   public:
    Inside(Process& process, const char* what);
    Inside(const Inside&) = delete;
    ~Inside() { process_.inside_.fetch_sub(1); }

   private:
    Process& process_;
  };
  /// MPI allows one call at a time (SERIALIZED): none of ours may block, and each takes this lock.
  bool is_serialized() const noexcept { return level_ == MPI_THREAD_SERIALIZED; }
  std::unique_lock<std::mutex> lock() {
    return is_serialized() ? std::unique_lock(one_call_) : std::unique_lock<std::mutex>();
  }
  /// The kernels' sum, product, min or max as an operation of MPI. MPI's own give different results
  /// on different ranks (min and max where a NaN or zeros of both signs take part), saturate (sums
  /// of 8 and 16 bits in Open MPI 4.1), or take u8 for signed (min and max in MPICH 4.0).
  MPI_Op kernel_operation(ReduceOp::Kind kind) const noexcept {
    return operations_[static_cast<std::size_t>(kind)];
  }

  /// A group has been made (1) or closed (-1).
  void count_open(int change) noexcept { open_groups_.fetch_add(change); }
  /// From now on MPI is left as it is when the process exits.
  void set_failed() noexcept { failed_.store(true); }

 private:
  explicit Process(const ProcessOptions& options);
  void start(bool outlives);
  void hear_of_finalize();
  /// From now on no call begins; waits for those under way, or until a group has failed. `event`:
  /// what they would come after. False: they have not ended within `patience`.
  bool end_calls(const char* event, std::chrono::nanoseconds patience) noexcept;
  void check_not_ended(const char* what) const;
  void leave(int exit_code) noexcept;

  Ending ending_;
  const std::chrono::nanoseconds stall_;
  bool is_ours_ = false;  // started by us, not by the program
  int level_ = MPI_THREAD_SINGLE;
  int rank_ = 0;
  int world_size_ = 1;
  int last_tag_ = 32767;
  MPI_Op operations_[4];  // by ReduceOp::Kind
  std::mutex one_call_;
  std::atomic<bool> failed_{false};
  std::atomic<const char*> ended_by_{nullptr};  // see end_calls
  std::atomic<int> open_groups_{0};
  std::atomic<int> inside_{0};
  std::atomic<const char*> last_inside_{""};  // what began last
};

/// "Open MPI v4.1.4"; may be asked before MPI is initialised.
std::string library_version();
/// What MPI says about one of its error codes.
std::string error_text(int code);
/// Throws kSystem with that unless `code` is MPI_SUCCESS. For calls outside of operations.
void check(int code, const char* function);

}  // namespace tutti::mpi
