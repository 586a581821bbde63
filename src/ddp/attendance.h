// Who still trains, where ranks have different numbers of samples.
//
// Inside a *join*, before each thing that the ranks do together, every rank says what its *turn*
// is: a forward that copies buffers, a backward, or nothing, because it has *left*: it has no more
// samples. Who has left *shadows* the turns of those who are *in*.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/process_group.h"

namespace tutti::ddp {

enum class Turn : std::uint8_t { left, forward, backward };

/// What one rank says.
struct Word {
  Turn turn = Turn::left;
  bool gave_up = false;      ///< it has given its last step up and wants to meet the others first
  std::uint64_t digest = 0;  ///< of what it will exchange
};

/// Threads   One at a time.
class Attendance {
 public:
  explicit Attendance(int world_size) : in_(static_cast<std::size_t>(world_size), 1) {}

  /// Tells all ranks, and returns the word of the lowest one that is in. `agreed`: the digest of
  /// what all ranks exchanged last.
  Word take(const Word& own, std::uint64_t agreed, ProcessGroup& group, Where where);

  /// Nobody was in at the last turn. All else is about the turn before that then.
  bool is_over() const { return is_over_; }
  int lowest() const;  ///< rank that is in
  int count() const;   ///< ranks that are in
  bool has_shadows() const { return count() < static_cast<int>(in_.size()); }
  /// Whether a rank that is in will exchange something else than was agreed.
  bool is_changed() const { return is_changed_; }

 private:
  std::vector<std::uint8_t> in_;  // by rank
  bool is_over_ = false, is_changed_ = false;
};

}  // namespace tutti::ddp
