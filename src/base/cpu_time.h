// What a thread has computed, apart from the time that passes.
#pragma once

#include <chrono>

namespace tutti {

/// Processor time of the calling thread. While it is stopped, sleeps, or another thread has its
/// core, it does not go on. A system call of about 0.2 us.
std::chrono::nanoseconds thread_cpu_time() noexcept;

}  // namespace tutti
