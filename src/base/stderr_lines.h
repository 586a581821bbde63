// Lines for stderr that never make their writer wait: the control thread logs, and a reader of
// stderr that has stopped reading must not stop it. What has no room stays in a queue.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti {

/// Threads  One at a time.
class StderrLines {
 public:
  /// Writes what there is room for; keeps the rest. A line that would make that too long is lost,
  /// and a line that says so comes when there is room again.
  void add(std::string line);
  /// Goes on where it stopped.
  void write_some() noexcept;
  /// Without memory: behind `prefix`, cut to what a pipe with room takes at once, past the queue.
  static void write_bare(std::string_view prefix, std::string_view text) noexcept;
  bool empty() const noexcept { return waiting_.empty() && lost_ == 0; }

 private:
  std::string waiting_;
  std::size_t lost_ = 0;
};

}  // namespace tutti
