// Ranks that disagree: every one of them is told, with both sides, at the latest at its next call
// or close; ranks that agree are never told so.
//
// A *round* makes a group of 2 to 4 ranks, runs a few *calls* that agree, then lets one rank, the
// *deviator*, make another call than the rest (or two calls in another order), goes on as if
// nothing had happened, and closes. All ranks know the script: it is a function of seed and round.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "soak/soak.h"
#include "tutti/init.h"
#include "tutti/log.h"
#include "tutti/objects.h"
#include "tutti/test_kit.h"

namespace tutti::soak {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

constexpr int kRanks = 4;
constexpr std::size_t kMaxCount = 5000;
constexpr int kAgreeingCallsPerRound = 100;  // 100,000 in 1,000 rounds

enum class Difference { op, dtype, count, reduce_op, root, order, smallest };
constexpr std::array<const char*, 7> kDifferences = {"op",   "dtype", "count",   "reduce_op",
                                                     "root", "order", "smallest"};

struct Call {
  Op op = Op::barrier;
  DType dtype = DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  std::size_t count = 1;
  int root = 0;
  bool asynchronous = false;
};

constexpr std::array kReducing = {Op::all_reduce, Op::reduce, Op::reduce_scatter, Op::scan,
                                  Op::exclusive_scan};
constexpr std::array kRooted = {Op::broadcast, Op::reduce, Op::gather, Op::scatter};
constexpr std::array kAll = {Op::broadcast,  Op::all_reduce, Op::reduce,         Op::gather,
                             Op::all_gather, Op::scatter,    Op::reduce_scatter, Op::all_to_all,
                             Op::barrier,    Op::scan,       Op::exclusive_scan};
constexpr std::array kDTypes = {DType::f32, DType::f64, DType::bf16, DType::i32, DType::u8};
constexpr std::array kReduceOps = {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max};

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t bound) { return random_() % bound; }
  template <class Array>
  auto one_of(const Array& values) {
    return values[below(values.size())];
  }
  /// Another one than `value`.
  template <class Array, class T>
  T other_than(const T& value, const Array& values) {
    while (true) {
      const T other = one_of(values);
      if (!(other == value)) return other;
    }
  }

 private:
  std::mt19937_64 random_;
};

template <class Ops>
Call random_call(Dice& dice, const Ops& ops, int ranks) {
  Call call;
  call.op = dice.one_of(ops);
  call.dtype = dice.one_of(kDTypes);
  call.reduce = dice.one_of(kReduceOps);
  const std::array<std::size_t, 5> counts = {1, 2, 7, 300, kMaxCount};
  call.count = dice.one_of(counts);
  call.root = static_cast<int>(dice.below(static_cast<std::size_t>(ranks)));
  call.asynchronous = dice.below(4) == 0;
  return call;
}

struct Script {
  Difference difference = Difference::op;
  std::vector<int> ranks;  // of the world, by rank in the group
  int deviator = 0;        // rank in the group
  std::vector<Call> before, usual, deviating, after;
};

/// The calls that differ: those of the many and those of the one.
void script_difference(Dice& dice, Script* script) {
  const int ranks = static_cast<int>(script->ranks.size());
  Call usual = random_call(dice, kAll, ranks);
  if (script->difference == Difference::reduce_op) usual = random_call(dice, kReducing, ranks);
  if (script->difference == Difference::root) usual = random_call(dice, kRooted, ranks);
  while (script->difference != Difference::op && usual.op == Op::barrier) {
    usual = random_call(dice, kAll, ranks);
  }
  Call other = usual;
  switch (script->difference) {
    case Difference::op:
      other.op = dice.other_than(usual.op, kAll);
      break;
    case Difference::dtype:
      other.dtype = dice.other_than(usual.dtype, kDTypes);
      break;
    case Difference::count:
      other.count = usual.count + 1;
      break;
    case Difference::reduce_op:
      other.reduce = dice.other_than(usual.reduce, kReduceOps);
      break;
    case Difference::root:
      other.root = (usual.root + 1) % ranks;
      break;
    case Difference::order:
      other.op = dice.other_than(usual.op, kAll);
      script->usual = {usual, other};
      script->deviating = {other, usual};
      return;
    case Difference::smallest:
      usual = other = Call{.op = Op::broadcast};
      other.root = 1;
      break;
  }
  script->usual = {usual};
  script->deviating = {other};
}

