// The conformance suite of backends: every cell that the backend says it supports against the
// reference, and the same bits on all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "test_kit/cell.h"
#include "test_kit/grid.h"
#include "tutti/test_kit.h"

namespace tutti::test_kit {

namespace {

using conformance::Call;
using conformance::Cell;
using conformance::Kind;

constexpr std::size_t kMostFailures = 5;

OpKey key_of(const Call& call, const Kind& kind, Device::Kind device = Device::Kind::cpu) {
  return {call.op, kind.dtype, kind.reduce.kind(), device};
}

/// "all_reduce sum of f32", "barrier".
std::string name_of(const Call& call, const Kind& kind) {
  if (call.op == Op::barrier) return conformance::name_of(call);
  const std::string reduce =
      reduces(call.op) ? std::string(tutti::name_of(kind.reduce.kind())) + " " : "";
  return fmt::format("{} {}of {}", conformance::name_of(call), reduce, tutti::name_of(kind.dtype));
}

/// One call and kind, all its cells.
class KindRun {
 public:
  KindRun(ProcessGroup& world, const ConformanceOptions& options, const Call& call,
          const Kind& kind, ConformanceReport* report)
      : world_(world), options_(options), call_(call), kind_(kind), report_(*report) {}

  void run() {
    const std::vector<std::size_t> counts =
        options_.counts.empty() ? conformance::usual_counts(world_.world_size()) : options_.counts;
    const auto one_in = static_cast<std::uint64_t>(std::max(1, options_.one_variant_in));
    std::uint64_t turn = 0;
    for (const Cell& cell :
         conformance::make_cells(call_, kind_, counts, world_.world_size(), options_.seed)) {
      // Of the variants of a count (in place, asynchronous) as many as asked for, in turn.
      if (turn++ % one_in != cell.seed % one_in) continue;
      run_one(conformance::seen_from(cell, world_.rank()));
    }
    if (call_.op == Op::all_reduce && !options_.canonical) compare_ranks();
  }

 private:
  void run_one(const Cell& cell) {
    const conformance::Verdict verdict =
        conformance::run_cell(world_, cell, options_.canonical, options_.memory);
    ++report_.cells;
    results_ = hash_combine(results_, verdict.bits);
    if (!verdict.wrong.empty()) {
      fail(fmt::format("rank {} of {}: {}: {}", world_.rank(), world_.world_size(),
                       conformance::describe(cell), verdict.wrong));
    }
  }
  void fail(std::string text) {
    if (report_.failures.size() < kMostFailures) report_.failures.push_back(std::move(text));
  }
  /// Where any order is right, all ranks must still have the same.
  void compare_ranks() {
    if (!world_.supports({Op::all_gather, DType::u64, ReduceOp::Kind::sum, Device::Kind::cpu})
             .yes) {
      return;
    }
    std::vector<std::uint64_t> all(static_cast<std::size_t>(world_.world_size()));
    world_.all_gather(results_, all);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      fail(fmt::format("{}: ranks 0 and {} of {} have different bits", name_of(call_, kind_), rank,
                       all.size()));
    }
  }

  ProcessGroup& world_;
  const ConformanceOptions& options_;
  const Call& call_;
  const Kind& kind_;
  ConformanceReport& report_;
  std::uint64_t results_ = 0;
};

}  // namespace

ConformanceReport run_conformance(ProcessGroup& world, const ConformanceOptions& options) {
  ConformanceReport report;
  for (const Call& call : conformance::all_calls()) {
    if (options.op && *options.op != call.op) continue;
    for (const Kind& kind : conformance::all_kinds(call)) {
      const Device device = options.memory != nullptr ? options.memory->device : Device();
      if (!world.supports(key_of(call, kind, device.kind)).yes) continue;
      KindRun(world, options, call, kind, &report).run();
    }
  }
  return report;
}

namespace {

using nlohmann::ordered_json;

/// Rows with the same reduce operations, as {dtypes, reduce_ops}; no reduce_ops where nothing is
/// reduced, no dtypes where there are no data.
ordered_json supported_rows(const ProcessGroup& world, const Call& call, Device::Kind device) {
  std::vector<std::pair<ordered_json, ordered_json>> rows;  // reduce_ops, dtypes
  std::map<DType, ordered_json> reduce_ops;
  std::vector<DType> dtypes;
  for (const Kind& kind : conformance::all_kinds(call)) {
    if (!world.supports(key_of(call, kind, device)).yes) continue;
    if (!reduce_ops.contains(kind.dtype)) dtypes.push_back(kind.dtype);
    ordered_json& ops = reduce_ops.try_emplace(kind.dtype, ordered_json::array()).first->second;
    if (reduces(call.op)) ops.push_back(tutti::name_of(kind.reduce.kind()));
  }
  for (const DType dtype : dtypes) {
    const ordered_json& ops = reduce_ops.at(dtype);
    auto row =
        std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.first == ops; });
    if (row == rows.end()) row = rows.emplace(rows.end(), ops, ordered_json::array());
    if (call.op != Op::barrier) row->second.push_back(tutti::name_of(dtype));
  }
  auto all = ordered_json::array();
  for (const auto& [ops, names] : rows) {
    ordered_json row = ordered_json::object();
    if (!names.empty()) row["dtypes"] = names;
    if (!ops.empty()) row["reduce_ops"] = ops;
    all.push_back(std::move(row));
  }
  return all;
}

/// Operations with the same rows together.
ordered_json supported(const ProcessGroup& world, Device::Kind device) {
  auto groups = ordered_json::array();
  for (const Call& call : conformance::all_calls()) {
    const ordered_json rows = supported_rows(world, call, device);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const ordered_json& g) { return g["rows"] == rows; });
    if (group == groups.end()) {
      groups.push_back({{"operations", ordered_json::array()}, {"rows", rows}});
      group = groups.end() - 1;
    }
    (*group)["operations"].push_back(conformance::name_of(call));
  }
  return groups;
}

/// By reason, in the order in which they come: what is not supported, or is and has a reason.
ordered_json reasons(const ProcessGroup& world, Device::Kind device, bool is_supported) {
  auto by_reason = ordered_json::object();
  for (const Call& call : conformance::all_calls()) {
    for (const Kind& kind : conformance::all_kinds(call)) {
      const Support support = world.supports(key_of(call, kind, device));
      if (support.yes != is_supported || support.reason.empty()) continue;
      by_reason[support.reason].push_back(name_of(call, kind));
    }
  }
  return by_reason;
}

}  // namespace

std::string support_matrix(const ProcessGroup& world, Device::Kind device) {
  ordered_json matrix = {{"backend", world.backend().name},
                         {"supported", supported(world, device)},
                         {"holes", reasons(world, device, false)}};
  if (device != Device::Kind::cpu) matrix["staged"] = reasons(world, device, true);
  return matrix.dump(1) + "\n";
}

}  // namespace tutti::test_kit
