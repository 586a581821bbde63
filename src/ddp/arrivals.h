// Which rank the others wait for.
//
// Who comes last to the buckets of a step finds everybody there and waits least. Ranks keep how
// long each step made them wait, and tell each other every kWindow steps.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "tutti/process_group.h"

namespace tutti::ddp {

/// Threads   One at a time.
class Arrivals {
 public:
  static constexpr std::size_t kWindow = 16;

  explicit Arrivals(int world_size) : last_(static_cast<std::size_t>(world_size)) {}

  /// This rank has waited so long in a step that all ranks have made; every kWindow-th call
  /// exchanges.
  void note(std::chrono::nanoseconds waited, ProcessGroup& group, Where where);

  /// By rank, in how many steps it came last; the same on all ranks.
  const std::vector<std::uint64_t>& last() const { return last_; }

 private:
  std::array<std::uint64_t, kWindow> waited_{};
  std::size_t noted_ = 0;  // of these
  std::vector<std::uint64_t> last_;
};

}  // namespace tutti::ddp
