// A rank of the soak `groups`: threads, each with a group of its own, run mixed operations at once,
// blocking and asynchronous, with random pauses. Two ranks have two groups, more have three that
// overlap. `groups_rank BACKEND OPERATIONS SEED`, started as ranks. With HOSTS, as 0,0,1,1, the
// ranks are threads of this one process that take themselves for ranks on those hosts.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tutti/test_kit.h"
#include "tutti/tutti.h"

namespace {

using namespace tutti;

constexpr std::size_t kMostPending = 4;
constexpr int kKinds = 8;

/// What the rank `rank` gives as element i of operation `round`: exact in f64, so that sums are.
double value(int round, int rank, std::size_t i) {
  return static_cast<double>((round * 31 + rank * 7 + static_cast<int>(i)) % 1000);
}

/// One operation under way: its buffers, and what must be in `out` when it has ended.
struct Operation {
  std::string name;
  std::vector<double> in, out, want;
  std::vector<std::size_t> counts;
  Work work;
  Work other;  // of the message that goes the other way

  void check() {
    work.wait();
    other.wait();
    if (out != want) throw std::runtime_error(name + ": wrong result");
  }
};

/// One thread's operations on one group. All members draw the same ones; pauses are a rank's own.
class Mixed {
 public:
  Mixed(ProcessGroup& group, std::uint64_t seed, std::uint64_t pause_seed)
      : group_(group), random_(seed), pauses_(pause_seed) {}

  void run(int operations) {
    for (int round = 0; round < operations; ++round) {
      if (pauses_() % 3 == 0) ::usleep(static_cast<useconds_t>(pauses_() % 200));
      pending_.push_back(start(round));
      if (pending_.size() > kMostPending || random_() % 4 == 0) finish();
    }
    finish();
  }

 private:
  void finish() {
    for (; !pending_.empty(); pending_.pop_front()) pending_.front()->check();
  }

  std::unique_ptr<Operation> start(int round) {
    auto operation = std::make_unique<Operation>();
    const auto kind = static_cast<int>(random_() % kKinds);
    const std::size_t count = random_() % 10 == 0 ? 20'000 : random_() % 100;
    const bool blocking = random_() % 2 == 0;
    fill(*operation, kind, round, count);
    call(*operation, kind, blocking);
    return operation;
  }

