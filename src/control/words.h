// Small things that the parts of Membership share: times and ranks in words, a Request as the board
// shows it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "control/describe.h"
#include "tutti/request.h"

namespace tutti::control {

using Clock = Deadline::Clock;

/// The longest pause between two looks at the board, and after a failure was found.
inline constexpr std::chrono::nanoseconds kLongestBackoff = std::chrono::milliseconds(100);

std::string seconds(std::chrono::nanoseconds duration);  ///< "0.05 s"
std::string budget_text(const Deadline& deadline);       ///< the same, of what it was given
std::string ranks_text(const std::vector<int>& ranks);   ///< "rank 3", "ranks 0-2, 5"

std::string times_text(std::uint64_t count, std::string_view what);  ///< "1 op", "2 ops"

/// "all_reduce #41(f32 x 1000, sum) at train.cc:88"; of a message without a number.
std::string describe_numbered(const Slot& slot, const Shown& shown);
/// "new_group({0, 1}) at train.cc:88": the call that makes the group of a line.
std::string describe_making(const Slot& slot, const Line& line);

/// `now + duration` without overflow.
inline Clock::time_point after(Clock::time_point now, std::chrono::nanoseconds duration) noexcept {
  return duration > Clock::time_point::max() - now ? Clock::time_point::max() : now + duration;
}

/// What the board shows of `request`; of a message its tag stands where others have their chain.
inline Shown shown_of(const Request& request, std::uint8_t site) noexcept {
  Shown value;
  value.seq = request.seq;
  value.chain =
      is_message(request.op) ? static_cast<std::uint64_t>(request.message.tag) : request.chain;
  value.count = request.count;
  value.factor = request.reduce.factor();
  value.op = op_byte(request);
  value.dtype = static_cast<std::uint8_t>(request.dtype);
  value.reduce = static_cast<std::uint8_t>(request.reduce.kind());
  value.site = site;
  value.root_or_peer = root_or_peer(request);
  return value;
}

}  // namespace tutti::control
