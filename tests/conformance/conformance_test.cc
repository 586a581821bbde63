// Every operation x dtype x legal reduce operation x number of ranks x count, in place and out of
// place, blocking and asynchronous, on threads and on processes, against the reference: same bits
// on every rank; and with more ranks than one or two cores can run at once. The default tier thins
// both, TUTTI_TEST_FULL=1 runs all of them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <random>
#include <tuple>
#include <vector>

#include "base/cores.h"
#include "base/legality.h"
#include "grids.h"
#include "native/arena.h"
#include "native/engine/engine.h"
#include "ranks.h"
#include "test_kit/cell.h"
#include "test_kit/grid.h"

namespace tutti::conformance {
namespace {

using test_kit::As;

std::vector<std::size_t> counts(int ranks) {
  std::vector<std::size_t> all = usual_counts(ranks);
  all.push_back(100'003);
  return all;
}

/// The default tier runs all cells but the large ones between threads, of the others one variant or
/// none, which the cell's seed chooses.
bool in_default_tier(const Cell& cell, int ranks, As as) {
  const std::uint64_t choice = cell.seed >> 20;
  const unsigned variant = (cell.in_place ? 1u : 0u) | (cell.asynchronous ? 2u : 0u);
  if (kSanitized && (cell.count > 1000 || ranks > 4)) return false;
  const bool is_large = cell.count >= 100'000;
  const bool takes_all = !kSanitized && !is_large && as == As::threads;
  if (!takes_all && choice % 4 != variant) return false;
  if (!is_large) return true;
  const bool many = ranks > 4 || as == As::processes;
  return (choice >> 2) % (many ? 12 : 3) == 0;
}

std::vector<Cell> cells(const Call& call, int ranks, As as) {
  std::vector<Cell> grid;
  for (const Kind& kind : all_kinds(call)) {
    if (!why_illegal(call.op, kind.dtype, kind.reduce.kind()).empty()) continue;
    for (const Cell& cell : make_cells(call, kind, counts(ranks), ranks, seed())) {
      if (full() || in_default_tier(cell, ranks, as)) grid.push_back(cell);
    }
  }
  return grid;
}

class Conformance : public testing::TestWithParam<std::tuple<As, Call>> {
 protected:
  void run_grid(int ranks, As as, const std::vector<Cell>& grid) {
    on_ranks(ranks,
             [&](ProcessGroup& world) {
               int told = 0;
               for (const Cell& cell : grid) {
                 const std::string wrong = run_cell(world, seen_from(cell, world.rank())).wrong;
                 if (wrong.empty()) continue;
                 ADD_FAILURE() << "rank " << world.rank() << " of " << ranks << ": "
                               << describe(cell) << ": " << wrong;
                 if (++told == 5) throw std::runtime_error("too many wrong cells");
               }
             },
             {.as = as, .deadline = std::chrono::minutes(10)});
    RecordProperty(fmt::format("cells_{}", ranks), static_cast<int>(grid.size()));
  }
};

TEST_P(Conformance, SameBitsAsTheReference) {
  const auto [as, call] = GetParam();
  if (as == As::processes && kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    run_grid(ranks, as, cells(call, ranks, as));
    if (HasFailure()) return;
  }
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<As, Call>>& info) {
  const auto [as, call] = info.param;
  return fmt::format("{}_{}", as == As::threads ? "threads" : "processes", name_of(call));
}

INSTANTIATE_TEST_SUITE_P(Native, Conformance,
                         testing::Combine(testing::Values(As::threads, As::processes),
                                          testing::ValuesIn(all_calls())),
                         name_of_case);

// ---- more ranks than cores ---------------------------------------------------------------------

/// Ranks that share few cores. One core is what a container with a quota of one CPU has.
struct Crowd {
  int ranks;
  int cores;
};
constexpr Crowd kCrowds[] = {{5, 1}, {7, 1}, {13, 1}, {16, 1}, {9, 2}, {17, 2}, {33, 2}, {64, 2}};
/// With more ranks only few calls are large.
constexpr int kManyRanks = 32;

/// While it lives this thread, and all that it starts, may use `count` cores.
class OnFewCores {
 public:
  explicit OnFewCores(int count) {
    ::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t few;
    CPU_ZERO(&few);
    // From the present core on: tests that run at once do not all take the first.
    const int first = ::sched_getcpu();
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&few) < count; ++i) {
      const int core = (first + i) % CPU_SETSIZE;
      if (CPU_ISSET(core, &before_)) CPU_SET(core, &few);
    }
    ::sched_setaffinity(0, sizeof few, &few);
  }
  ~OnFewCores() { ::sched_setaffinity(0, sizeof before_, &before_); }
  OnFewCores(const OnFewCores&) = delete;
  OnFewCores& operator=(const OnFewCores&) = delete;

