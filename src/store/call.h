// One operation on a store as a value, its answer, and how both look in a frame.
//
// Every kind of store speaks in *calls*: a command with keys, values and a number. Commands that
// *wait* (get, wait) have no answer until all their keys exist. The limits hold before anything is
// allocated or sent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/frame.h"
#include "tutti/error.h"

namespace tutti::store {

inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxCallKeys = 4096;
inline constexpr std::size_t kMaxCulprits = 4096;                    ///< of a failure
inline constexpr std::size_t kMaxCallBytes = std::size_t{64} << 20;  ///< of a call or an answer

/// The numeric values are part of the wire format: append only.
enum class Command : std::uint32_t {
  set = 1,          ///< keys, as many values
  get = 2,          ///< keys; waits; answers with values
  try_get = 3,      ///< one key; answers with one value or none
  add = 4,          ///< one key and the number; answers with the sum
  compare_set = 5,  ///< one key, values {expected, desired}; answers with the value
  wait = 6,         ///< keys; waits
  check = 7,        ///< keys; answers 1 if all exist
  erase = 8,        ///< one key; answers 1 if it was there
  num_keys = 9,     ///< answers with a number
  append = 10,      ///< one key, one value
  will = 11,        ///< for when the connection has ended (Will); without keys: there is none
};
inline constexpr bool is_waiting(Command command) {
  return command == Command::get || command == Command::wait;
}
std::string_view name_of(Command command) noexcept;

struct Call {
  Command command = Command::num_keys;
  std::vector<std::string> keys = {};
  std::vector<std::string> values = {};
  std::int64_t number = 0;
};

/// What the server does for a client whose connection has ended: if the value of `key` is `value`
/// and the first of `absent` does not exist, those of them that do not exist become `text`, or
/// `silent_text` if the connection has ended because its host acknowledged nothing any more, or
/// `changed_text` if because a frame was changed on its way.
struct Will {
  std::string key = {};
  std::string value = {};
  std::vector<std::string> absent = {};
  std::string text = {};
  std::string silent_text = {};
  std::string changed_text = {};
};
Call call_of(const Will& will);
/// Empty when the call is not of that form.
std::optional<Will> will_of(const Call& call);

struct Answer {
  std::vector<std::string> values = {};
  std::int64_t number = 0;
};

/// kInvalidArgument, naming the offending key and its length, for what no store accepts: empty or
/// long keys, long values, too many of them.
void check_limits(const Call& call);

/// Types of frames: commands go up with an id, these come down with the same one.
inline constexpr std::uint32_t kFrameHello =
    100;  ///< {magic, version, rank, world size, job, world}
inline constexpr std::uint32_t kFrameWelcome = 101;  ///< {magic, version, code, flags, text}
inline constexpr std::uint32_t kFrameCancel = 102;   ///< gives up waiting; empty body
inline constexpr std::uint32_t kFrameAnswer = 103;   ///< an Answer
inline constexpr std::uint32_t kFrameFailed = 104;   ///< {code, text, culprits}
inline constexpr std::uint32_t kFrameMissing = 105;  ///< to a cancelled call: the keys not there

net::Frame encode(const Call& call, std::uint64_t id);
/// Empty when the frame is no well-formed call, or is beyond the limits of counts.
std::optional<Call> decode_call(const net::Frame& frame);
net::Frame encode(const Answer& answer, std::uint64_t id);
std::optional<Answer> decode_answer(const net::Frame& frame);
net::Frame encode_failed(const Error& error, std::uint64_t id);
Error decode_failed(const net::Frame& frame);
net::Frame encode_missing(std::span<const std::string> keys, std::uint64_t id);
std::vector<std::string> decode_missing(const net::Frame& frame);

/// "'a', 'b' and 3 more", for messages.
std::string format_keys(std::span<const std::string> keys);
/// kTimeout: "store get: keys 'a', 'b' were not set within 2.0 s (store at @x)".
Error missing_error(Command command, std::span<const std::string> missing, double seconds,
                    std::string_view place);

}  // namespace tutti::store
