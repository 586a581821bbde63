// What the operating system refused, as an Error.
#pragma once

#include <string>
#include <string_view>

#include "tutti/error.h"

namespace tutti::net {

/// kSystem: "<what>: <text of errno> (errno 24)", and for the limits of descriptors and memory what
/// to try.
Error system_error(std::string_view what, int error_number);

/// The same for a thread or a process that could not be made: with the limits in force, and which
/// of them was hit if that can be known.
Error no_thread_error(std::string_view what, int error_number);
/// What to try then; empty, or begins with a semicolon.
std::string advice_on_threads(int error_number);

}  // namespace tutti::net