Script make_script(std::uint64_t seed, int round) {
  Dice dice(seed + static_cast<std::uint64_t>(round) * 0x9e3779b97f4a7c15u);
  Script script;
  script.difference = static_cast<Difference>(round % static_cast<int>(kDifferences.size()));
  const bool smallest = script.difference == Difference::smallest;
  script.ranks.resize(kRanks);
  std::iota(script.ranks.begin(), script.ranks.end(), 0);
  for (std::size_t i = kRanks - 1; i > 0; --i)
    std::swap(script.ranks[i], script.ranks[dice.below(i + 1)]);
  script.ranks.resize(smallest ? 2 : 2 + dice.below(kRanks - 1));
  const int ranks = static_cast<int>(script.ranks.size());
  script.deviator = smallest ? 1 : static_cast<int>(dice.below(script.ranks.size()));
  script_difference(dice, &script);
  if (smallest) return script;
  for (std::size_t i = dice.below(4); i > 0; --i)
    script.before.push_back(random_call(dice, kAll, ranks));
  for (std::size_t i = dice.below(3); i > 0; --i)
    script.after.push_back(random_call(dice, kAll, ranks));
  return script;
}

/// Memory for any call; the values do not matter, but they are not combined after a disagreement.
struct Memory {
  std::vector<double> in = std::vector<double>((kMaxCount + 1) * kRanks, 1.0);
  std::vector<double> out = std::vector<double>((kMaxCount + 1) * kRanks, 0.0);
};

Work start(ProcessGroup& group, const Call& call, Memory& memory) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  const bool at_root = group.rank() == call.root;
  const ConstBuffer in(memory.in.data(), call.count, call.dtype);
  const ConstBuffer all_in(memory.in.data(), call.count * ranks, call.dtype);
  const Buffer out(memory.out.data(), call.count, call.dtype);
  const Buffer all_out(memory.out.data(), call.count * ranks, call.dtype);
  switch (call.op) {
    case Op::broadcast:
      return group.broadcast(out, {.root = call.root}, async);
    case Op::all_reduce:
      return group.all_reduce(in, out, {.op = call.reduce}, async);
    case Op::reduce:
      return group.reduce(in, at_root ? out : Buffer(), {.op = call.reduce, .root = call.root},
                          async);
    case Op::gather:
      return group.gather(in, at_root ? all_out : Buffer(), {.root = call.root}, async);
    case Op::all_gather:
      return group.all_gather(in, all_out, async);
    case Op::scatter:
      return group.scatter(at_root ? all_in : ConstBuffer(), out, {.root = call.root}, async);
    case Op::reduce_scatter:
      return group.reduce_scatter(all_in, out, {.op = call.reduce}, async);
    case Op::all_to_all:
      return group.all_to_all(all_in, all_out, async);
    case Op::barrier:
      return group.barrier(async);
    case Op::scan:
      return group.scan(in, out, {.op = call.reduce}, async);
    case Op::exclusive_scan:
      return group.exclusive_scan(in, out, {.op = call.reduce}, async);
    case Op::send:
    case Op::recv:
      break;
  }
  return {};
}

void block(ProcessGroup& group, const Call& call, Memory& memory) {
  const Buffer out(memory.out.data(), call.count, call.dtype);
  const ConstBuffer in(memory.in.data(), call.count, call.dtype);
  // The hand-written ones have a blocking path of their own.
  if (call.op == Op::all_reduce) return group.all_reduce(in, out, {.op = call.reduce});
  if (call.op == Op::broadcast) return group.broadcast(out, {.root = call.root});
  if (call.op == Op::barrier) return group.barrier();
  start(group, call, memory).wait();
}

void perform(ProcessGroup& group, const Call& call, Memory& memory) {
  if (call.asynchronous) {
    Work work = start(group, call, memory);
    work.wait();
  } else {
    block(group, call, memory);
  }
}

/// Whether the call cannot be right without every rank's part in it, as seen by `rank`.
bool needs_everybody(const Call& call, int rank) {
  switch (call.op) {
    case Op::all_reduce:
    case Op::all_gather:
    case Op::reduce_scatter:
    case Op::all_to_all:
    case Op::barrier:
      return true;
    case Op::reduce:
    case Op::gather:
      return rank == call.root;
    case Op::broadcast:
    case Op::scatter:
    case Op::scan:
    case Op::exclusive_scan:
    case Op::send:
    case Op::recv:
      return false;
  }
  return false;
}

