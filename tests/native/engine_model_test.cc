// All states that an engine's ranks can reach, when any of them may take the next step of at most
// one segment: in none of them all wait.
//
// The model is the engine itself. It stops between two segments when the abort word is set: that is
// done as soon as anything has moved, and undone before the next step. A state is what is shared
// (lines, counters, rings), what the users have got, and which call each rank is in; what engines
// keep to themselves follows from that, or only spares them a look at what is shared. The data of
// calls are part of the state, so a result that depends on the order would be found as well. States
// are told apart by 128 bits of hash, and flags are read in one order by all (they are seq_cst).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "engine_play.h"

namespace tutti::native::test {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

constexpr std::size_t kSharedHead = offsetof(EngineHead, small);  // no small messages here

/// What the exploration found.
struct Findings {
  std::size_t programs = 0, states = 0, steps = 0, stuck = 0;
  double interleavings = 0;
  std::string wrong;  ///< the first thing: nobody can step, or a wrong result
};

/// The ranks, and the one state they are in now.
class Model {
 public:
  Model(int ranks, const EngineTuning& tuning, Tuning planted, std::vector<Call> calls)
      : memory_(ranks, tuning), inputs_(ranks, longest(calls)), calls_(std::move(calls)) {
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<One>(memory_, rank, planted, calls_.size()));
      ranks_.back()->output.resize(longest(calls_));
    }
  }

  Findings explore() {
    Findings found;
    found.programs = 1;
    found.interleavings = from_here(found);
    found.states = seen_.size();
    return found;
  }

 private:
  /// One rank. Its engine is a copy that is put back together with the memory.
  struct One final : private EngineSignals {
    One(const SharedMemory& memory_in, int rank_in, Tuning planted, std::size_t call_count)
        : memory(memory_in),
          rank(rank_in),
          engine(make_engine(memory, rank, planted, *this)),
          requests(call_count) {}
    void notify_all() noexcept override { memory.common().abort_word.store(1); }
    void progressed() noexcept override {}
    void disagree(int) noexcept override { disagreed = true; }
    std::byte* open_ring() override { return memory.ring(rank); }

    const SharedMemory& memory;
    const int rank;
    std::optional<Engine> engine;
    std::vector<Request> requests;
    std::vector<std::byte> output;
    std::uint32_t next = 0, busy = 0;
    bool disagreed = false;
  };
  struct State {
    std::string shared;  // heads, rings, outputs, next and busy
    std::vector<Engine> engines;
  };
  struct Key {
    std::size_t low, high;
    bool operator==(const Key&) const = default;
  };
  struct HashOfKey {
    std::size_t operator()(const Key& key) const { return key.low; }
  };

  static std::size_t longest(const std::vector<Call>& calls) {
    std::size_t most = 0;
    for (const Call& call : calls) most = std::max(most, call.byte_count);
    return most;
  }

  template <class Visit>
  void visit_shared(Visit&& visit) {
    for (const auto& one : ranks_) {
      visit(const_cast<std::byte*>(memory_.view(one->rank).heads[index(*one)]), kSharedHead);
      visit(memory_.ring(one->rank), memory_.tuning().ring_bytes);
      visit(one->output.data(), one->output.size());
      visit(reinterpret_cast<std::byte*>(&one->next), sizeof one->next);
      visit(reinterpret_cast<std::byte*>(&one->busy), sizeof one->busy);
    }
  }
  static std::size_t index(const One& one) { return static_cast<std::size_t>(one.rank); }

  State save() {
    State state;
    visit_shared([&](const std::byte* data, std::size_t byte_count) {
      state.shared.append(reinterpret_cast<const char*>(data), byte_count);
    });
    for (const auto& one : ranks_) state.engines.push_back(*one->engine);
    return state;
  }
  void restore(const State& state) {
    const char* from = state.shared.data();
    visit_shared([&](std::byte* data, std::size_t byte_count) {
      std::memcpy(data, from, byte_count);
      from += byte_count;
    });
    for (const auto& one : ranks_) one->engine.emplace(state.engines[index(*one)]);
  }
  static Key key_of(const State& state) {
    const std::string_view all = state.shared;
    const std::size_t half = all.size() / 2;
    const std::hash<std::string_view> hash;
    const std::size_t low = hash(all), front = hash(all.substr(0, half));
    return {low, front * 31 + hash(all.substr(half))};
  }

  /// Explores everything that follows from the present state; returns how many ways lead to an end.
  double from_here(Findings& found) {
    const State state = save();
    const Key key = key_of(state);
    if (const auto known = seen_.find(key); known != seen_.end()) return known->second;
    double ways = 0;
    bool all_done = true, moved = false;
    for (const auto& one : ranks_) {
      if (one->next == calls_.size()) continue;
      all_done = false;
      step(*one, found);
      if (save().shared != state.shared) {
        moved = true;
        ++found.steps;
        ways += from_here(found);
      }
      restore(state);
    }
    if (all_done) ways = 1;
    if (!all_done && !moved) {
      ++found.stuck;
      if (found.wrong.empty()) found.wrong = "nobody can step";
    }
    seen_.emplace(key, ways);
    return ways;
  }

  void step(One& one, Findings& found) {
    const Call& call = calls_[one.next];
    if (one.busy == 0) begin(one, call);
    memory_.common().abort_word.store(0);
    const bool done = one.engine->step();
    if (one.disagreed) found.wrong = "a disagreement";
    if (!done) return;
    one.busy = 0;
    ++one.next;
    const bool receives =
        call.op == Op::all_reduce || (call.op == Op::broadcast && one.rank != call.root);
    if (receives && std::memcmp(one.output.data(), inputs_.result(call), call.byte_count) != 0) {
      found.wrong = "a wrong result of " + describe(call);
    }
  }

  void begin(One& one, const Call& call) {
    Request& request = one.requests[one.next];
    const std::byte* input = inputs_.of(one.rank, call);
    if (call.in_place) {
      std::memcpy(one.output.data(), input, call.byte_count);
      input = one.output.data();
    }
    request = Request();
    request.op = call.op;
    request.input = ConstBuffer(input, call.byte_count, DType::u8);
    request.output = Buffer(one.output.data(), call.byte_count, DType::u8);
    request.dtype = DType::u8;
    request.count = call.byte_count;
    request.root = call.root;
    request.chain = one.next + 1;
    one.busy = 1;
    one.engine->begin(request);
  }

  const SharedMemory memory_;
  const Inputs inputs_;
  const std::vector<Call> calls_;
  std::vector<std::unique_ptr<One>> ranks_;
  std::unordered_map<Key, double, HashOfKey> seen_;  // ways to an end
};

