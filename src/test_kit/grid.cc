#include "test_kit/grid.h"

#include <algorithm>

#include "base/hash.h"

namespace tutti::conformance {

namespace {

constexpr DType kDTypes[] = {
    DType::bool_, DType::u8,        DType::i8,         DType::i16,     DType::i32,    DType::i64,
    DType::u16,   DType::u32,       DType::u64,        DType::f16,     DType::bf16,   DType::f32,
    DType::f64,   DType::complex64, DType::complex128, DType::f8_e4m3, DType::f8_e5m2};
static_assert(std::size(kDTypes) == kDTypeCount);

}  // namespace

const std::vector<Call>& all_calls() {
  static const std::vector<Call> kCalls = {{Op::send},
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
                                           {Op::exclusive_scan},
                                           {Op::barrier}};
  return kCalls;
}

std::string name_of(const Call& call) {
  return std::string(tutti::name_of(call.op)) + (call.uneven ? "v" : "");
}

std::vector<Kind> all_kinds(const Call& call) {
  if (call.op == Op::barrier) return {Kind{}};
  std::vector<Kind> kinds;
  for (const DType dtype : kDTypes) {
    if (!reduces(call.op)) {
      kinds.push_back({dtype, ReduceOp::sum});
      continue;
    }
    for (const ReduceOp reduce :
         {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max, ReduceOp::avg,
          ReduceOp::premul_sum(0.3), ReduceOp::band, ReduceOp::bor, ReduceOp::bxor}) {
      kinds.push_back({dtype, reduce});
    }
  }
  return kinds;
}

std::vector<std::size_t> usual_counts(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::size_t> counts = {0, 1, n - 1, n, n + 1, 1000};
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

std::vector<Cell> make_cells(const Call& call, const Kind& kind,
                             const std::vector<std::size_t>& counts, int ranks,
                             std::uint64_t seed) {
  std::vector<Cell> cells;
  for (const std::size_t count : counts) {
    std::uint64_t hash = hash_combine(seed, static_cast<std::uint64_t>(call.op));
    hash = hash_combine(hash, static_cast<std::uint64_t>(kind.dtype));
    hash = hash_combine(hash, static_cast<std::uint64_t>(kind.reduce.kind()));
    hash = hash_combine(hash, count * 16 + static_cast<std::size_t>(ranks));
    Cell cell{.op = call.op,
              .dtype = kind.dtype,
              .reduce = kind.reduce,
              .count = count,
              .uneven = call.uneven,
              .root = static_cast<int>((hash >> 16) % static_cast<std::uint64_t>(ranks)),
              .seed = hash >> 8};
    const bool has_in_place = !is_message(call.op) && call.op != Op::barrier &&
                              !(call.uneven && call.op == Op::all_to_all);
    for (const bool in_place : {false, true}) {
      if (in_place && !has_in_place) continue;
      for (const bool asynchronous : {false, true}) {
        cell.in_place = in_place;
        cell.asynchronous = asynchronous;
        cells.push_back(cell);
      }
    }
    if (call.op == Op::barrier) break;
  }
  return cells;
}

Cell seen_from(Cell cell, int rank) {
  const bool rooted = cell.op == Op::gather || cell.op == Op::scatter;
  if (rooted && rank != cell.root) cell.in_place = false;
  return cell;
}

}  // namespace tutti::conformance
