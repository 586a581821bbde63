#include "store/watch.h"

#include <algorithm>
#include <chrono>

#include "store/call.h"

namespace tutti::store {
namespace {

constexpr Store::Timeout kSlice{100};

/// How long a store may take to say what is missing, beyond the deadline.
constexpr Store::Timeout kAside{250};

}  // namespace

Store::Timeout timeout_of(Deadline& deadline) {
  const auto left = std::chrono::ceil<Store::Timeout>(deadline.left(Deadline::Clock::now()));
  return std::min<Store::Timeout>(left, std::chrono::hours(24));
}

std::vector<std::string> get_watching(Store& store, std::span<const std::string> keys,
                                      Deadline& deadline, const std::function<void()>& look) {
  deadline.start(Deadline::Clock::now());
  for (;;) {
    if (look) look();
    const Store::Timeout left = timeout_of(deadline);
    try {
      return store.multi_get(keys, std::min(left, kSlice));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
    }
    if (left > kSlice) continue;
    std::vector<std::string> missing;
    for (const std::string& key : keys) {
      if (!store.check(std::span(&key, 1), kAside)) missing.push_back(key);
    }
    if (missing.empty()) return store.multi_get(keys, kAside);
    const double seconds = std::chrono::duration<double>(deadline.budget()).count();
    throw missing_error(Command::get, missing, seconds, "the world's store");
  }
}

}  // namespace tutti::store
