#include "tutti/store.h"

#include <fmt/format.h>

#include <algorithm>

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
// then, and is removed.
void Store::barrier(std::string_view name, int world_size, Timeout timeout) {
  if (world_size < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("store barrier '{}' for {} callers", name, world_size));
  }
  const TimeLeft left(timeout);
  const std::int64_t arrived = add(fmt::format("{}/arrived", name), 1, timeout);
  const std::int64_t round = (arrived - 1) / world_size;
  const std::string door = fmt::format("{}/door/{}", name, round);
  if (arrived % world_size == 0) {
    set(door, "", left());
    if (round > 0) erase(fmt::format("{}/door/{}", name, round - 1), left());
    return;
  }
  try {
    wait(std::span(&door, 1), left());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    throw Error(
        ErrorCode::kTimeout,
        fmt::format("store barrier '{}': {} of {} callers had come after {:.3g} s; the name "
                    "cannot be used again",
                    name, add(fmt::format("{}/arrived", name), 0, Timeout(0)) - round * world_size,
                    world_size, std::chrono::duration<double>(timeout).count()));
  }
}

}  // namespace tutti
