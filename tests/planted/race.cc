// A flag published with a relaxed store instead of a release store: the mistake that corrupts a
// shared-memory collective once in a million. Built under TSan only, which must report it.
#include <atomic>
#include <thread>

int main() {
  int payload = 0;
  std::atomic<int> flag{0};
  std::thread writer([&] {
    payload = 1;
    flag.store(1, std::memory_order_relaxed);  // planted: must be memory_order_release
  });
  while (flag.load(std::memory_order_acquire) == 0) {
  }
  const int seen = payload;
  writer.join();
  return seen == 1 ? 0 : 1;
}
