// Ranks that say the same are heard once.
//
// Every rank of a failed group logs one cause, and once more where nobody catches it. The *cause*
// of a line of the library, "tutti: rank 2: uncaught ... all_reduce #7 (rank 2): rank 1 was lost
// ...", is what follows the words about the rank itself.
#pragma once

#include <chrono>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::launch {

class Repeats {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::duration kWindow = std::chrono::seconds(2);

  /// Whether the cause of this line was said within the window, by any rank.
  bool is_repeat(int rank, std::string_view line, Clock::time_point now);
  /// When the oldest window closes; max: none is open.
  Clock::time_point next_close() const noexcept;
  /// Closes the windows that end until `now`; one line for people for each in which lines were
  /// folded.
  std::vector<std::string> close(Clock::time_point now);

 private:
  struct Said {
    std::string cause;
    Clock::time_point until;
    std::set<int> ranks;     ///< whose lines were folded
    std::set<int> uncaught;  ///< of them those that ended by it
    int folded = 0;
  };
  std::deque<Said> said_;  ///< the oldest first
};

}  // namespace tutti::launch
