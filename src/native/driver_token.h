// Who steps a queue: one thread at a time, and nobody waits for the right to.
#pragma once

#include <atomic>
#include <thread>

namespace tutti::native {

/// A lock that is mostly tried. Whoever fails to take it may go to sleep on the rank's doorbell:
/// `give` then tells the holder to ring it.
class DriverToken {
 public:
  bool try_take() noexcept {
    if (!taken_.load(std::memory_order_relaxed) && !taken_.exchange(true)) return true;
    // Either this second attempt succeeds, or the holder has not given yet and will see the mark:
    // all four accesses are seq_cst.
    refused_.store(true);
    return !taken_.exchange(true);
  }
  /// Until the holder has given it. That is soon: none waits while it holds it, but one that fails
  /// the group together with other hosts, until they have agreed.
  void take() noexcept {
    while (!try_take()) std::this_thread::yield();
  }
  /// True: somebody was refused meanwhile and may sleep; ring the own doorbell.
  [[nodiscard]] bool give() noexcept {
    taken_.store(false);
    return refused_.load() && refused_.exchange(false);
  }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<bool> refused_{false};
};

}  // namespace tutti::native
