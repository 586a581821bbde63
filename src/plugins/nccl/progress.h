// How far the devices of a group have come, told through its store to whoever asks.
//
// A device that is slow to come to an operation, because the program has given it much to do
// before, holds up all others there, and nothing is wrong. So an operation is only late once every
// device has come to it. Who has waited for long *asks*, which is one key of the group; the others
// look at it now and then, and *answer*, once for each operation that is asked for.
#pragma once

#include <cstdint>
#include <memory>

#include "tutti/backend.h"

namespace tutti::nccl_backend {

/// Operations are numbered from 1 in the order in which all ranks call them.
/// Threads   One.
/// Errors    None: a store that cannot be reached says nothing.
class Progress {
 public:
  Progress(std::shared_ptr<Store> store, int rank, int ranks)
      : store_(std::move(store)), rank_(rank), ranks_(ranks) {}

  /// Tells how far this rank's device has come, if somebody asks for more than was told.
  void answer(std::uint64_t reached) noexcept;
  /// Asks; whether all have said that they have come so far.
  bool have_all_reached(std::uint64_t number) noexcept;

 private:
  const std::shared_ptr<Store> store_;
  const int rank_, ranks_;
  std::uint64_t told_ = 0;
};

}  // namespace tutti::nccl_backend
