// What the ranks print becomes what `tutti run` prints: whole lines, never mixed.
//
// Lines stand in a queue, one for stdout and stderr where both end in one pipe or terminal, so that
// a line is finished before another begins; else one for each, so that neither waits for the
// other's reader. Writing never blocks, whoever else writes there and whoever does not read: the
// queue's head is written when the descriptor has room; while the queue is long the pipes of the
// ranks are not read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "launch/folding.h"
#include "launch/lines.h"
#include "launch/repeats.h"
#include "net/fd.h"

namespace tutti::launch {

/// How it looks.
struct OutputStyle {
  bool names_streams = false;         ///< "[3]<stderr> " stands before a line, also of one rank
  bool folds = false;                 ///< lines that several ranks print are shown once
  std::vector<StreamSet> shown = {};  ///< by rank; none: both streams of all
};

class Output {
 public:
  /// Writes to `out_fd` and `err_fd`. With one rank its bytes pass as they are, unless the style
  /// asks for lines.
  Output(int ranks, int out_fd, int err_fd, OutputStyle style = {});

  void feed(int rank, Stream stream, std::string_view bytes);
  void finish(int rank, Stream stream);
  /// A line of our own on stderr.
  void say(std::string_view line);

  /// Columns that stand before a line of this rank.
  int prefix_columns(int rank) const;
  bool is_long() const noexcept { return queued_bytes_ > kLongQueue; }
  /// The descriptor that this queue waits for until it takes bytes; -1 when nothing is queued.
  int awaited(Stream queue) const noexcept;
  /// Writes at most one piece to the awaited descriptor.
  void write_some(Stream queue);
  /// Gives up what is queued for the awaited descriptor and whatever comes for it: its reader does
  /// not read. Says how much that was, on stderr if that is another.
  void drop_awaited(Stream queue);
  bool is_written() const noexcept { return queued_bytes_ == 0; }
  bool is_shown(int rank, Stream stream) const noexcept;
  /// The reader of this stream went away (EPIPE): ranks of whom it is shown learn it as well.
  bool is_closed(Stream stream) const noexcept { return ends_[index(stream)].closed; }
  /// Some of it could not be written (ENOSPC), as was said.
  bool has_lost(Stream stream) const noexcept { return ends_[index(stream)].complained; }

  /// When there is something to say that waits (say_due); max: there is nothing.
  Repeats::Clock::time_point next_due() const noexcept {
    return std::min(repeats_.next_close(), folding_.next_due());
  }
  void say_due(Repeats::Clock::time_point now);
  /// What this rank printed last; none where stderr's screen still shows all of it.
  std::vector<std::string> last_lines(int rank) const;
  /// The ranks are started again.
  void forget_last_lines() noexcept;

 private:
  static constexpr std::size_t kLongQueue = std::size_t{1} << 20;
  static constexpr std::uint64_t kScreen = 20;  ///< lines that a person still sees
  struct End {
    int fd = -1;
    net::Fd unblocking;  ///< the same pipe or terminal, opened again as ours alone
    bool is_terminal = false;
    bool on_screen = false;  ///< where stderr goes
    bool closed = false;
    bool complained = false;  ///< of an error other than a reader that went away
  };
  /// A line without its end, shown on the terminal's last line.
  struct Draft {
    std::string text;
    int rank = -1;
    Stream stream = Stream::out;
  };
  struct Piece {
    Stream stream;
    std::string bytes;
  };
  struct Queue {
    std::deque<Piece> pieces;
    std::size_t written = 0;  ///< of the first
  };
  /// What stands before a line of these ranks.
  std::string prefix(std::string_view ranks, Stream stream) const;
  void show_folded(Repeats::Clock::time_point now);
  LineSplitter& splitter(int rank, Stream stream);
  void print(int rank, Stream stream, std::string_view line, bool is_draft);
  void print_draft(int rank, Stream stream, const std::string& text);
  /// A whole line: goes above the draft, on whichever stream that was drawn.
  void queue_line(Stream stream, const std::string& text);
  void queue(Stream stream, std::string bytes);
  /// Stdout's lines stand in stderr's queue where both end in one file.
  Queue& queue_of(Stream stream) noexcept;
  void write_failed(Stream stream, int error);
  void pop(Queue& queue);

  int ranks_;
  OutputStyle style_;
  bool is_raw_;  ///< bytes pass as they are
  End ends_[2];
  Draft draft_;                          ///< text empty: none
  std::vector<LineSplitter> splitters_;  ///< by 2 * rank + stream
  std::vector<Tail> tails_;
  Repeats repeats_;
  Folding folding_;
  std::uint64_t lines_on_screen_ = 0;
  Queue queues_[2];
  std::size_t queued_bytes_ = 0;  ///< in both
};

}  // namespace tutti::launch
