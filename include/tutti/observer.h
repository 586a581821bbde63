// Watching operations: what recorders and trace writers implement.
#pragma once

#include "tutti/types.h"

namespace tutti {

struct Request;
class Error;

/// Sees every operation of a group, in the thread that runs it.
///
/// Threads   Called by whichever thread runs the operation; calls for one group never overlap,
///           but messages with different tags may.
/// Cost      Runs inside the operation's critical path: keep it to tens of nanoseconds.
class TUTTI_API Observer {
 public:
  virtual ~Observer();
  virtual void entered(const Request& request) noexcept = 0;
  /// `failure` is null when the operation succeeded.
  virtual void left(const Request& request, const Error* failure) noexcept = 0;
};

}  // namespace tutti
