#include "store/watch.h"

#include <algorithm>
#include <chrono>

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
                                      Deadline& deadline, const std::function<void()>& look,
                                      const Late& late) {
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
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!store.check(keys.subspan(i, 1), kAside)) missing.push_back(i);
    }
    if (missing.empty()) return store.multi_get(keys, kAside);
    throw late(missing);
  }
}

}  // namespace tutti::store
