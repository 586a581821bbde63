// The collectives, queued on the stream of the request: NCCL's own where it has them, else messages
// in a *batch*, which NCCL moves together.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "plugins/nccl/communicator.h"
#include "plugins/nccl/support.h"

namespace tutti::nccl_backend {

/// Threads   One operation at a time.
class Collectives {
 public:
  explicit Collectives(Communicator& communicator);

  /// Queues `request`; the communicator is prepared, and its device current.
  /// Errors  Those of Communicator::call; kUnsupported for what support_of refuses.
  void run(const Request& request);

 private:
  /// Bytes [offset, offset + count) of a buffer.
  struct Part {
    std::size_t offset = 0;
    std::size_t count = 0;
  };

  void broadcast(const Request& request, Deadline& deadline);
  void all_gather(const Request& request, Deadline& deadline);
  void gather(const Request& request, Deadline& deadline);
  void scatter(const Request& request, Deadline& deadline);
  void all_to_all(const Request& request, Deadline& deadline);
  /// All that combines elements.
  void reduce(const Request& request, Deadline& deadline);
  void queue_reduction(const Request& request, SeenAs seen, ncclRedOp_t op, Deadline& deadline);
  ncclRedOp_t make_premul_sum(const Request& request, SeenAs seen, Deadline& deadline);

  /// Says in `parts` where in a buffer the parts of the ranks lie, side by side.
  void lay_out(const Request& request, std::span<const std::size_t> counts,
               std::vector<Part>& parts) const;
  /// The part of the only rank that has one.
  void lay_out_one(int rank, std::size_t byte_count, std::vector<Part>& parts) const;
  /// Sends the parts `to_` of `input`, and receives the parts `from_` of the output. The own one is
  /// copied.
  void exchange(const void* input, const Request& request, Deadline& deadline);
  template <class Use>
  void batch(Deadline& deadline, Use&& use);

  Communicator& communicator_;
  const Nccl& nccl_;
  const int rank_;
  const int ranks_;
  std::vector<Part> to_, from_;  // by rank; of the operation that is queued
};

}  // namespace tutti::nccl_backend
