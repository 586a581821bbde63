// A rank of `tutti run --max-restarts 0 -n N loss_rank`: the last one kills itself in the middle of
// operations on device memory; the others say after how long they were told, and go on.
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "device/driver_memory.h"
#include "tutti/tutti.h"

namespace {

using Clock = std::chrono::steady_clock;
using tutti::standin::buffer_of;
using tutti::standin::DeviceArray;
using tutti::standin::TestStream;

constexpr std::size_t kCount = std::size_t{1} << 20;
constexpr int kLast = 20;  // operations that all ranks do

/// Milliseconds from the last operation that all did to the failure; the culprits are checked.
double told_after(tutti::ProcessGroup& world, const tutti::Buffer& buffer) {
  const Clock::time_point begin = Clock::now();
  try {
    for (;;) world.all_reduce(buffer, tutti::ReduceOp::avg);
  } catch (const tutti::Error& error) {
    const std::vector<int> lost = {world.world_size() - 1};
    if (error.code() != tutti::ErrorCode::kPeerLost || error.context().culprits != lost) throw;
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  }
}

int run(const std::string& backend) {
  auto world = tutti::init_process_group({.backend = backend, .timeout = std::chrono::seconds(30)});
  const TestStream stream(0);
  DeviceArray<float> x(0, std::vector<float>(kCount, 1));
  for (int i = 0; i < kLast; ++i) world.all_reduce(buffer_of(x, stream), tutti::ReduceOp::avg);
  if (world.rank() == world.world_size() - 1) ::kill(::getpid(), SIGKILL);
  const double milliseconds = told_after(world, buffer_of(x, stream));
  std::vector<int> survivors(static_cast<std::size_t>(world.world_size()) - 1);
  std::iota(survivors.begin(), survivors.end(), 0);
  auto rest = world.new_group(survivors);
  x.upload(std::vector<float>(kCount, 1), stream.stream());
  rest.all_reduce(buffer_of(x, stream));
  const bool is_right = x.download(stream.stream()) ==
                        std::vector<float>(kCount, static_cast<float>(rest.world_size()));
  rest.close();
  std::printf("rank %d of %d over %s: told of rank %d after %.1f ms; the survivors' sum is %s\n",
              world.rank(), world.world_size(), backend.c_str(), world.world_size() - 1,
              milliseconds, is_right ? "right" : "wrong");
  return is_right && milliseconds < 1000 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  return run(argc > 1 ? argv[1] : "native");
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 2;
}