 private:
  cpu_set_t before_;
};

bool is_of_engine(Op op) {
  return op == Op::all_reduce || op == Op::broadcast || op == Op::barrier;
}

/// Two counts that follow each other around the ring that the operation goes through.
std::vector<std::size_t> ring_sized(const Call& call, DType dtype, const Crowd& crowd) {
  const std::size_t ring = is_of_engine(call.op)
                               ? native::engine_tuning(crowd.ranks, crowd.cores).ring_bytes
                               : native::ArenaLayout(crowd.ranks).channel_bytes;
  return {ring * 2 / 5 / size_of(dtype), ring * 9 / 5 / size_of(dtype) + 1};
}

/// All small cells and, of one kind in four (of one kind with many ranks), two large ones. The
/// default tier has a few small ones and two large ones.
std::vector<Cell> crowded_cells(const Call& call, const Crowd& crowd) {
  std::vector<Cell> small, large;
  std::size_t index = seed();
  for (const Kind& kind : all_kinds(call)) {
    if (!why_illegal(call.op, kind.dtype, kind.reduce.kind()).empty()) continue;
    for (const Cell& cell :
         make_cells(call, kind, usual_counts(crowd.ranks), crowd.ranks, seed())) {
      small.push_back(cell);
    }
    if (call.op == Op::barrier) continue;
    const bool is_usual = kind.dtype == DType::f32 && kind.reduce.kind() == ReduceOp::Kind::sum;
    ++index;
    if (!is_usual && (!full() || crowd.ranks > kManyRanks || index % 4 != 0)) continue;
    const std::vector<Cell> both =
        make_cells(call, kind, ring_sized(call, kind.dtype, crowd), crowd.ranks, seed());
    const std::size_t variants = both.size() / 2;
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
      large.push_back(both[which * variants + index / 4 % variants]);
    }
  }
  std::vector<Cell> grid;
  const std::size_t one_in = full() ? 1 : small.size() / 12 + 1;
  for (std::size_t i = index % one_in; i < small.size(); i += one_in) grid.push_back(small[i]);
  grid.insert(grid.end(), large.begin(), large.end());
  return grid;
}

/// What the default tier runs: the engine's operations with all but the largest crowds, another
/// with one of these.
bool in_default_tier(const Call& call, std::size_t crowd) {
  if (kSanitized) return is_of_engine(call.op) && crowd == 0;
  constexpr std::size_t kUsual = 6;
  return crowd < kUsual &&
         (is_of_engine(call.op) || crowd == static_cast<std::size_t>(call.op) % kUsual);
}

class CrowdedConformance : public Conformance {};

TEST_P(CrowdedConformance, SameBitsAsTheReference) {
  const auto [as, call] = GetParam();
  if (as == As::processes && kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  for (std::size_t index = 0; index < std::size(kCrowds); ++index) {
    if (!full() && !in_default_tier(call, index)) continue;
    const Crowd crowd = kCrowds[index];
    const OnFewCores few(crowd.cores);
    ASSERT_LE(usable_cores(), crowd.cores);
    run_grid(crowd.ranks, as, crowded_cells(call, crowd));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Native, CrowdedConformance,
                         testing::Combine(testing::Values(As::threads, As::processes),
                                          testing::ValuesIn(all_calls())),
                         name_of_case);

}  // namespace
}  // namespace tutti::conformance
