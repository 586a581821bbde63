#include "base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <utility>

#include "base/config.h"

namespace tutti {
namespace {

constexpr int kUnset = -1;
std::atomic<int> process_rank{kUnset};
thread_local int thread_rank = kUnset;
std::atomic<int> threshold{kUnset};

struct Sink {
  std::mutex mutex;
  LogCallback callback;
};

Sink& sink() {
  static auto* const the_sink = new Sink;  // outlives every static destructor that logs
  return *the_sink;
}

void write_to_stderr(std::string line) noexcept {
  line += '\n';
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads: there is nowhere left to say so
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

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
  int expected = kUnset;
  process_rank.compare_exchange_strong(expected, rank);
}

void set_log_callback(LogCallback callback) {
  const std::lock_guard lock(sink().mutex);
  sink().callback = std::move(callback);
}

void log(LogLevel level, std::string_view text) noexcept {
  const int errno_before = errno;
  try {
    if (log_enabled(level)) {
      const int rank = thread_rank != kUnset ? thread_rank : process_rank.load();
      std::string line = rank == kUnset ? fmt::format("tutti: {}", text)
                                        : fmt::format("tutti: rank {}: {}", rank, text);
      const std::lock_guard lock(sink().mutex);
      if (sink().callback) {
        sink().callback(level, line);
      } else {
        write_to_stderr(std::move(line));
      }
    }
  } catch (...) {  // out of memory, or a callback that throws: a log line is not worth a crash
  }
  errno = errno_before;
}

}  // namespace tutti
