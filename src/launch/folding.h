// Ranks that print the same line are shown once, with all their numbers.
//
// A line waits a moment for the other ranks to print it too. Lines of one rank keep their order: a
// line joins an equal one only behind the last of its own rank, or takes the place right there.
// What stands at the front is shown when all ranks have said it, or when its moment is over, which
// is never later than that of a line behind it.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "launch/lines.h"

namespace tutti::launch {

class Folding {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::duration kMoment = std::chrono::milliseconds(200);
  static constexpr std::size_t kMost = 4096;  ///< lines that wait; then the oldest is shown

  struct Folded {
    std::vector<int> ranks;  ///< ascending
    Stream stream = Stream::out;
    std::string line;
  };

  /// `ranks`: how many print.
  explicit Folding(int ranks) : last_(static_cast<std::size_t>(ranks)) {}

  void add(int rank, Stream stream, std::string_view line, Clock::time_point now);
  /// Those to be shown by now, in order.
  std::vector<Folded> take(Clock::time_point now);
  Clock::time_point next_due() const noexcept;

 private:
  struct Waiting {
    Folded folded;
    Clock::time_point until;
  };
  std::deque<Waiting> waiting_;
  std::size_t taken_ = 0;          ///< how many were shown: places count from the first ever
  std::vector<std::size_t> last_;  ///< by rank: the place behind its last line
};

}  // namespace tutti::launch
