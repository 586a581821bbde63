// Workloads without libtorch: `collectives` (random operations of random sizes, the same on all
// ranks) and `training` (buckets reduced asynchronously while the next is computed).
#include <memory>
#include <random>
#include <vector>

#include "soak/kills_rank.h"
#include "tutti/tutti.h"

namespace {

using tutti::ProcessGroup;
using tutti::Work;

void run_one_collective(ProcessGroup& world, std::mt19937& random) {
  std::vector<float> data(1 + random() % (1u << (random() % 18)), 1.0f);
  const int root = static_cast<int>(random() % static_cast<unsigned>(world.world_size()));
  switch (random() % 4) {
    case 0:
      world.all_reduce(data);
      break;
    case 1:
      world.broadcast(data, {.root = root});
      break;
    case 2:
      world.reduce(data, {.root = root});
      break;
    default:
      world.barrier();
  }
}

/// One step of training: gradients become ready bucket by bucket.
void train_once(ProcessGroup& world, std::vector<std::vector<float>>& buckets) {
  std::vector<Work> works;
  for (std::vector<float>& bucket : buckets) {
    for (float& gradient : bucket) gradient = gradient * 0.5f + 1.0f;
    works.push_back(world.all_reduce(bucket, tutti::ReduceOp::avg, tutti::async));
  }
  for (Work& work : works) work.wait();
}

tutti::soak::Step make_step(ProcessGroup& world, const std::string& workload) {
  if (workload == "training") {
    return [&world, buckets = std::vector(8, std::vector<float>(64 * 1024))]() mutable {
      train_once(world, buckets);
    };
  }
  return [&world, random = std::mt19937(7)]() mutable { run_one_collective(world, random); };
}

}  // namespace

int main(int argc, char** argv) {
  return tutti::soak::run_until_a_loss(argc, argv, {.make_step = make_step});
}
