// Tutti's errors as those that users of torch.distributed catch.
#pragma once

#include <exception>
#include <string>

#include "tutti/error.h"

namespace tutti::python {

/// Its text, with advice that a program in Python can follow.
std::string words_of(const Error& error);
/// kInvalidArgument is ValueError, kUnsupported NotImplementedError, everything else
/// DistBackendError, whose text says "Timed out" where time has passed.
std::exception_ptr as_torch(const Error& error);
/// The same for a meeting: DistStoreError where somebody did not come, DistNetworkError where the
/// store is gone.
std::exception_ptr as_torch_of_meeting(const Error& error);

}  // namespace tutti::python
