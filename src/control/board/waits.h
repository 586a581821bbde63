// What a rank of a board shows of its program's wait.
#pragma once

#include "control/board/board.h"
#include "control/judge/deadlock.h"

namespace tutti::control {

/// Whether the rank runs is not known here, but for one that has not come or has left.
WaitFacts read_wait(const Board& board, SlotIndex slot);

}  // namespace tutti::control
