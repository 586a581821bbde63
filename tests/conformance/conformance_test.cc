// Every operation x dtype x legal reduce operation x number of ranks x count, in place and out of
// place, blocking and asynchronous, on threads and on processes, against the reference: same bits
// on every rank. The default tier thins the largest cells, TUTTI_TEST_FULL=1 runs all of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <tuple>
#include <vector>

#include "base/legality.h"
#include "ranks.h"
#include "test_kit/cell.h"
#include "test_kit/grid.h"

namespace tutti::conformance {
namespace {

using test_kit::As;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
constexpr bool kSanitized = false;
#endif
bool full() {
  const char* const wish = std::getenv("TUTTI_TEST_FULL");
  return wish != nullptr && std::string_view(wish) == "1";
}

std::uint64_t seed() {
  static const std::uint64_t kSeed = [] {
    const char* const wish = std::getenv("TUTTI_TEST_SEED");
    const std::uint64_t value =
        wish != nullptr ? std::strtoull(wish, nullptr, 0) : std::random_device()();
    fmt::print("TUTTI_TEST_SEED={}\n", value);
    return value;
  }();
  return kSeed;
}

std::vector<std::size_t> counts(int ranks) {
  std::vector<std::size_t> all = usual_counts(ranks);
  all.push_back(100'003);
  return all;
}

/// Which of the four variants of a large cell the default tier runs: one or none, by the cell's
/// seed.
bool in_default_tier(const Cell& cell, int ranks, As as) {
  const std::uint64_t choice = cell.seed >> 20;
  const unsigned variant = (cell.in_place ? 1u : 0u) | (cell.asynchronous ? 2u : 0u);
  if (kSanitized && (cell.count > 1000 || ranks > 4)) return false;
  if (cell.count < 100'000) return !kSanitized || choice % 4 == variant;
  if (choice % 4 != variant) return false;
  const bool many = ranks > 4 || as == As::processes;
  return !many || (choice >> 2) % 6 == 0;
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

class Conformance : public testing::TestWithParam<std::tuple<As, Call>> {};

TEST_P(Conformance, SameBitsAsTheReference) {
  const auto [as, call] = GetParam();
  if (as == As::processes && kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    const std::vector<Cell> grid = cells(call, ranks, as);
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

}  // namespace
}  // namespace tutti::conformance
