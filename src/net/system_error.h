// What the operating system refused, as an Error.
#pragma once

#include <string_view>

#include "tutti/error.h"

namespace tutti::net {

/// kSystem: "<what>: <text of errno> (errno 24)", and for the limits of descriptors and memory what
/// to try.
Error system_error(std::string_view what, int error_number);

}  // namespace tutti::net
