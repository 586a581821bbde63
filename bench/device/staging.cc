// One rank of the bench of staged operations: `tutti run -n 2 bench_staging`.
//
// Compares all_reduce of device memory with its limit, measured in the same run: the copy in, the
// reduction of pinned memory by native and the copy out, all at once on unrelated data.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device/driver_memory.h"
#include "tutti/tutti.h"

namespace {

using Clock = std::chrono::steady_clock;
using tutti::standin::DeviceArray;
using tutti::standin::PinnedArray;
using tutti::standin::TestStream;

constexpr int kRounds = 7;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// Time of `work` between two barriers, the longest of all ranks.
double timed(tutti::ProcessGroup& world, const std::function<void()>& work) {
  world.barrier();
  const Clock::time_point begin = Clock::now();
  work();
  double took = seconds(begin, Clock::now());
  world.all_reduce(took, tutti::ReduceOp::max);
  return took;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::size_t byte_count = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::size_t{256})
                                 << 20;
  const std::size_t count = byte_count / sizeof(float);
  auto world = tutti::init_process_group({.backend = "native"});
  const TestStream stream(0), in(0), out(0);
  const DeviceArray<float> device(0, count);
  DeviceArray<float> other(0, count), third(0, count);
  const PinnedArray<float> reduced(0, count), from(0, count);
  PinnedArray<float> to(0, count);
  const tutti::Buffer buffer = tutti::standin::buffer_of(device, stream);
  std::fill_n(reduced.data(), count, 1.0F);
  const tutti::Buffer host(reduced.data(), count, tutti::DType::f32);

  std::vector<double> staged, limit, copy_in, copy_out, reduction;
  for (int round = -1; round < kRounds; ++round) {
    const double a = timed(world, [&] {
      world.all_reduce(buffer, tutti::ReduceOp::avg);
      stream.synchronize();
    });
    const double b = timed(world, [&] {
      to.load(other, in.stream());
      third.load(from, out.stream());
      world.all_reduce(host, tutti::ReduceOp::avg);
      in.synchronize();
      out.synchronize();
    });
    const double c = timed(world, [&] {
      to.load(other, in.stream());
      in.synchronize();
    });
    const double d = timed(world, [&] {
      third.load(from, out.stream());
      out.synchronize();
    });
    const double e = timed(world, [&] { world.all_reduce(host, tutti::ReduceOp::avg); });
    if (round < 0) continue;
    staged.push_back(a);
    limit.push_back(b);
    copy_in.push_back(c);
    copy_out.push_back(d);
    reduction.push_back(e);
  }
  if (world.rank() == 0) {
    const double gigabytes = static_cast<double>(byte_count) / 1e9;
    const auto rate = [&](const std::vector<double>& times) { return gigabytes / median(times); };
    std::printf("all_reduce of %zu MiB on %d ranks of one device, GB/s (medians of %d):\n",
                byte_count >> 20, world.world_size(), kRounds);
    std::printf("  staged %.2f; all at once on unrelated data %.2f; ratio %.3f\n", rate(staged),
                rate(limit), median(limit) / median(staged));
    std::printf("  alone: copy in %.2f, copy out %.2f, reduction of pinned memory %.2f\n",
                rate(copy_in), rate(copy_out), rate(reduction));
  }
  for (const std::size_t small : {std::size_t{2}, std::size_t{262144}}) {
    tutti::Buffer part = buffer;
    part.count = small;
    const tutti::Buffer on_host(reduced.data(), small, tutti::DType::f32);
    std::vector<double> there, here;
    for (int round = 0; round < 200; ++round) {
      there.push_back(timed(world, [&] {
        world.all_reduce(part);
        stream.synchronize();
      }));
      here.push_back(timed(world, [&] { world.all_reduce(on_host); }));
    }
    if (world.rank() == 0) {
      std::printf("  %zu bytes: staged %.1f us, on the host %.1f us\n", small * sizeof(float),
                  median(there) * 1e6, median(here) * 1e6);
    }
  }
  world.close();
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 1;
}
