#include "base/memory_reserve.h"

#include <atomic>
#include <chrono>
#include <cstdlib>

#include "base/wait.h"

namespace tutti {

namespace {

/// Beyond the size from which malloc maps what is asked for, so that it goes back to the system.
constexpr std::size_t kBytes = std::size_t{1} << 20;

std::atomic<void*> reserve{nullptr};

}  // namespace

void hold_memory_reserve() noexcept {
  if (reserve.load() != nullptr) return;
  void* none = nullptr;
  void* const memory = std::malloc(kBytes);
  if (!reserve.compare_exchange_strong(none, memory)) std::free(memory);
}

void give_back_memory_reserve() noexcept { std::free(reserve.exchange(nullptr)); }

void pause_for_memory() noexcept {
  constexpr std::chrono::milliseconds kPause{20};
  Doorbell nobody;
  wait_until(nobody, Deadline::Clock::now() + kPause, [] { return false; });
}

}  // namespace tutti