/// What one rank has seen in all rounds.
struct Tally {
  std::array<int, 4> places = {};  // up to the call, at a later call, at close, never
  std::vector<double> milliseconds;
  std::vector<std::string> failures;
  long agreeing_calls = 0;
};
constexpr std::array<const char*, 4> kPlaces = {"up to the call", "at a later call", "at close",
                                                "never"};

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// Empty if the error says what it must: the code, both sides, both call sites.
std::string judge(const Error& error, const Script& script) {
  const std::string text = error.what();
  if (error.code() != ErrorCode::kCollectiveMismatch) return "wrong code: " + text;
  const auto names = [&](const Call& call) {
    const std::string name(name_of(call.op));
    return text.find("called " + name + (call.op == Op::barrier ? " at" : "(")) !=
           std::string::npos;
  };
  if (!names(script.usual[0]) || !names(script.deviating[0])) return "not both operations: " + text;
  // Behind what the message begins with: that is the rank's own call.
  const std::string sides = text.substr(std::min(text.find(" disagree about "), text.size()));
  const std::size_t sites = occurrences(sides, "disagreements.cc:");
  if (sites < 2 || sites < occurrences(sides, " called ")) return "not all call sites: " + text;
  return {};
}

/// One rank's part in one round.
class Round {
 public:
  Round(ProcessGroup& world, const Script& script, Memory& memory, Tally& tally)
      : world_(world), script_(script), memory_(memory), tally_(tally) {}

  /// Empty if all was as promised.
  std::string operator()() {
    begin_ = Clock::now();
    int place = 0;  // a rank that is still in a call before may be told there, or making the group
    std::string taken;
    try {
      ProcessGroup group = world_.new_group(script_.ranks);
      for (const Call& call : script_.before) perform(group, call, memory_);
      begin_ = Clock::now();
      const bool deviates = group.rank() == script_.deviator;
      for (const Call& call : deviates ? script_.deviating : script_.usual) {
        perform(group, call, memory_);
        if (needs_everybody(call, group.rank())) {
          taken = fmt::format("took a wrong result of {} for a right one", name_of(call.op));
        }
        place = 1;
      }
      for (const Call& call : script_.after) perform(group, call, memory_);
      place = 2;
      group.close();
    } catch (const Error& error) {
      note(place);
      return taken.empty() ? judge(error, script_) : taken;
    }
    note(3);
    return "was never told";
  }

 private:
  void note(int place) {
    ++tally_.places[static_cast<std::size_t>(place)];
    tally_.milliseconds.push_back(
        std::chrono::duration<double, std::milli>(Clock::now() - begin_).count());
  }

  ProcessGroup& world_;
  const Script& script_;
  Memory& memory_;
  Tally& tally_;
  Clock::time_point begin_;
};

/// Calls on which all agree, in groups of every size: none may fail.
void run_agreeing(ProcessGroup& world, std::uint64_t seed, int round, Memory& memory,
                  Tally& tally) {
  Dice dice((seed ^ 0x5eed) + static_cast<std::uint64_t>(round));
  const int ranks = 2 + round % (kRanks - 1);
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  ProcessGroup group = world.new_group(members);
  for (int i = 0; i < kAgreeingCallsPerRound; ++i) {
    const Call call = random_call(dice, kAll, ranks);
    if (!group.is_member()) continue;
    perform(group, call, memory);
    ++tally.agreeing_calls;
  }
  if (group.is_member()) group.close();
}

