#include "native/schedule/plan.h"

#include <algorithm>
#include <string_view>

#include "base/config.h"
#include "kernels/kernels.h"

namespace tutti::native {
namespace {

constexpr std::size_t kKiB = 1024;
/// An element of any dtype.
constexpr std::size_t kLeastSegment = 64;
constexpr std::size_t kMostDepth = 16;

/// Few bytes: fewer steps in time, then fewer messages. Many: fewer bytes through the busiest rank
/// and host, and of two ranks, which send as much either way, half the additions each.
constexpr Rule kRules[] = {
    {.op = Op::all_reduce,
     .algorithm = Algorithm::exchange,
     .most_ranks = 2,
     .most_bytes = 512 * kKiB},
    {.op = Op::all_reduce,
     .algorithm = Algorithm::exchange,
     .most_ranks = 8,
     .most_bytes = 8 * kKiB},
    {.op = Op::all_reduce, .algorithm = Algorithm::doubling, .most_bytes = 16 * kKiB},
    {.op = Op::all_reduce, .algorithm = Algorithm::binomial, .most_bytes = 4 * kKiB},
    {.op = Op::reduce, .algorithm = Algorithm::binomial, .least_ranks = 9},
    {.op = Op::reduce,
     .algorithm = Algorithm::binomial,
     .least_ranks = 4,
     .least_bytes = 64 * kKiB},
    {.op = Op::broadcast,
     .algorithm = Algorithm::ring,
     .least_ranks = 3,
     .least_bytes = 1024 * kKiB},
    {.op = Op::all_gather,
     .algorithm = Algorithm::ring,
     .least_ranks = 3,
     .least_bytes = 64 * kKiB},
    {.op = Op::all_to_all,
     .algorithm = Algorithm::pairwise,
     .least_ranks = 3,
     .least_bytes = 64 * kKiB},
};

/// Whether all ranks can go so, and the bits are those of the canonical order: what is combined is
/// rounded once, and divided or multiplied by whoever has the raw input or the whole.
bool serves(Algorithm algorithm, const Call& call) noexcept {
  if (!has_algorithm(call.op, algorithm, call.group_size, false)) return false;
  if (!combines_parts(call.op, algorithm)) return true;
  return kernels::accumulation_dtype(call.dtype) == call.dtype &&
         call.reduce != ReduceOp::Kind::avg && call.reduce != ReduceOp::Kind::premul_sum;
}

bool fits(const Rule& rule, const Call& call) noexcept {
  return rule.op == call.op && rule.least_ranks <= call.group_size &&
         call.group_size <= rule.most_ranks && rule.least_bytes <= call.bytes &&
         call.bytes <= rule.most_bytes && serves(rule.algorithm, call);
}

Algorithm choose(const Call& call, const Table& table) noexcept {
  const Algorithm plain = call.op == Op::broadcast ? Algorithm::binomial : Algorithm::direct;
  if (call.uneven) return plain;
  if (table.wish.algorithm && serves(*table.wish.algorithm, call)) return *table.wish.algorithm;
  if (call.hosts.empty()) return plain;
  const auto rule = std::find_if(table.rules.begin(), table.rules.end(),
                                 [&](const Rule& each) { return fits(each, call); });
  return rule == table.rules.end() ? plain : rule->algorithm;
}

std::optional<Algorithm> algorithm_of(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kAlgorithmCount; ++i)
    if (name == name_of(static_cast<Algorithm>(i))) return static_cast<Algorithm>(i);
  return std::nullopt;
}

}  // namespace

Table make_table(const Settings& settings) {
  Table table{.rules = kRules, .segment_bytes = 512 * kKiB, .in_flight = 2048 * kKiB};
  const auto algorithm = settings.find("algorithm");
  if (algorithm != settings.end()) table.wish.algorithm = algorithm_of(algorithm->second);
  const auto bytes = settings.find("segment_bytes");
  if (bytes == settings.end()) return table;
  table.wish.segment_bytes = parse_bytes("segment_bytes", bytes->second);
  if (table.wish.segment_bytes > 0)
    table.wish.segment_bytes = std::max(table.wish.segment_bytes, kLeastSegment);
  return table;
}

Plan plan(const Call& call, const Table& table, std::size_t most_bytes) noexcept {
  const Algorithm algorithm = choose(call, table);
  const std::size_t wanted = table.wish.segment_bytes > 0 ? table.wish.segment_bytes
                             : call.hosts.empty()         ? most_bytes
                                                          : table.segment_bytes;
  const std::size_t bytes = std::min(wanted, most_bytes);
  const std::size_t depth = call.hosts.empty() ? 1 : table.in_flight / bytes;
  return {algorithm, {bytes, std::clamp<std::size_t>(depth, 1, kMostDepth)}};
}

}  // namespace tutti::native
