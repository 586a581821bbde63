// Rank 0 deals out tasks, and whoever is done first gets the next; the answers are of any length.
// Shows objects, messages from any rank and of any count, and groups by color.
// Run it with: tutti run -n 4 ./task_farm
#include <tutti/objects.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

namespace {

struct Job {
  int task_count = 0;
  int numbers_per_task = 0;
};

constexpr int kNoMoreTasks = -1;

std::vector<int> find_primes(int begin, int end) {
  std::vector<int> primes;
  for (int number = std::max(begin, 2); number < end; ++number) {
    int divisor = 2;
    while (divisor * divisor <= number && number % divisor != 0) ++divisor;
    if (divisor * divisor > number) primes.push_back(number);
  }
  return primes;
}

/// Rank 0: every answer, the first and empty one too, asks for a task.
std::vector<int> deal(tutti::ProcessGroup& world, const Job& job) {
  std::vector<int> primes, answer;
  int task = 0;
  for (int workers = world.world_size() - 1; workers > 0;) {
    const tutti::MessageInfo from = world.recv_resize(answer, tutti::kAnyRank);
    primes.insert(primes.end(), answer.begin(), answer.end());
    if (task < job.task_count) {
      world.send(task++, from.rank);
    } else {
      world.send(kNoMoreTasks, from.rank);
      --workers;
    }
  }
  std::sort(primes.begin(), primes.end());  // they came in any order
  return primes;
}

/// The other ranks: how many primes this one has found.
int work(tutti::ProcessGroup& world, const Job& job) {
  int count = 0;
  std::vector<int> answer;
  for (;;) {
    world.send(answer, 0);
    int task = 0;
    world.recv(task, 0);
    if (task == kNoMoreTasks) return count;
    answer = find_primes(task * job.numbers_per_task, (task + 1) * job.numbers_per_task);
    count += static_cast<int>(answer.size());
  }
}

}  // namespace

int main() try {
  auto world = tutti::init_process_group();
  if (world.world_size() < 2) {
    std::fprintf(stderr, "task_farm: needs at least 2 ranks\n");
    return 2;
  }
  const bool is_dealer = world.rank() == 0;

  Job job;
  if (is_dealer) job = {.task_count = 20, .numbers_per_task = 500};
  tutti::broadcast_object(world, job);

  auto workers = world.split({.color = is_dealer ? -1 : 0});  // -1: in no group
  if (is_dealer) {
    const std::vector<int> primes = deal(world, job);
    std::printf("Rank 0 has %zu primes, the last is %d\n", primes.size(), primes.back());
  } else {
    int count = work(world, job);
    workers.all_reduce(count);
    std::printf("Rank %d: the %d workers have found %d\n", world.rank(), workers.world_size(),
                count);
  }
} catch (const std::exception& failure) {
  std::fprintf(stderr, "task_farm: %s\n", failure.what());
  return 1;
}
