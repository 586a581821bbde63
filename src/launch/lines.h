// Bytes from a pipe become whole lines.
//
// A *line* ends with \n. A *draft* is text followed by \r: a progress bar that will be overwritten;
// only its last state counts when the line ends. A line longer than kLongestLine is cut into pieces
// of that length so that one rank without newlines cannot take the memory.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace tutti::launch {

inline constexpr std::size_t kLongestLine = 64 * 1024;

class LineSplitter {
 public:
  using Emit = std::function<void(std::string_view line, bool is_draft)>;

  /// Calls `emit` for every line that `bytes` completes; the text has no line end.
  void feed(std::string_view bytes, const Emit& emit);
  /// The end of the stream: a line without \n is emitted too.
  void finish(const Emit& emit);

 private:
  std::string partial_;
  std::string draft_;
  bool after_return_ = false;  ///< the last byte was \r
};

/// The last lines of one rank, for the post-mortem.
class Tail {
 public:
  explicit Tail(std::size_t most_lines = 10) : most_lines_(most_lines) {}
  void add(std::string_view line);
  const std::deque<std::string>& lines() const noexcept { return lines_; }

 private:
  std::size_t most_lines_;
  std::deque<std::string> lines_;
};

/// `text` with every control character except tab made visible: "\x1b".
std::string without_control_characters(std::string_view text);

/// As much of `text` as fits into `columns` columns of a terminal. Escape sequences and the
/// continuation bytes of UTF-8 take none.
std::string_view first_columns(std::string_view text, int columns);

}  // namespace tutti::launch
