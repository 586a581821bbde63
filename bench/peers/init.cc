// How long does it take to become a world? Each rank prints when it called init_process_group and
// when that returned, in ns of the clock that all processes of this machine share.
#include <tutti/tutti.h>

#include <chrono>
#include <cstdio>

int main() {
  const auto called = std::chrono::steady_clock::now().time_since_epoch();
  tutti::ProcessGroup world = tutti::init_process_group();
  const auto returned = std::chrono::steady_clock::now().time_since_epoch();
  std::printf("init %lld %lld\n", static_cast<long long>(std::chrono::nanoseconds(called).count()),
              static_cast<long long>(std::chrono::nanoseconds(returned).count()));
  world.close();
}
