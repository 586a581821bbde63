// Messages of one group: each is a few MPI_Isend or MPI_Irecv, tested by whoever helps.
//
// The group has matched both ends: peer and count are known, and a number that no other message of
// this edge has. That number is the tag, so nothing can be taken for something else.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "plugins/mpi/calls.h"
#include "tutti/backend.h"

namespace tutti::mpi {

class Message final : public WorkState {
 public:
  Message(Request request, Calls& calls, std::shared_ptr<Gate> gate,
          std::unique_ptr<Process::Inside> inside);
  ~Message() override { leave_to_mpi(); }

  /// Hands it to MPI.
  void start(int tag, MPI_Comm comm);
  bool help(Deadline::Clock::time_point until) override;

 private:
  /// Ends it if MPI has done its part, the group has failed, or the stall deadline has passed.
  /// Never blocks; does nothing while another thread does this.
  void advance() noexcept;
  void finish();
  /// What MPI may still read or write there.
  void leave_to_mpi() noexcept;

  Calls& calls_;
  const std::shared_ptr<Gate> gate_;
  std::mutex mutex_;
  Deadline stall_;
  std::unique_ptr<std::byte[]> copy_;        // tested calls: what MPI sees instead of the buffer
  std::unique_ptr<Process::Inside> inside_;  // until it ends
  std::unique_ptr<Gate::Commitment> commitment_;  // blocking ones: MPI has the buffer itself
  std::vector<MPI_Request> pending_;
};

}  // namespace tutti::mpi
