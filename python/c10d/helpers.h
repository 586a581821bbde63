// Threads for what Tutti's own must not do: they may block, and take Python's lock.
#pragma once

#include <chrono>
#include <functional>

namespace tutti::python {

/// Runs `job` on a thread of its own, which may wait for others: one more is started whenever none
/// is idle. A job ends without an exception. After stop_helpers it is not run, and what it holds is
/// never freed.
///
/// Threads  Any.
void run_by_helper(std::function<void()> job);

/// Before Python ends: waits for the jobs that run, `patience` at most; no other is begun. False:
/// one still runs.
///
/// Threads  Without Python's lock.
bool stop_helpers(std::chrono::milliseconds patience);

}  // namespace tutti::python
