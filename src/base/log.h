// The few lines that the library writes: warnings, who is awaited, failures in destructors.
#pragma once

#include <chrono>
#include <string_view>

#include "tutti/log.h"

namespace tutti {

/// Writes one line; prefixed "tutti: " and, once known, "rank N: ". Never throws, keeps errno.
/// Without memory for it the line goes to stderr, cut to 500 bytes.
/// Callers format with fmt in their .cc file, after asking `log_enabled` where that is costly.
/// Plugins of backends use it, too.
TUTTI_API void log(LogLevel level, std::string_view text) noexcept;
bool log_enabled(LogLevel level) noexcept;

/// Writes the lines that stderr had no room for; gives up after `patience`. log itself waits only
/// where nobody calls this from time to time: see add_log_flusher.
bool flush_log(std::chrono::milliseconds patience = {}) noexcept;
/// +1 from who will call flush_log soon and again, -1 when it stops.
void add_log_flusher(int change) noexcept;

void set_log_level(LogLevel level) noexcept;
/// Rank that lines of this thread are prefixed with, -1 for none; the first one set in the process
/// is also used by threads that never set one, unless it was a rank thread's.
void set_log_rank(int rank) noexcept;

}  // namespace tutti
