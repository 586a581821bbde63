// What a call through Tutti costs beside NCCL itself: `tutti run -n 1 bench_nccl`. One rank, since
// NCCL wants a GPU for each; all_reduce then copies on the device.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/driver_memory.h"
#include "tutti/tutti.h"

namespace {

using Clock = std::chrono::steady_clock;
using tutti::standin::buffer_of;
using tutti::standin::DeviceArray;
using tutti::standin::TestStream;

/// NCCL, called as its own documentation shows.
class Raw {
 public:
  /// Not blocking, as Tutti calls it: so that a lost rank can be told.
  explicit Raw(bool is_blocking) : library_(::dlopen("libnccl.so.2", RTLD_NOW)) {
    if (library_ == nullptr) throw std::runtime_error(::dlerror());
    Id id;
    check(find<int(Id*)>("ncclGetUniqueId")(&id));
    Config config;
    config.blocking = is_blocking ? 1 : 0;
    settle(find<int(void**, int, Id, int, Config*)>("ncclCommInitRankConfig")(&communicator_, 1, id,
                                                                              0, &config));
    all_reduce_ = find<AllReduce>("ncclAllReduce");
  }
  ~Raw() { find<int(void*)>("ncclCommDestroy")(communicator_); }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;

  void all_reduce(const void* input, void* output, std::size_t count, void* stream) {
    constexpr int kFloat = 7, kSum = 0;
    settle(all_reduce_(input, output, count, kFloat, kSum, communicator_, stream));
  }

 private:
  struct Id {
    char bytes[128];
  };
  using AllReduce = int(const void*, void*, std::size_t, int, int, void*, void*);

  /// ncclConfig_t of NCCL 2.14, which later ones take for what it is.
  struct Config {
    std::size_t size = 24;
    unsigned int magic = 0xcafebeef;
    unsigned int version = 21400;
    int blocking = 1;
    int unused = 0;
  };
  void settle(int result) {
    constexpr int kInProgress = 7;
    const auto state = find<int(void*, int*)>("ncclCommGetAsyncError");
    while (result == kInProgress) check(state(communicator_, &result));
    check(result);
  }

  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, name));
  }
  static void check(int result) {
    if (result != 0) throw std::runtime_error("NCCL: error " + std::to_string(result));
  }

  void* library_;
  void* communicator_ = nullptr;
  AllReduce* all_reduce_ = nullptr;
};

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

/// Microseconds of one of `times` calls, each until it is done on the device.
double microseconds(int times, const std::function<void()>& call) {
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < times; ++i) call();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / times;
}

}  // namespace

int main() try {
  auto world = tutti::init_process_group({.backend = "nccl"});
  const TestStream stream(0);
  const tutti::standin::OnDevice current(0);  // for NCCL
  Raw blocking(true), nonblocking(false);
  constexpr int kPairs = 7;
  std::printf("one all_reduce of one rank, until the device is done, us (medians of %d pairs)\n",
              kPairs);
  for (const std::size_t byte_count :
       {std::size_t{8}, std::size_t{1} << 20, std::size_t{256} << 20}) {
    const std::size_t count = byte_count / sizeof(float);
    const DeviceArray<float> input(0, count), output(0, count);
    const tutti::Buffer in = buffer_of(input, stream), out = buffer_of(output, stream);
    const auto by = [&](Raw& raw) {
      return [&] {
        raw.all_reduce(input.data(), output.data(), count, stream.stream().handle);
        stream.synchronize();
      };
    };
    const auto by_nccl = by(blocking), by_polling = by(nonblocking);
    const auto by_tutti = [&] {
      world.all_reduce(in, out);
      stream.synchronize();
    };
    const int times = byte_count > (std::size_t{64} << 20) ? 20 : 300;
    microseconds(times, by_nccl);
    microseconds(times, by_polling);
    microseconds(times, by_tutti);
    std::vector<double> nccl, polling, own, difference;
    for (int pair = 0; pair < kPairs; ++pair) {
      nccl.push_back(microseconds(times, by_nccl));
      polling.push_back(microseconds(times, by_polling));
      own.push_back(microseconds(times, by_tutti));
      difference.push_back(own.back() - nccl.back());
    }
    std::printf("  %10zu bytes: NCCL %.2f (not blocking %.2f), Tutti %.2f, more %.2f (%.1f %%)\n",
                byte_count, median(nccl), median(polling), median(own), median(difference),
                100 * median(difference) / median(nccl));
  }
  world.close();
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 1;
}