/// What this rank has seen, as JSON.
std::string run_rank(ProcessGroup& world, const Words& words) {
  set_log_callback([](LogLevel, std::string_view) {});  // a line for each of 1,000 failures
  Memory memory;
  Tally tally;
  Progress progress("disagreements", words.rounds);
  for (int round = 0; round < words.rounds; ++round) {
    run_agreeing(world, words.seed, round, memory, tally);
    const Script script = make_script(words.seed, round);
    const auto member = std::find(script.ranks.begin(), script.ranks.end(), world.rank());
    if (member != script.ranks.end()) {
      const auto rank = static_cast<int>(member - script.ranks.begin());
      const std::string wrong = Round(world, script, memory, tally)();
      if (!wrong.empty()) {
        const char* const difference = kDifferences[static_cast<std::size_t>(script.difference)];
        tally.failures.push_back(fmt::format(
            "round {} ({}), rank {} of {}{}: {}", round, difference, rank, script.ranks.size(),
            rank == script.deviator ? ", the deviator" : "", wrong));
      }
    }
    if (world.rank() == 0) {
      progress.advance(kDifferences[static_cast<std::size_t>(script.difference)],
                       static_cast<int>(tally.failures.size()));
    }
  }
  return ordered_json{{"places", tally.places},
                      {"milliseconds", tally.milliseconds},
                      {"failures", tally.failures},
                      {"agreeing_calls", tally.agreeing_calls}}
      .dump();
}

/// What all ranks have seen, or how they failed.
struct Seen {
  std::vector<std::string> told, failures;
};

Seen run_here(const Words& words) {
  std::vector<int> hosts;
  for (int rank = 0; words.hosts > 1 && rank < kRanks; ++rank) hosts.push_back(rank % words.hosts);
  const auto outcomes = test_kit::collect_ranks(kRanks,
                                                [&](const test_kit::Rank& me) {
                                                  ProcessGroup world = init_process_group(me.init);
                                                  const std::string told = run_rank(world, words);
                                                  world.close();
                                                  return told;
                                                },
                                                {.as = test_kit::As::processes,
                                                 .deadline = std::chrono::minutes(20),
                                                 .init = {},
                                                 .hosts = hosts});
  Seen seen;
  for (const test_kit::Outcome& outcome : outcomes) {
    if (outcome.failure.empty()) {
      seen.told.push_back(outcome.result);
    } else {
      seen.failures.push_back(fmt::format("rank {}: {}", outcome.rank, outcome.failure));
    }
  }
  return seen;
}

int report(const Words& words, const Seen& seen) {
  std::array<int, 4> places = {};
  Figures latency;
  std::vector<std::string> failures = seen.failures;
  long agreeing_calls = 0;
  for (const std::string& text : seen.told) {
    const ordered_json told = ordered_json::parse(text);
    for (std::size_t i = 0; i < places.size(); ++i) places[i] += told["places"][i].get<int>();
    for (const double sample : told["milliseconds"]) latency.samples.push_back(sample);
    for (const std::string failure : told["failures"]) failures.push_back(failure);
    agreeing_calls = std::max(agreeing_calls, told["agreeing_calls"].get<long>());
  }
  ordered_json where = ordered_json::object();
  for (std::size_t i = 0; i < places.size(); ++i) where[kPlaces[i]] = places[i];
  fmt::print("disagreements: {} rounds, {} agreeing calls, told {}, {}; {} failed\n", words.rounds,
             agreeing_calls, where.dump(), latency.summary(), failures.size());
  for (std::size_t i = 0; i < std::min<std::size_t>(failures.size(), 20); ++i) {
    fmt::print("  {}\n", failures[i]);
  }
  write_evidence(words, "disagreements",
                 {{"agreeing_calls", std::to_string(agreeing_calls)},
                  {"told", where.dump()},
                  {"failures", std::to_string(failures.size())},
                  {"histogram", latency.histogram_json()}});
  return failures.empty() ? 0 : 1;
}

/// All ranks on this host, or as if on several.
int run(const Words& words) {
  fmt::print(stderr, "disagreements: seed {}\n", words.seed);
  return report(words, run_here(words));
}

/// This rank of a world over hosts, as the variables say; the first one reports.
int run_as_rank(Words words) {
  ProcessGroup world = init_process_group();
  if (world.world_size() != kRanks) {
    fmt::print(stderr, "disagreements: {} ranks, where {} are needed\n", world.world_size(),
               kRanks);
    return 2;
  }
  world.broadcast(words.seed);
  if (world.rank() == 0) fmt::print(stderr, "disagreements: seed {}\n", words.seed);
  const Seen seen{gather_object(world, run_rank(world, words)), {}};
  world.close();
  return world.rank() == 0 ? report(words, seen) : 0;
}

}  // namespace
}  // namespace tutti::soak

int main(int argc, char** argv) {
  const tutti::soak::Words words = tutti::soak::read_words(argc, argv);
  return words.as_rank ? tutti::soak::run_as_rank(words) : tutti::soak::run(words);
}
