// Where Tutti's few lines of text go.
#pragma once

#include <functional>
#include <string_view>

#include "tutti/types.h"

namespace tutti {

enum class LogLevel : std::uint8_t { error, warn, info, debug };

TUTTI_API std::string_view name_of(LogLevel level) noexcept;  ///< "warn"

/// Receives every line that Tutti writes, without a line break: `tutti: rank 3: ...`.
using LogCallback = std::function<void(LogLevel level, std::string_view line)>;

/// Replaces where lines go; an empty callback restores the default, standard error. Tutti never
/// writes to standard output. What is written at all is TUTTI_LOG=error|warn|info|debug (warn).
///
///     tutti::set_log_callback([](tutti::LogLevel, std::string_view line) { my_log(line); });
///
/// Threads   May be called at any time. The callback is called by any thread, one at a time; it
///           must not call Tutti, and what it throws is dropped.
TUTTI_API void set_log_callback(LogCallback callback);

}  // namespace tutti