/// Programs of all ranks with one tuning, each explored from the beginning.
class Exploration {
 public:
  Exploration(int ranks, std::size_t segment_lines, std::size_t ring_lines,
              Tuning planted = Tuning::sound)
      : ranks_(ranks),
        tuning_{.small_bytes = 0,
                .segment_bytes = segment_lines * kCacheLine,
                .ring_bytes = ring_lines * kCacheLine},
        planted_(planted) {}
  ~Exploration() {
    std::printf(
        "%d ranks, segments of %zu in rings of %zu lines: %zu programs, %zu states, %zu steps, "
        "%.1g interleavings; nobody can step in %zu states of %zu programs\n",
        ranks_, tuning_.segment_bytes / kCacheLine, tuning_.ring_bytes / kCacheLine, all_.programs,
        all_.states, all_.steps, all_.interleavings, all_.stuck, wrong_programs_);
  }

  /// Every pair of calls of up to `most_lines`; where both are broadcasts, from one root and from
  /// two. Returns the first thing that was wrong.
  std::string every_pair(std::size_t most_lines) {
    const int last = ranks_ - 1;
    for (std::size_t a = 1; a <= most_lines; ++a) {
      for (std::size_t b = 1; b <= most_lines; ++b) {
        run({all_reduce(a), all_reduce(b)});
        run({all_reduce(a), broadcast(b, last)});
        run({broadcast(a, last), all_reduce(b)});
        run({broadcast(a, 0), broadcast(b, 0)});
        run({broadcast(a, 0), broadcast(b, last)});
      }
    }
    return wrong_;
  }
  /// The same with a call between that moves no data.
  std::string every_pair_around_a_barrier(std::size_t most_lines) {
    for (std::size_t a = 1; a <= most_lines; ++a) {
      for (std::size_t b = 1; b <= most_lines; ++b) {
        run({all_reduce(a), Call(), all_reduce(b)});
        run({broadcast(a, 0), Call(), broadcast(b, 0)});
      }
    }
    return wrong_;
  }
  std::size_t wrong_programs() const { return wrong_programs_; }

