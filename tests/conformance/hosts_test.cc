// Every operation x dtype x legal reduce operation x count between ranks of several hosts, to the
// bit of the canonical order: over TCP alone, and where some share memory and others do not. Ranks
// are threads that take themselves for hosts. The default tier thins the grid, TUTTI_TEST_FULL=1
// runs all of it.
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "base/legality.h"
#include "grids.h"
#include "ranks.h"
#include "test_kit/cell.h"
#include "test_kit/grid.h"

namespace tutti::conformance {
namespace {

/// By rank: its host.
using Layout = std::vector<int>;

struct Case {
  const char* name;
  Layout hosts;
};
const Case kCases[] = {{"Apart2", {0, 1}},
                       {"Apart3", {0, 1, 2}},
                       {"Apart4", {0, 1, 2, 3}},
                       {"Apart7", {0, 1, 2, 3, 4, 5, 6}},
                       {"Apart8", {0, 1, 2, 3, 4, 5, 6, 7}},
                       {"TwoAndTwo", {0, 0, 1, 1}},
                       {"ThreeAndThree", {0, 0, 0, 1, 1, 1}},
                       {"OneAndThree", {0, 1, 1, 1}},
                       {"ThreeOneAndTwo", {0, 0, 0, 1, 2, 2}},
                       {"InTurns", {0, 1, 0, 1}}};

bool shares_memory(const Layout& hosts) {
  return std::set<int>(hosts.begin(), hosts.end()).size() < hosts.size();
}

std::vector<std::size_t> counts(const Layout& hosts) {
  const std::size_t n = hosts.size();
  if (shares_memory(hosts)) return {0, n + 1, 100'003};
  return {0, 1, n - 1, n, n + 1, 1000, 100'003};
}

/// One variant in four of all cells but the small ones over TCP alone; of large ones few at a time,
/// unless all are wanted.
bool is_run(const Cell& cell, const Layout& hosts) {
  const std::uint64_t choice = cell.seed >> 20;
  const unsigned variant = (cell.in_place ? 1u : 0u) | (cell.asynchronous ? 2u : 0u);
  const bool is_chosen = choice % 4 == variant;
  if (full()) return is_chosen || !shares_memory(hosts);
  if (kSanitized && (cell.count > 1000 || hosts.size() > 4)) return false;
  const std::uint64_t one_in = cell.count > 1000 ? 24 : kSanitized ? 6 : 3;
  return is_chosen && (choice >> 2) % one_in == 0;
}

std::vector<Cell> cells(const Call& call, const Layout& hosts) {
  const auto ranks = static_cast<int>(hosts.size());
  std::vector<Cell> grid;
  for (const Kind& kind : all_kinds(call)) {
    if (!why_illegal(call.op, kind.dtype, kind.reduce.kind()).empty()) continue;
    for (const Cell& cell : make_cells(call, kind, counts(hosts), ranks, seed()))
      if (is_run(cell, hosts)) grid.push_back(cell);
  }
  return grid;
}

class Hosts : public testing::TestWithParam<std::tuple<Case, Call>> {};

TEST_P(Hosts, SameBitsAsTheReference) {
  const auto& [layout, call] = GetParam();
  const std::vector<Cell> grid = cells(call, layout.hosts);
  const auto ranks = static_cast<int>(layout.hosts.size());
  on_ranks(ranks,
           [&](ProcessGroup& world) {
             int told = 0;
             for (const Cell& cell : grid) {
               const std::string wrong = run_cell(world, seen_from(cell, world.rank())).wrong;
               if (wrong.empty()) continue;
               ADD_FAILURE() << "rank " << world.rank() << " of " << ranks << ": " << describe(cell)
                             << ": " << wrong;
               if (++told == 5) throw std::runtime_error("too many wrong cells");
             }
           },
           {.deadline = std::chrono::minutes(10), .hosts = layout.hosts});
  RecordProperty("cells", static_cast<int>(grid.size()));
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<Case, Call>>& info) {
  return std::string(std::get<Case>(info.param).name) + "_" + name_of(std::get<Call>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Native, Hosts,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::ValuesIn(all_calls())),
                         name_of_case);

}  // namespace
}  // namespace tutti::conformance
