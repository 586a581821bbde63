// Calling MPI: a function that blocks, or its non-blocking twin and a test loop.
//
// *Tested* calls are those of mpi_mode=nonblocking, and of a program that has initialised MPI with
// MPI_THREAD_SERIALIZED: they give up when the group fails or no end comes within the stall
// deadline. What was given up still belongs to MPI: its buffers must never be used or freed again.
#pragma once

#include <mpi.h>

#include <span>
#include <vector>

#include "plugins/mpi/gate.h"
#include "plugins/mpi/process.h"

namespace tutti::mpi {

/// A run of bytes on its way to or from `peer`.
struct Transfer {
  std::byte* data = nullptr;
  std::size_t byte_count = 0;
  int peer = -1;
};

/// At most this many bytes in one call: counts are ints, and sums of a few of them, too.
inline constexpr std::size_t kLargestCall = std::size_t{1} << 30;

class Calls {
 public:
  Calls(Process& process, Gate& gate, bool tested) noexcept
      : process_(process), gate_(gate), tested_(tested) {}

  bool tested() const noexcept { return tested_; }

  /// Calls `blocking(arguments...)`, or `started(arguments..., &pending)` and waits for it.
  template <class Blocking, class Started, class... Arguments>
  void operator()(const Request& request, Blocking blocking, Started started,
                  Arguments... arguments) {
    if (!tested_) {
      check_code(blocking(arguments...));
      return;
    }
    gate_.check();
    MPI_Request pending = MPI_REQUEST_NULL;
    {
      const auto lock = process_.lock();
      check_code(started(arguments..., &pending));
    }
    finish(request, {&pending, 1});
  }

  /// Messages in both directions at once, large ones in pieces.
  void exchange(const Request& request, std::span<const Transfer> receives,
                std::span<const Transfer> sends, int tag, MPI_Comm comm);
  /// Begins that.
  std::vector<MPI_Request> start(std::span<const Transfer> receives,
                                 std::span<const Transfer> sends, int tag, MPI_Comm comm);
  /// Whether all have ended. Never blocks.
  bool test(std::span<MPI_Request> pending);
  /// Throws if a tested call that is under way is to be given up: its group has failed, or MPI has
  /// not ended it within its stall deadline.
  void check_hope(const Request& request, Deadline& stall) const;

 private:
  /// Throws unless `code` is MPI_SUCCESS.
  void check_code(int code) const;
  void finish(const Request& request, std::span<MPI_Request> pending);

  Process& process_;
  Gate& gate_;
  const bool tested_;
};

}  // namespace tutti::mpi
