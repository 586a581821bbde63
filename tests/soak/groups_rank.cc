// A rank of the soak `groups`: two threads, each with a group of its own, run mixed operations at
// once, blocking and asynchronous, with random pauses. `groups_rank BACKEND OPERATIONS SEED`.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

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

/// One thread's operations on one group. Both ranks draw the same ones; pauses are a rank's own.
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

  /// Buffers and the expected result; two ranks.
  void fill(Operation& operation, int kind, int round, std::size_t count) const {
    const int me = group_.rank(), peer = 1 - me;
    const auto own = static_cast<std::size_t>(me);
    const bool in_parts = kind == 2 || kind == 3;  // reduce_scatter, all_to_all
    const std::size_t in_count = in_parts ? 2 * count : count;
    const std::vector<double> mine = input_of(round, me, in_count),
                              theirs = input_of(round, peer, in_count);
    operation.in = mine;
    const std::vector<double>& first = me == 0 ? mine : theirs;
    const std::vector<double>& second = me == 0 ? theirs : mine;
    std::vector<double>& want = operation.want;
    switch (kind) {
      case 0:  // all_reduce
        for (std::size_t i = 0; i < count; ++i) want.push_back(mine[i] + theirs[i]);
        break;
      case 1:  // all_gather
      case 5:  // all_gatherv
        want = first;
        want.insert(want.end(), second.begin(), second.end());
        break;
      case 2:
        for (std::size_t i = 0; i < count; ++i)
          want.push_back(mine[own * count + i] + theirs[own * count + i]);
        break;
      case 3:
        for (const auto* input : {&first, &second}) {
          for (std::size_t i = 0; i < count; ++i) want.push_back((*input)[own * count + i]);
        }
        break;
      case 4:  // broadcast from rank 1
        want = second;
        break;
      case 6:  // send and recv
        want = theirs;
        break;
      default:  // barrier
        operation.in.clear();
    }
    operation.out.resize(want.size());
    operation.counts = {count, count};
  }

  void call(Operation& operation, int kind, bool blocking) {
    const int peer = 1 - group_.rank();
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
        other = group_.send(in, peer, async);
        if (blocking) {
          group_.recv(out, peer);
        } else {
          work = group_.recv(out, peer, async);
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

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("usage: groups_rank BACKEND OPERATIONS SEED");
  const int operations = std::atoi(argv[2]);
  const std::uint64_t seed = std::strtoull(argv[3], nullptr, 0);
  auto world = init_process_group({.backend = argv[1]});
  if (world.world_size() != 2) throw std::runtime_error("two ranks are needed");
  ProcessGroup first = world.new_group({0, 1}), second = world.new_group({0, 1});
  std::exception_ptr failure;
  const auto rank = static_cast<std::uint64_t>(world.rank());
  std::thread beside([&] {
    try {
      Mixed(second, seed + 1, 10 * seed + rank).run(operations / 2);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  Mixed(first, seed, 20 * seed + rank).run(operations / 2);
  beside.join();
  if (failure) std::rethrow_exception(failure);
  second.close();
  first.close();
  world.close();
  std::printf("rank %d: %d operations right\n", static_cast<int>(rank), operations);
} catch (const std::exception& failed) {
  std::fprintf(stderr, "groups_rank: %s\n", failed.what());
  std::_Exit(1);
}
