// Which threads move an operation: if such a thread calls exit(), in a handler of a signal or in a
// callback, the operation never ends.
#pragma once

#include "tutti/types.h"

namespace tutti {

/// While it lives, the calling thread moves an operation.
class InsideCall {
 public:
  InsideCall() noexcept;
  ~InsideCall();
  InsideCall(const InsideCall&) = delete;
  InsideCall& operator=(const InsideCall&) = delete;
};

/// Whether the calling thread does. Plugins of backends use it, too.
TUTTI_API bool is_inside_call() noexcept;

}  // namespace tutti
