// The two ends of what a rank prints.
//
// A rank sees a terminal where the launcher has one, and a pipe where it has not: progress bars and
// line buffering are as people expect them, and a log file gets no control characters.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "net/fd.h"

namespace tutti::launch {

struct OutputEnds {
  net::Fd launcher_end;  ///< does not block
  net::Fd rank_end;
};

/// `own_fd` is the launcher's stdout or stderr; `prefix_columns` are taken from the width that the
/// rank is told.
OutputEnds open_output_ends(int own_fd, int prefix_columns);

/// A pipe or terminal opened once more, so that writes to it do not block and nobody else notices.
/// Empty where that cannot be had: a socket, a terminal of another user, or a file, which does not
/// block.
net::Fd open_unblocking(int fd);

/// One write that does not block where `fd` could not be opened again: what is not blocking for the
/// length of a write is so for those who share it, too. errno EAGAIN: it takes nothing now.
ssize_t write_unblocking(int fd, const char* bytes, std::size_t length) noexcept;

/// Whether both descriptors end in one file, pipe or terminal.
bool are_same_file(int a, int b) noexcept;

/// Columns of the terminal `fd`; 0 if it is none or does not say.
int terminal_columns(int fd) noexcept;

}  // namespace tutti::launch
