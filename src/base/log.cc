#include "base/log.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/config.h"
#include "base/rank_thread.h"
#include "base/stderr_lines.h"
#include "base/undying.h"
#include "base/wait.h"

namespace tutti {
namespace {

constexpr int kUnset = -1;
std::atomic<int> process_rank{kUnset};
thread_local int thread_rank = kUnset;
std::atomic<int> threshold{kUnset};

struct Sink {
  std::mutex mutex;
  LogCallback callback;  // mutex
  StderrLines lines;     // mutex
  int flushers = 0;      // mutex
};

/// How long a line waits for room in a process where nobody else would write it later.
constexpr std::chrono::milliseconds kPatience{100};

/// Static destructors may log.
Sink& sink() { return undying<Sink>(); }

LogLevel current_threshold() noexcept {
  int level = threshold.load(std::memory_order_relaxed);
  if (level == kUnset) {
    level = static_cast<int>(log_level_of_process());
    int expected = kUnset;
    if (!threshold.compare_exchange_strong(expected, level)) level = expected;
  }
  return static_cast<LogLevel>(level);
}

}  // namespace

std::string_view name_of(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::error:
      return "error";
    case LogLevel::warn:
      return "warn";
    case LogLevel::info:
      return "info";
    case LogLevel::debug:
      return "debug";
  }
  return "?";
}

bool log_enabled(LogLevel level) noexcept { return level <= current_threshold(); }

void set_log_level(LogLevel level) noexcept { threshold.store(static_cast<int>(level)); }

void set_log_rank(int rank) noexcept {
  thread_rank = rank;
  if (this_rank_thread() != nullptr) return;  // the process is several
  int expected = kUnset;
  process_rank.compare_exchange_strong(expected, rank);
}

void set_log_callback(LogCallback callback) {
  const std::lock_guard lock(sink().mutex);
  sink().callback = std::move(callback);
}

void log(LogLevel level, std::string_view text) noexcept {
  const int errno_before = errno;
  const int rank = thread_rank != kUnset ? thread_rank : process_rank.load();
  bool is_late = false;
  try {
    if (log_enabled(level)) {
      std::string line = rank == kUnset ? fmt::format("tutti: {}", text)
                                        : fmt::format("tutti: rank {}: {}", rank, text);
      const std::lock_guard lock(sink().mutex);
      if (sink().callback) {
        sink().callback(level, line);
      } else {
        sink().lines.add(std::move(line));
        is_late = !sink().lines.empty() && sink().flushers == 0;
      }
    }
    if (is_late) flush_log(kPatience);
  } catch (const std::bad_alloc&) {
    std::array<char, 40> prefix;
    const auto end = rank == kUnset ? fmt::format_to(prefix.data(), "tutti: ")
                                    : fmt::format_to(prefix.data(), "tutti: rank {}: ", rank);
    StderrLines::write_bare({prefix.data(), end}, text);
  } catch (...) {  // a callback that throws: a log line is not worth a crash
  }
  errno = errno_before;
}

void add_log_flusher(int change) noexcept {
  const std::lock_guard lock(sink().mutex);
  sink().flushers += change;
}

bool flush_log(std::chrono::milliseconds patience) noexcept {
  constexpr std::chrono::milliseconds kPause{2};
  const auto end = Deadline::Clock::now() + patience;
  Doorbell nobody;  // stderr rings none
  for (;;) {
    {
      // Not behind a callback of the program that takes long.
      const std::unique_lock lock(sink().mutex, std::try_to_lock);
      if (lock.owns_lock()) sink().lines.write_some();
      if (lock.owns_lock() && sink().lines.empty()) return true;
    }
    if (Deadline::Clock::now() >= end) return false;
    wait_until(nobody, Deadline::Clock::now() + kPause, [] { return false; });
  }
}

}  // namespace tutti
