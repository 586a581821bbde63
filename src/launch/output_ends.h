// The two ends of what a rank prints.
//
// A rank sees a terminal where the launcher has one, and a pipe where it has not: progress bars and
// line buffering are as people expect them, and a log file gets no control characters.
#pragma once

#include "net/fd.h"

namespace tutti::launch {

struct OutputEnds {
  net::Fd launcher_end;  ///< does not block
  net::Fd rank_end;
};

/// `own_fd` is the launcher's stdout or stderr; `prefix_columns` are taken from the width that the
/// rank is told.
OutputEnds open_output_ends(int own_fd, int prefix_columns);

/// Columns of the terminal `fd`; 0 if it is none or does not say.
int terminal_columns(int fd) noexcept;

}  // namespace tutti::launch
