// The collectives of one group, as calls of MPI.
//
// *Moves* carry bytes. Even ones are one call of MPI. Uneven and very large ones are messages
// between every two ranks that have something for each other (an *exchange*): what each rank knows
// of the counts suffices for that, and displacements have no limit.
//
// *Reductions* run in the accumulation type of the kernels, so that f16 and bf16 are rounded once.
// A *staged* one is first copied to memory of ours: converted, scaled (premul_sum) or normalised
// (bool); MPI reduces there; the result is *finished* (divided, rounded) into the output. In
// pieces.
//
// Tested calls never see the buffers of the program: everything is copied, both ways.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "plugins/mpi/calls.h"

namespace tutti::mpi {

/// What MPI reduces `dtype` as; MPI_DATATYPE_NULL if it cannot.
MPI_Datatype reduced_as(DType dtype) noexcept;

/// Memory that is reused, and left to MPI for ever when an operation in it was given up.
class Scratch {
 public:
  /// Room for `byte_count` bytes; what was there before is gone. Throws kSystem.
  std::byte* at_least(std::size_t byte_count);
  void abandon() noexcept;

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t byte_count_ = 0;
};

class Collectives {
 public:
  Collectives(Process& process, Calls& calls, MPI_Comm comm, int rank, int group_size) noexcept
      : process_(process),
        calls_(calls),
        comm_(comm),
        rank_(rank),
        ranks_(static_cast<std::size_t>(group_size)) {}

  /// One at a time. Throws kUnsupported for an operation that it does not know.
  void run(const Request& request);

 private:
  void broadcast(const Request& request);
  void move(const Request& request);
  void move_evenly(const Request& request, const void* input, void* output);
  void move_by_exchange(const Request& request, std::byte* input, std::byte* output);
  std::vector<Transfer> parts(const Request& request, bool sent, std::byte* data) const;

  bool is_staged(const Request& request) const noexcept;
  MPI_Op operation(const Request& request) const noexcept;
  void reduce(const Request& request);
  void reduce_scatter(const Request& request);
  void reduce_scatter_at_once(const Request& request, bool copies);
  /// reduce_scatter: whether the output is a part of the input. What MPI does in place is another
  /// thing: it puts the result at the beginning.
  bool is_in_place(const Request& request) const noexcept;
  /// Reduces `count` elements to `root`, or to all ranks (-1), in pieces.
  void reduce_run(const Request& request, const std::byte* input, std::byte* output,
                  std::size_t count, int root);
  /// What MPI reads and writes for `count` elements: the buffers, or a copy in the accumulation
  /// type.
  struct Ends {
    const void* from;
    void* to;
  };
  Ends ends_of(const Request& request, const void* input, void* output, std::size_t count);
  const void* copy_of(const void* data, std::size_t byte_count);
  void reduce_piece(const Request& request, const void* input, void* output, std::size_t count,
                    int root);
  void scan(const Request& request);
  void scan_piece(const Request& request, const void* input, void* output, std::size_t count);

  bool is_root(const Request& request) const noexcept { return request.root == rank_; }

  Process& process_;
  Calls& calls_;
  const MPI_Comm comm_;
  const int rank_;
  const std::size_t ranks_;
  Scratch scratch_, input_copy_, counts_;
};

}  // namespace tutti::mpi
