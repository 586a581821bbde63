// Bytes from a pipe become whole lines.
//
// A *line* ends with \n. A *draft* is text followed by \r: a progress bar that will be overwritten;
// only its last state counts when the line ends. A \r without text before it changes nothing: \r\n
// ends a line, and so does \r\r\n, which a terminal makes of it. A line longer than kLongestLine is
// cut into pieces of that length so that one rank without newlines cannot take the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::launch {

enum class Stream : int { out = 0, err = 1 };
inline std::size_t index(Stream stream) noexcept { return static_cast<std::size_t>(stream); }

/// Some of a rank's streams: a set of bits, as torchrun writes it.
using StreamSet = std::uint8_t;
inline constexpr StreamSet kNoStream = 0, kBothStreams = 3;
constexpr bool has(StreamSet set, Stream stream) noexcept {
  return (set >> static_cast<int>(stream) & 1) != 0;
}

inline constexpr std::size_t kLongestLine = std::size_t{1} << 20;

class LineSplitter {
 public:
  using Emit = std::function<void(std::string_view line, bool is_draft)>;

  /// Calls `emit` for every line and draft that `bytes` completes; the text has no line end.
  void feed(std::string_view bytes, const Emit& emit);
  /// The end of the stream: a line without \n is emitted too.
  void finish(const Emit& emit);

 private:
  std::string partial_;
  std::string draft_;  ///< the last of the line that has not ended
};

/// The last lines of one rank, for the post-mortem. Those that say of what a C++ program died
/// ("terminate called ...", "  what():  ...") stay when a backtrace follows that is longer.
class Tail {
 public:
  explicit Tail(std::size_t most_lines = 10) : most_lines_(most_lines) {}
  /// `shown` is the line's number on the screen; 0: it went elsewhere.
  void add(std::string_view line, std::uint64_t shown = 0);
  /// None if the screen still shows all of them, which are those with numbers from `screen` on;
  /// else all: the reason stands in the last.
  std::vector<std::string> lines(std::uint64_t screen = UINT64_MAX) const;

 private:
  struct Line {
    std::string text;
    std::uint64_t shown;
  };
  std::size_t most_lines_;
  std::deque<Line> cries_, lines_;
};

/// `text` with every control character except tab made visible: "\x1b".
std::string without_control_characters(std::string_view text);

/// The same of the first `most` bytes, and "..." if there are more: a text of others in a message.
std::string excerpt(std::string_view text, std::size_t most = 80);

/// As much of `text` as fits into `columns` columns of a terminal. Escape sequences and the
/// continuation bytes of UTF-8 take none.
std::string_view first_columns(std::string_view text, int columns);

}  // namespace tutti::launch
