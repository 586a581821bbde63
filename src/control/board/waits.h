// What the ranks of a board show of their programs' waits.
#pragma once

#include <vector>

#include "control/board/board.h"
#include "control/judge/deadlock.h"

namespace tutti::control {

/// By slot. Which of them run is not known here, but for those that have not come or have left.
std::vector<WaitFacts> read_waits(const Board& board);

}  // namespace tutti::control
