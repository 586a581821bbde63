// Every operation x dtype x legal reduce operation x count between ranks of several hosts, to the
// bit of the canonical order: over TCP alone, and where some share memory and others do not. Ranks
// are threads that take themselves for hosts. Of the variants of a cell (in place, asynchronous)
// one is run, which the seed chooses. The default tier thins the grid, TUTTI_TEST_FULL=1 runs all.
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

/// All, or few, and of large ones very few.
bool is_run(const Cell& cell, std::size_t ranks, std::uint64_t choice) {
  if (full()) return true;
  if (kSanitized && (cell.count > 1000 || ranks > 4)) return false;
  const std::uint64_t one_in = cell.count > 1000 ? 48 : 6;
  return choice % one_in == 0;
}

std::vector<Cell> cells(const Call& call, const std::vector<std::size_t>& counts, int ranks) {
  std::vector<Cell> grid;
  for (const Kind& kind : all_kinds(call)) {
    if (!why_illegal(call.op, kind.dtype, kind.reduce.kind()).empty()) continue;
    for (const std::size_t count : counts) {
      const std::vector<Cell> variants = make_cells(call, kind, {count}, ranks, seed());
      const std::uint64_t choice = variants.front().seed >> 20;
      const Cell& cell = variants[choice % variants.size()];
      if (is_run(cell, static_cast<std::size_t>(ranks), choice / variants.size()))
        grid.push_back(cell);
    }
  }
  return grid;
}

void run_all(const std::vector<Cell>& grid, const Layout& hosts, const Settings& settings) {
  const auto ranks = static_cast<int>(hosts.size());
  test_kit::RunOptions options;
  options.deadline = std::chrono::minutes(10);
  options.hosts = hosts;
  options.init.settings = settings;
  const auto run = [&](ProcessGroup& world) {
    int told = 0;
    for (const Cell& cell : grid) {
      const std::string wrong = run_cell(world, seen_from(cell, world.rank())).wrong;
      if (wrong.empty()) continue;
      ADD_FAILURE() << "rank " << world.rank() << " of " << ranks << ": " << describe(cell) << ": "
                    << wrong;
      if (++told == 5) throw std::runtime_error("too many wrong cells");
    }
  };
  on_ranks(ranks, run, options);
  testing::Test::RecordProperty("cells", static_cast<int>(grid.size()));
}

class Hosts : public testing::TestWithParam<std::tuple<Case, Call>> {};

TEST_P(Hosts, SameBitsAsTheReference) {
  const auto& [layout, call] = GetParam();
  const auto ranks = static_cast<int>(layout.hosts.size());
  run_all(cells(call, counts(layout.hosts), ranks), layout.hosts, {});
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<Case, Call>>& info) {
  return std::string(std::get<Case>(info.param).name) + "_" + name_of(std::get<Call>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Native, Hosts,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::ValuesIn(all_calls())),
                         name_of_case);

/// Whatever an operation goes by, and however it is cut: many segments are under way, of which some
/// are short.
class Algorithms : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Algorithms, SameBitsAsTheReference) {
  const auto& [algorithm, segment_bytes] = GetParam();
  const Settings settings{{"algorithm", algorithm}, {"segment_bytes", segment_bytes}};
  const Layout layouts[] = {{0, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 2, 2}};
  for (const Layout& hosts : layouts) {
    SCOPED_TRACE(hosts.size());
    const auto ranks = static_cast<int>(hosts.size());
    std::vector<Cell> grid;
    for (const Call& call : all_calls()) {
      if (call.uneven || is_message(call.op)) continue;
      for (const Cell& cell : cells(call, {hosts.size() + 1, 1000}, ranks)) grid.push_back(cell);
    }
    run_all(grid, hosts, settings);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Native, Algorithms,
                         testing::Combine(testing::Values("direct", "exchange", "doubling",
                                                          "binomial", "pairwise", "ring"),
                                          testing::Values("64B", "1KiB")),
                         [](const auto& instance) {
                           return std::string(std::get<0>(instance.param)) + "_" +
                                  std::get<1>(instance.param);
                         });

}  // namespace
}  // namespace tutti::conformance
