#include "tutti/store.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {

Store::~Store() = default;

// Rounds of one barrier are told apart by counting: the caller that makes the count a multiple of
// the size opens the door of its round. The door of the round before has been passed by everybody
// then, and is removed.
void Store::barrier(std::string_view name, int world_size, Timeout timeout) {
  if (world_size < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("store barrier '{}' for {} callers", name, world_size));
  }
  const auto end = std::chrono::steady_clock::now() + timeout;
  const std::int64_t arrived = add(fmt::format("{}/arrived", name), 1, timeout);
  const std::int64_t round = (arrived - 1) / world_size;
  const std::string door = fmt::format("{}/door/{}", name, round);
  const auto left = [&] {
    using Time = std::chrono::milliseconds;
    return std::max(Time(0), std::chrono::ceil<Time>(end - std::chrono::steady_clock::now()));
  };
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
