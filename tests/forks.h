// Processes of a test that are forked without exec.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace tutti {

/// TSan does not follow ranks that are forked from a process in which it runs threads of its own;
/// ASan keeps memory that was freed.
#if defined(__has_feature)
inline constexpr bool kNoForks = __has_feature(thread_sanitizer);
inline constexpr bool kKeepsFreed = __has_feature(address_sanitizer);
#else
inline constexpr bool kNoForks = false, kKeepsFreed = false;
#endif

/// Of this process; ranks can be forked while it has none but the one.
inline bool has_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks)) > 1;
}

/// fork() of a process that has no other thread. One that held a lock of the allocator (those of
/// AddressSanitizer are not released in a child) would hold it in the child for ever.
inline pid_t fork_alone() {
  // A thread that was joined may be listed for a moment.
  for (int look = 0; !kNoForks && has_threads(); ++look) {
    if (look == 30'000) throw std::logic_error("fork_alone: this process has threads");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::fork();
}

}  // namespace tutti
