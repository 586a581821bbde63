// Every operation x dtype x legal reduce operation x number of ranks x count, in place and out of
// place, blocking and asynchronous, on threads and on processes, against the reference: same bits
// on every rank. The default tier thins the largest cells, TUTTI_TEST_FULL=1 runs all of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "base/hash.h"
#include "base/legality.h"
#include "conformance/cell.h"
#include "ranks.h"

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

constexpr DType kDTypes[] = {
    DType::bool_, DType::u8,        DType::i8,         DType::i16,     DType::i32,    DType::i64,
    DType::u16,   DType::u32,       DType::u64,        DType::f16,     DType::bf16,   DType::f32,
    DType::f64,   DType::complex64, DType::complex128, DType::f8_e4m3, DType::f8_e5m2};

std::vector<ReduceOp> reduce_ops(Op op, DType dtype) {
  if (!reduces(op)) return {ReduceOp::sum};
  std::vector<ReduceOp> legal_ones;
  for (const ReduceOp reduce :
       {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max, ReduceOp::avg,
        ReduceOp::premul_sum(0.3), ReduceOp::band, ReduceOp::bor, ReduceOp::bxor}) {
    if (why_illegal(op, dtype, reduce.kind()).empty()) legal_ones.push_back(reduce);
  }
  return legal_ones;
}

std::set<std::size_t> counts(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return {0, 1, n - 1, n, n + 1, 1000, 100'003};
}

/// Which of the four variants of a large cell the default tier runs: one or none, by the cell's
/// hash.
bool in_default_tier(const Cell& cell, int ranks, As as, std::uint64_t hash) {
  const unsigned variant = (cell.in_place ? 1u : 0u) | (cell.asynchronous ? 2u : 0u);
  if (kSanitized && (cell.count > 1000 || ranks > 4)) return false;
  if (cell.count < 100'000) return !kSanitized || hash % 4 == variant;
  if (hash % 4 != variant) return false;
  const bool many = ranks > 4 || as == As::processes;
  return !many || (hash >> 2) % 6 == 0;
}

std::vector<Cell> cells(Op op, bool uneven, int ranks, As as) {
  std::vector<Cell> grid;
  for (const DType dtype : kDTypes) {
    for (const ReduceOp& reduce : reduce_ops(op, dtype)) {
      for (const std::size_t count : counts(ranks)) {
        Cell cell{.op = op, .dtype = dtype, .reduce = reduce, .count = count, .uneven = uneven};
        std::uint64_t hash = hash_combine(seed(), static_cast<std::uint64_t>(op));
        hash = hash_combine(hash, static_cast<std::uint64_t>(dtype));
        hash = hash_combine(hash, static_cast<std::uint64_t>(reduce.kind()));
        hash = hash_combine(hash, count * 16 + static_cast<std::size_t>(ranks));
        cell.seed = hash >> 8;
        cell.root = static_cast<int>((hash >> 16) % static_cast<std::uint64_t>(ranks));
        for (const bool in_place : {false, true}) {
          if (in_place && (is_message(op) || op == Op::barrier)) continue;
          if (in_place && uneven && op == Op::all_to_all) continue;
          for (const bool asynchronous : {false, true}) {
            cell.in_place = in_place;
            cell.asynchronous = asynchronous;
            if (full() || in_default_tier(cell, ranks, as, hash)) grid.push_back(cell);
          }
        }
      }
      if (op == Op::barrier) return grid;
    }
  }
  return grid;
}

/// gather and scatter are in place on the root only.
Cell seen_from(Cell cell, int rank) {
  const bool rooted = cell.op == Op::gather || cell.op == Op::scatter;
  if (rooted && rank != cell.root) cell.in_place = false;
  return cell;
}

/// An operation, or its v-variant.
struct Call {
  Op op;
  bool uneven = false;
};

class Conformance : public testing::TestWithParam<std::tuple<As, Call>> {};

TEST_P(Conformance, SameBitsAsTheReference) {
  const auto [as, call] = GetParam();
  if (as == As::processes && kNoForks) GTEST_SKIP() << "TSan does not follow forked ranks";
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    const std::vector<Cell> grid = cells(call.op, call.uneven, ranks, as);
    on_ranks(ranks,
             [&](ProcessGroup& world) {
               int told = 0;
               for (const Cell& cell : grid) {
                 const std::string wrong = run_cell(world, seen_from(cell, world.rank()));
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
  return fmt::format("{}_{}{}", as == As::threads ? "threads" : "processes", name_of(call.op),
                     call.uneven ? "v" : "");
}

constexpr Call kCalls[] = {{Op::send},
                           {Op::recv},
                           {Op::broadcast},
                           {Op::all_reduce},
                           {Op::reduce},
                           {Op::gather},
                           {Op::gather, true},
                           {Op::all_gather},
                           {Op::all_gather, true},
                           {Op::scatter},
                           {Op::scatter, true},
                           {Op::reduce_scatter},
                           {Op::reduce_scatter, true},
                           {Op::all_to_all},
                           {Op::all_to_all, true},
                           {Op::scan},
                           {Op::exscan},
                           {Op::barrier}};

INSTANTIATE_TEST_SUITE_P(Native, Conformance,
                         testing::Combine(testing::Values(As::threads, As::processes),
                                          testing::ValuesIn(kCalls)),
                         name_of_case);

}  // namespace
}  // namespace tutti::conformance
