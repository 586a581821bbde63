#include "tutti/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "store/call_store.h"

namespace tutti {

namespace {

/// What is left of `timeout`, counted from when this was made.
class TimeLeft {
 public:
  explicit TimeLeft(Store::Timeout timeout)
      : end_(Clock::now() + std::min(timeout, store::kLongest)) {}
  Store::Timeout operator()() const {
    return std::max(Store::Timeout(0), std::chrono::ceil<Store::Timeout>(end_ - Clock::now()));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end_;
};

/// Makes the count of a barrier negative for as long as anybody may count.
constexpr std::int64_t kEnded = -(std::int64_t{1} << 40);

std::string arrived_key(std::string_view name) { return fmt::format("{}/arrived", name); }

std::string door_key(std::string_view name, std::int64_t round) {
  return fmt::format("{}/door/{}", name, round);
}

/// Ends a barrier for all who wait, and who come later, and says why. Empty: the store does not
/// answer; it is asked to all the same.
std::string end_barrier(Store& store, std::string_view name, int world_size, double seconds) try {
  constexpr Store::Timeout kTime{250};
  const std::int64_t arrived = store.add(arrived_key(name), kEnded, kTime) - kEnded;
  if (arrived < 0) return "another caller's time was over before";
  const std::int64_t came = arrived == 0 ? 0 : (arrived - 1) % world_size + 1;
  const std::string why =
      fmt::format("{} of {} callers had come after {:.3g} s", came, world_size, seconds);
  // Else the last of them opens it.
  if (came < world_size) store.set(door_key(name, arrived / world_size), why, kTime);
  return why;
} catch (const Error&) {
  return {};
}

}  // namespace

Store::~Store() = default;

void Store::wait(std::span<const std::string> keys, Timeout timeout) {
  static_cast<void>(multi_get(keys, timeout));
}

bool Store::check(std::span<const std::string> keys, Timeout timeout) {
  const TimeLeft left(timeout);
  return std::all_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return try_get(key, left()).has_value(); });
}

std::vector<std::string> Store::multi_get(std::span<const std::string> keys, Timeout timeout) {
  const TimeLeft left(timeout);
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) values.push_back(get(key, left()));
  return values;
}

void Store::multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                      Timeout timeout) {
  if (keys.size() != values.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("store multi_set: {} keys and {} values", keys.size(), values.size()));
  }
  const TimeLeft left(timeout);
  for (std::size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i], left());
}

std::int64_t Store::num_keys(Timeout) {
  throw Error(ErrorCode::kUnsupported, "store num_keys: this store does not count its keys");
}

// Rounds of one barrier are told apart by counting: the caller that makes the count a multiple of
// the size opens the door of its round. The door of the round before has been passed by everybody
// then, and is removed. Whoever times out makes the count negative, and opens the door with a word
// to those who wait behind it.
void Store::barrier(std::string_view name, int world_size, Timeout timeout) {
  if (world_size < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("store barrier '{}' for {} callers", name, world_size));
  }
  const TimeLeft left(timeout);
  std::string why;
  try {
    const std::int64_t arrived = add(arrived_key(name), 1, timeout);
    if (arrived <= 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("store barrier '{}': it has timed out earlier, and its name cannot "
                              "be used again: take another for the next try",
                              name));
    }
    const std::int64_t round = (arrived - 1) / world_size;
    if (arrived % world_size == 0) {
      set(door_key(name, round), "", left());
      if (round > 0) erase(door_key(name, round - 1), left());
      return;
    }
    why = get(door_key(name, round), left());
    if (why.empty()) return;
    why += ", when another caller's time was over";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    why = end_barrier(*this, name, world_size, std::chrono::duration<double>(timeout).count());
    if (why.empty()) throw;
  }
  throw Error(ErrorCode::kTimeout,
              fmt::format("store barrier '{}': {}; the name cannot be used again", name, why));
}

}  // namespace tutti