  std::vector<double> input_of(int round, int rank, std::size_t count) const {
    std::vector<double> data(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = value(round, rank, i);
    return data;
  }

  /// Buffers and the expected result.
  void fill(Operation& operation, int kind, int round, std::size_t count) const {
    const auto members = static_cast<std::size_t>(group_.world_size());
    const auto own = static_cast<std::size_t>(group_.rank());
    const bool in_parts = kind == 2 || kind == 3;  // reduce_scatter, all_to_all
    std::vector<std::vector<double>> inputs;
    for (std::size_t rank = 0; rank < members; ++rank) {
      inputs.push_back(input_of(round, static_cast<int>(rank), in_parts ? members * count : count));
    }
    operation.in = inputs[own];
    operation.counts.assign(members, count);
    std::vector<double>& want = operation.want;
    switch (kind) {
      case 0:  // all_reduce
      case 2:  // reduce_scatter
        want.assign(count, 0);
        for (const std::vector<double>& input : inputs) {
          for (std::size_t i = 0; i < count; ++i)
            want[i] += input[(kind == 2 ? own * count : 0) + i];
        }
        break;
      case 1:  // all_gather
      case 5:  // all_gatherv
      case 3:  // all_to_all
        for (const std::vector<double>& input : inputs) {
          const auto part =
              input.begin() + static_cast<std::ptrdiff_t>(kind == 3 ? own * count : 0);
          want.insert(want.end(), part, part + static_cast<std::ptrdiff_t>(count));
        }
        break;
      case 4:  // broadcast from rank 1
        want = inputs[1];
        break;
      case 6:  // send to the next one, receive from the one before
        want = inputs[(own + members - 1) % members];
        break;
      default:  // barrier
        operation.in.clear();
    }
    operation.out.resize(want.size());
  }

  void call(Operation& operation, int kind, bool blocking) {
    const int members = group_.world_size();
    const int next = (group_.rank() + 1) % members;
    const int before = (group_.rank() + members - 1) % members;
    auto& [name, in, out, want, counts, work, other] = operation;
    switch (kind) {
      case 0:
        name = "all_reduce";
        work = group_.all_reduce(in, out, {}, async);
        break;
      case 1:
        name = "all_gather";
        work = group_.all_gather(in, out, async);
        break;
      case 2:
        name = "reduce_scatter";
        work = group_.reduce_scatter(in, out, {}, async);
        break;
      case 3:
        name = "all_to_all";
        work = group_.all_to_all(in, out, async);
        break;
      case 4:
        name = "broadcast";
        if (group_.rank() == 1) out = in;
        work = group_.broadcast(out, {.root = 1}, async);
        break;
      case 5:
        name = "all_gatherv";
        work = group_.all_gatherv(in, out, counts, {}, async);
        break;
      case 6:
        name = "messages";
        other = group_.send(in, next, async);
        if (blocking) {
          group_.recv(out, before);
        } else {
          work = group_.recv(out, before, async);
        }
        return;
      default:
        name = "barrier";
        if (blocking) return group_.barrier();
        work = group_.barrier(async);
    }
    if (blocking) work.wait();
  }

  ProcessGroup& group_;
  std::mt19937_64 random_, pauses_;
  std::deque<std::unique_ptr<Operation>> pending_;
};

/// By thread: the ranks of its group.
std::vector<std::vector<int>> overlapping(int ranks) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  if (ranks == 2) return {all, all};
  return {all, {all.begin(), all.end() - 1}, {all.begin() + 1, all.end()}};
}

/// This rank's threads; the first failure of one is thrown.
void run_groups(ProcessGroup& world, int operations, std::uint64_t seed) {
  std::vector<ProcessGroup> groups;
  for (const std::vector<int>& ranks : overlapping(world.world_size())) {
    groups.push_back(world.new_group(ranks));
  }
  const auto rank = static_cast<std::uint64_t>(world.rank());
  const int count = static_cast<int>(groups.size());
  const int each = (operations + count - 1) / count;  // no fewer in all
  std::vector<std::exception_ptr> failures(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].is_member()) continue;
    threads.emplace_back([&, i] {
      try {
        Mixed(groups[i], seed + i, (10 + i) * seed + rank).run(each);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  for (ProcessGroup& group : groups) {
    if (group.is_member()) group.close();
  }
}

void run_rank(InitOptions options, const char* backend, int operations, std::uint64_t seed) {
  options.backend = backend;
  ProcessGroup world = init_process_group(options);
  if (world.world_size() < 2) throw std::runtime_error("two ranks or more are needed");
  run_groups(world, operations, seed);
  world.close();
  std::printf("rank %d: %d operations right\n", world.rank(), operations);
}

std::vector<int> hosts_of(const std::string& text) {
  std::vector<int> hosts;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) hosts.push_back(std::stoi(word));
  return hosts;
}

/// The first failure of one is thrown.
void run_as_threads(const std::vector<int>& hosts, const char* backend, int operations,
                    std::uint64_t seed) {
  const auto run = [&](const test_kit::Rank& me) {
    run_rank(me.init, backend, operations, seed);
    return std::string();
  };
  const auto outcomes = test_kit::collect_ranks(
      static_cast<int>(hosts.size()), run, {.deadline = std::chrono::minutes(9), .hosts = hosts});
  for (const test_kit::Outcome& outcome : outcomes)
    if (!outcome.failure.empty()) throw std::runtime_error(outcome.failure);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4 && argc != 5)
    throw std::runtime_error("usage: groups_rank BACKEND OPERATIONS SEED [HOSTS]");
  const int operations = std::atoi(argv[2]);
  const std::uint64_t seed = std::strtoull(argv[3], nullptr, 0);
  if (argc == 5) {
    run_as_threads(hosts_of(argv[4]), argv[1], operations, seed);
  } else {
    run_rank({}, argv[1], operations, seed);
  }
} catch (const std::exception& failed) {
  std::fprintf(stderr, "groups_rank: %s\n", failed.what());
  std::_Exit(1);
}
