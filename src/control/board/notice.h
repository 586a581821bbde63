// On the agent's board: the first failure of which the program of a slot has not been told; see
// untold.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/roster.h"
#include "tutti/error.h"

namespace tutti::control {

class Board;

struct UntoldFailure {
  ErrorCode code = ErrorCode::kInternal;
  std::vector<WorldRank> culprits;  ///< empty where not known
  std::string text;
  bool is_told = false;  ///< to that program: it stays because somebody else had left
};

/// What the process that owns `slot` has left untold.
std::optional<UntoldFailure> read_untold(const Board& board, SlotIndex slot);
/// For that process, by one thread at a time; none: all is told.
void write_untold(const Board& board, SlotIndex slot,
                  const std::optional<UntoldFailure>& failure) noexcept;

}  // namespace tutti::control
