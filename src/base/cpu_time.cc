#include "base/cpu_time.h"

#include <time.h>

namespace tutti {

std::chrono::nanoseconds thread_cpu_time() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace tutti