 private:
  static Call all_reduce(std::size_t lines) {
    return {.op = Op::all_reduce, .byte_count = lines * kCacheLine, .in_place = lines % 2 == 0};
  }
  static Call broadcast(std::size_t lines, int root) {
    return {.op = Op::broadcast, .byte_count = lines * kCacheLine, .root = root};
  }
  void run(std::vector<Call> calls) {
    for (std::size_t i = 0; i < calls.size(); ++i) calls[i].shift = 100 * i;
    const Findings one = Model(ranks_, tuning_, planted_, calls).explore();
    ++all_.programs;
    all_.states += one.states;
    all_.steps += one.steps;
    all_.interleavings += one.interleavings;
    all_.stuck += one.stuck;
    if (one.wrong.empty()) return;
    ++wrong_programs_;
    if (!wrong_.empty()) return;
    wrong_ = one.wrong + ":";
    for (const Call& call : calls) wrong_ += " " + describe(call);
  }

  const int ranks_;
  const EngineTuning tuning_;
  const Tuning planted_;
  Findings all_;
  std::string wrong_;
  std::size_t wrong_programs_ = 0;
};

TEST(EngineModel, InNoStateOfTwoRanksAllWait) {
  EXPECT_EQ(Exploration(2, 1, 2).every_pair(6), "");
  EXPECT_EQ(Exploration(2, 2, 4).every_pair(kSanitized ? 6 : 12), "");
  EXPECT_EQ(Exploration(2, 2, 4).every_pair_around_a_barrier(kSanitized ? 4 : 8), "");
  EXPECT_EQ(Exploration(2, 3, 6).every_pair(kSanitized ? 6 : 12), "");
  EXPECT_EQ(Exploration(2, 2, 5).every_pair(kSanitized ? 4 : 8), "");
  EXPECT_EQ(Exploration(2, 2, 8).every_pair(kSanitized ? 4 : 8), "");
}

TEST(EngineModel, InNoStateOfThreeRanksAllWait) {
  EXPECT_EQ(Exploration(3, 1, 2).every_pair(kSanitized ? 4 : 6), "");
  EXPECT_EQ(Exploration(3, 2, 4).every_pair(kSanitized ? 4 : 7), "");
  EXPECT_EQ(Exploration(3, 2, 4).every_pair_around_a_barrier(kSanitized ? 2 : 4), "");
  EXPECT_EQ(Exploration(3, 3, 6).every_pair(kSanitized ? 4 : 7), "");
}

TEST(EngineModel, InARingOfLessThanTwoSegmentsThereAreStatesInWhichAllWait) {
  for (const int ranks : {2, 3}) {
    for (const auto& [segment, ring] : {std::pair{2, 2}, {3, 3}, {3, 4}, {4, 6}}) {
      Exploration exploration(ranks, segment, ring, Tuning::planted);
      EXPECT_EQ(exploration.every_pair(ring + 1).rfind("nobody can step: ", 0), 0u)
          << segment << " " << ring;
      EXPECT_GT(exploration.wrong_programs(), 0u);
    }
  }
}

}  // namespace
}  // namespace tutti::native::test
