// The order of operations on device memory and of what the program's streams do before and behind
// them, with delays everywhere; and that these tests would tell an order that is left out. On the
// stand-in of CUDA's driver, or with TUTTI_TEST_CUDA=real on a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "device/on_device.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using standin::buffer_of;
using standin::Control;
using standin::DeviceArray;
using standin::Driver;
using standin::Gate;
using standin::PinnedArray;
using standin::TestStream;

using Number = std::uint32_t;  // wraps around
using Numbers = std::vector<Number>;
using Pinned = PinnedArray<Number>;
using OnDevice = DeviceArray<Number>;

bool is_full() { return std::getenv("TUTTI_TEST_FULL") != nullptr; }
using Order = DeviceTest;

// ---- operations that are told apart by what comes out

constexpr int kRanks = 3;
constexpr std::size_t kEach = 200;  // elements for one rank
constexpr std::size_t kAll = kRanks * kEach;
constexpr Number kStale = 0xDEAD;  // what must not be seen

/// Element `i` of what `rank` puts in.
Number put_in(int rank, int round, std::size_t i) {
  return static_cast<Number>(rank + 1) * 1'000'003 + static_cast<Number>(round) * 10'007 +
         static_cast<Number>(i);
}

/// One operation on x and y, of kAll elements each: x goes in, and y comes out.
struct Operation {
  const char* name;
  std::size_t count;  // of y that is written; the rest stays
  std::function<void(ProcessGroup&, const Buffer& x, const Buffer& y)> run;
  std::function<Work(ProcessGroup&, const Buffer& x, const Buffer& y)> start;
  /// Element `i` of y afterwards.
  std::function<Number(int rank, int round, std::size_t i)> expected;
  bool is_in_place = false;  // what goes in is in y
};

Buffer part(const Buffer& whole, std::size_t begin, std::size_t count) {
  Buffer part = whole;
  part.data = static_cast<Number*>(whole.data) + begin;
  part.count = count;
  return part;
}
Buffer first(const Buffer& whole) { return part(whole, 0, kEach); }

Number sum_to(int end, int round, std::size_t i) {
  Number sum = 0;
  for (int rank = 0; rank < end; ++rank) sum += put_in(rank, round, i);
  return sum;
}
int after(int rank) { return (rank + 1) % kRanks; }
int before(int rank) { return (rank + kRanks - 1) % kRanks; }

std::vector<Message> exchanged(const ProcessGroup& world, const Buffer& x, const Buffer& y) {
  return {Message::send(x, after(world.rank())), Message::recv(y, before(world.rank()))};
}

/// A call in both forms, by the name it has in ProcessGroup.
#define TUTTI_BOTH(call, ...)                                                      \
  [](ProcessGroup& world, [[maybe_unused]] const Buffer& x, const Buffer& y) {     \
    world.call(__VA_ARGS__);                                                       \
  },                                                                               \
      [](ProcessGroup& world, [[maybe_unused]] const Buffer& x, const Buffer& y) { \
        return world.call(__VA_ARGS__, async);                                     \
      }

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"all_reduce", kAll, TUTTI_BOTH(all_reduce, x, y, ReduceOp::sum),
       [](int, int round, std::size_t i) { return sum_to(kRanks, round, i); }},
      {"all_reduce in place", kAll, TUTTI_BOTH(all_reduce, y, ReduceOp::sum),
       [](int, int round, std::size_t i) { return sum_to(kRanks, round, i); }, true},
      {"broadcast", kAll, TUTTI_BOTH(broadcast, y, {.root = 1}),
       [](int, int round, std::size_t i) { return put_in(1, round, i); }, true},
      {"reduce", kAll, TUTTI_BOTH(reduce, x, y, {.root = 1}),
       [](int rank, int round, std::size_t i) {
         return rank == 1 ? sum_to(kRanks, round, i) : kStale;
       }},
      {"gather", kAll, TUTTI_BOTH(gather, first(x), y, {.root = 2}),
       [](int rank, int round, std::size_t i) {
         return rank == 2 ? put_in(static_cast<int>(i / kEach), round, i % kEach) : kStale;
       }},
      {"all_gather", kAll, TUTTI_BOTH(all_gather, first(x), y, CollectiveOptions{}),
       [](int, int round, std::size_t i) {
         return put_in(static_cast<int>(i / kEach), round, i % kEach);
       }},
      {"scatter", kEach, TUTTI_BOTH(scatter, x, first(y), {.root = 1}),
       [](int rank, int round, std::size_t i) {
         return put_in(1, round, static_cast<std::size_t>(rank) * kEach + i);
       }},
      {"reduce_scatter", kEach, TUTTI_BOTH(reduce_scatter, x, first(y), ReduceOp::sum),
       [](int rank, int round, std::size_t i) {
         return sum_to(kRanks, round, static_cast<std::size_t>(rank) * kEach + i);
       }},
      {"all_to_all", kAll, TUTTI_BOTH(all_to_all, x, y, CollectiveOptions{}),
       [](int rank, int round, std::size_t i) {
         return put_in(static_cast<int>(i / kEach), round,
                       static_cast<std::size_t>(rank) * kEach + i % kEach);
       }},
      {"scan", kAll, TUTTI_BOTH(scan, x, y, ReduceOp::sum),
       [](int rank, int round, std::size_t i) { return sum_to(rank + 1, round, i); }},
      {"exclusive_scan", kAll, TUTTI_BOTH(exclusive_scan, x, y, ReduceOp::sum),
       [](int rank, int round, std::size_t i) { return sum_to(rank, round, i); }},
      {"send and recv", kAll,
       [](ProcessGroup& world, const Buffer& x, const Buffer& y) {
         // Rank 0 receives last, so that no two wait for each other.
         if (world.rank() == 0) world.send(x, after(0));
         world.recv(y, before(world.rank()));
         if (world.rank() != 0) world.send(x, after(world.rank()));
       },
       [](ProcessGroup& world, const Buffer& x, const Buffer& y) {
         Work sent = world.send(x, after(world.rank()), async);
         Work received = world.recv(y, before(world.rank()), async);
         sent.wait();
         return received;
       },
       [](int rank, int round, std::size_t i) { return put_in(before(rank), round, i); }},
      {"batch", kAll,
       [](ProcessGroup& world, const Buffer& x, const Buffer& y) {
         world.batch(exchanged(world, x, y));
       },
       [](ProcessGroup& world, const Buffer& x, const Buffer& y) {
         std::vector<Work> works = world.batch(exchanged(world, x, y), async);
         works[0].wait();
         return std::move(works[1]);
       },
       [](int rank, int round, std::size_t i) { return put_in(before(rank), round, i); }},
  };
  return all;
}
#undef TUTTI_BOTH

/// What one rank has; all that its stream does is queued there, so that nothing but the order keeps
/// a result right.
class Bench {
 public:
  explicit Bench(ProcessGroup& world)
      : world_(world), stream_(device_of_rank(world.rank())), stale_(stream_.device(), stale()) {}

  /// Queues one operation with what is before and behind it. `delay`: called at both places.
  void queue(const Operation& operation, int round, bool is_async,
             const std::function<void(const TestStream&)>& delay) {
    Numbers values(kAll);
    for (std::size_t i = 0; i < kAll; ++i) values[i] = put_in(world_.rank(), round, i);
    Step& step = steps_.emplace_back(operation, round, is_async, stream_.device(), values);
    x_.load(stale_, stream_.stream());
    y_.load(stale_, stream_.stream());
    delay(stream_);
    (operation.is_in_place ? y_ : x_).load(step.in, stream_.stream());
    if (is_async) {
      operation.start(world_, buffer_of(x_, stream_), buffer_of(y_, stream_)).wait();
    } else {
      operation.run(world_, buffer_of(x_, stream_), buffer_of(y_, stream_));
    }
    step.out.load(y_, stream_.stream());  // at once: it must wait for the result by itself
    x_.load(stale_, stream_.stream());
    delay(stream_);
  }
  /// How many of them came out wrong.
  int wrong_ones() {
    stream_.synchronize();
    int wrong = 0;
    for (const Step& step : steps_) wrong += is_right(step) ? 0 : 1;
    steps_.clear();
    return wrong;
  }

 private:
  static Numbers stale() { return Numbers(kAll, kStale); }
  struct Step {
    Step(const Operation& its_operation, int its_round, bool its_is_async, int device,
         const Numbers& values)
        : operation(its_operation),
          round(its_round),
          is_async(its_is_async),
          in(device, values),
          out(device, Numbers(kAll, 0)) {}
    const Operation& operation;
    const int round;
    const bool is_async;
    const Pinned in;
    Pinned out;
  };
  bool is_right(const Step& step) const {
    const Operation& operation = step.operation;
    for (std::size_t i = 0; i < kAll; ++i) {
      const Number expected =
          i < operation.count ? operation.expected(world_.rank(), step.round, i) : kStale;
      if (step.out.host()[i] == expected) continue;
      std::printf("rank %d, round %d: %s%s: element %zu is %u, not %u\n", world_.rank(), step.round,
                  operation.name, step.is_async ? ", asynchronous" : "", i, step.out.host()[i],
                  expected);
      return false;
    }
    return true;
  }

  ProcessGroup& world_;
  const TestStream stream_;
  const Pinned stale_;
  OnDevice x_{stream_.device(), kAll}, y_{stream_.device(), kAll};
  std::deque<Step> steps_;
};

TEST_F(Order, WithDelaysBeforeAndBehindEveryOperation) {
  const int rounds = is_full() ? 10 : 1;
  on_ranks(
      kRanks,
      [rounds](ProcessGroup& world) {
        Bench bench(world);
        std::mt19937 random(static_cast<unsigned>(world.rank()) + 1);
        const auto delay = [&random](const TestStream& stream) {
          standin::delay(stream, std::chrono::microseconds(1000 + random() % 49'000));
        };
        for (int round = 0; round < rounds; ++round) {
          for (const Operation& operation : operations()) {
            bench.queue(operation, 2 * round, false, delay);
            bench.queue(operation, 2 * round + 1, true, delay);
          }
        }
        EXPECT_EQ(bench.wrong_ones(), 0);
      },
      on_device());
}

// ---- many operations on several streams, against a model of all ranks

constexpr int kStreams = 3;
constexpr std::size_t kCount = kRanks * 30;
constexpr std::size_t kPatterns = 8;

/// What all ranks do next, and on which of their streams.
struct Next {
  explicit Next(std::mt19937& random)
      : what(random() % 6),
        stream(random() % kStreams),
        pattern(random() % kPatterns),
        root(static_cast<int>(random() % kRanks)),
        is_async(random() % 2 == 0),
        is_waited_for(random() % 3 == 0) {}
  const unsigned long what;
  const std::size_t stream, pattern;
  const int root;
  const bool is_async, is_waited_for;
};

Number pattern(int rank, std::size_t number, std::size_t i) {
  return put_in(rank, static_cast<int>(number), i) * 2'654'435'761U;
}

/// What one array of each rank holds, by rank.
using Model = std::vector<Numbers>;

void apply(const Next& next, Model& model) {
  const Model old = model;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (std::size_t i = 0; i < kCount; ++i) {
      Number& value = model[rank][i];
      switch (next.what) {
        case 0:
          value = old[0][i] + old[1][i] + old[2][i];
          break;
        case 1:
          value = old[0][i] ^ old[1][i] ^ old[2][i];
          break;
        case 2:
          value = old[static_cast<std::size_t>(next.root)][i];
          break;
        case 3:
          for (std::size_t other = 0; other < rank; ++other) value += old[other][i];
          break;
        case 4: {
          constexpr std::size_t kPart = kCount / kRanks;
          value = old[i / kPart][rank * kPart + i % kPart];
          break;
        }
        default:
          value = pattern(static_cast<int>(rank), next.pattern, i);
      }
    }
  }
}

/// One stream of a rank, with the array that it works on.
class Lane {
 public:
  explicit Lane(int device) : stream_(device), array_(device, Numbers(kCount, 1)) {}

  void call(ProcessGroup& world, const Next& next, const Pinned& fresh) {
    const Buffer x = buffer_of(array_, stream_);
    apply(next, model_);
    if (next.what == 5) {  // the program's own, which operations under way come before
      wait();
      array_.load(fresh, stream_.stream());
      return;
    }
    if (next.is_async) {
      works_.push_back(start(world, next, x));
      if (next.is_waited_for) wait();
    } else {
      run(world, next, x);
    }
  }
  void delay(std::chrono::microseconds by) const { standin::delay(stream_, by); }
  bool is_right(int rank) {
    wait();
    return array_.download(stream_.stream()) == model_[static_cast<std::size_t>(rank)];
  }

 private:
  void wait() {
    wait_all(works_);
    works_.clear();
  }
  static void run(ProcessGroup& world, const Next& next, const Buffer& x) {
    switch (next.what) {
      case 0:
        return world.all_reduce(x);
      case 1:
        return world.all_reduce(x, ReduceOp::bxor);
      case 2:
        return world.broadcast(x, {.root = next.root});
      case 3:
        return world.scan(x);
      default:
        return world.all_to_all(x);
    }
  }
  static Work start(ProcessGroup& world, const Next& next, const Buffer& x) {
    switch (next.what) {
      case 0:
        return world.all_reduce(x, async);
      case 1:
        return world.all_reduce(x, ReduceOp::bxor, async);
      case 2:
        return world.broadcast(x, {.root = next.root}, async);
      case 3:
        return world.scan(x, async);
      default:
        return world.all_to_all(x, async);
    }
  }

  const TestStream stream_;
  OnDevice array_;
  Model model_ = Model(kRanks, Numbers(kCount, 1));
  std::vector<Work> works_;
};

TEST_F(Order, OfManyOperationsOnThreeStreams) {
  const int count = is_full() ? 10'000 : 500;
  if (control != nullptr) control->set_delays(7, 200);
  on_ranks(
      kRanks,
      [count](ProcessGroup& world) {
        const int device = device_of_rank(world.rank());
        std::deque<Lane> lanes;
        for (int i = 0; i < kStreams; ++i) lanes.emplace_back(device);
        std::deque<Pinned> patterns;
        for (std::size_t number = 0; number < kPatterns; ++number) {
          Numbers values(kCount);
          for (std::size_t i = 0; i < kCount; ++i) values[i] = pattern(world.rank(), number, i);
          patterns.emplace_back(device, values);
        }
        std::mt19937 same(11), own(static_cast<unsigned>(world.rank()));
        for (int i = 0; i < count; ++i) {
          const Next next(same);
          Lane& lane = lanes[next.stream];
          if (own() % 4 == 0) lane.delay(std::chrono::microseconds(own() % 300));
          lane.call(world, next, patterns[next.pattern]);
          if (i % 50 == 49) {
            ASSERT_TRUE(lane.is_right(world.rank())) << "operation " << i;
          }
        }
        for (Lane& lane : lanes) EXPECT_TRUE(lane.is_right(world.rank()));
      },
      on_device());
  if (control != nullptr) {
    EXPECT_EQ(control->counts().freed_in_use, 0U);
  }
}

// ---- that these would tell what is left out

constexpr Number kOfHost = 2;

/// What rank 1 does on its device, and rank 0 in memory of the host.
struct Call {
  const char* name;
  bool is_of_x;  // what goes in is in x; else y gets stale values, late, before the call
  bool is_of_y;  // what comes out is in y, on rank 1; else it is at rank 0
  std::function<Work(ProcessGroup&, const Buffer& x, const Buffer& y)> start;
};

const std::vector<Call>& calls() {
  static const std::vector<Call> all = {
      {"all_reduce", true, true,
       [](ProcessGroup& world, const Buffer& x, const Buffer& y) {
         return world.all_reduce(x, y, ReduceOp::sum, async);
       }},
      {"broadcast", false, true,
       [](ProcessGroup& world, const Buffer&, const Buffer& y) {
         return world.broadcast(y, async);
       }},
      {"recv", false, true,
       [](ProcessGroup& world, const Buffer&, const Buffer& y) {
         if (world.rank() == 0) return world.send(y, 1, async);
         return world.recv(y, 0, async);
       }},
      {"send", true, false,
       [](ProcessGroup& world, const Buffer& x, const Buffer& y) {
         if (world.rank() == 0) return world.recv(y, 1, async);
         return world.send(x, 0, async);
       }},
  };
  return all;
}

const Call& call_of(std::string_view name) {
  return *std::find_if(calls().begin(), calls().end(),
                       [&](const Call& call) { return call.name == name; });
}

enum class Late : std::uint8_t { begin, copy_in, copy_out };

/// The nth call of a function of CUDA in one operation.
struct LeftOut {
  const char* call;
  const char* function;
  int nth;
  Late late;  // it can be seen only where this is late
  const char* what;
};

constexpr LeftOut kLeftOut[] = {
    {"all_reduce", "cuStreamWaitEvent", 1, Late::copy_in,
     "the copy in waits for the program's stream"},
    {"all_reduce", "cuStreamWaitEvent", 3, Late::copy_out,
     "the program's stream waits for the copy out"},
    {"all_reduce", "cuEventRecord", 1, Late::begin, "where the program's stream was"},
    {"all_reduce", "cuEventRecord", 3, Late::copy_in, "where the copy in ends"},
    {"all_reduce", "cuEventRecord", 6, Late::copy_out, "where the copy out ends"},
    {"all_reduce", "cuEventQuery", 1, Late::copy_in, "the host waits for the copy in"},
    {"broadcast", "cuStreamWaitEvent", 1, Late::begin,
     "the copy out waits for the program's stream"},
    {"broadcast", "cuStreamWaitEvent", 2, Late::copy_out,
     "the program's stream waits for the copy out"},
    {"recv", "cuStreamWaitEvent", 1, Late::begin, "the copy out waits for the program's stream"},
    {"recv", "cuStreamWaitEvent", 2, Late::copy_out, "the program's stream waits for the copy out"},
    {"send", "cuStreamWaitEvent", 1, Late::begin, "the copy in waits for the program's stream"},
};

/// Opens a gate and lets go of what hangs, once, and again until it goes: what should be let go of
/// may not be there yet.
class Opener {
 public:
  Opener(Gate& gate, const Control& control, std::chrono::milliseconds after)
      : thread_([this, &gate, &control, after] {
          const auto begin = std::chrono::steady_clock::now();
          while (!is_over_) {
            std::this_thread::sleep_for(1ms);
            if (std::chrono::steady_clock::now() - begin < after) continue;
            gate.open();
            control.release();
          }
        }) {}
  ~Opener() {
    is_over_ = true;
    thread_.join();
  }
  Opener(const Opener&) = delete;
  Opener& operator=(const Opener&) = delete;

 private:
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

/// What rank 1 has of its own.
class OneCall {
 public:
  OneCall(const Call& call, const Control& control, Number fresh)
      : call_(call), control_(control), fresh_(0, {fresh}) {
    x_.load(stale_, stream_.stream());
    y_.load(stale_, stream_.stream());
    stream_.synchronize();
  }

  /// What comes out. `left_out`: null: nothing, so that the call has to wait for what is late.
  Number run(ProcessGroup& world, const LeftOut* left_out, Late late) {
    if (late == Late::copy_out)
      control_.hang("cuMemcpyAsync", call_.is_of_x ? 3 : 2);  // after load and copy in
    if (left_out != nullptr) control_.ignore(left_out->function, left_out->nth);
    Gate gate(stream_);
    const Opener opener(gate, control_, left_out == nullptr ? kLate : kAtLast);
    if (late == Late::copy_out) gate.open();
    if (call_.is_of_x) {
      x_.load(fresh_, stream_.stream());
    } else {
      y_.load(stale_, stream_.stream());
    }
    Work work = call_.start(world, buffer_of(x_, stream_), buffer_of(y_, stream_));
    work.wait();
    if (late == Late::begin) work.wait_host();
    gate.open();
    out_.load(y_, stream_.stream());
    stream_.synchronize();
    control_.release();
    return out_.host()[0];
  }

 private:
  static constexpr auto kLate = 15ms, kAtLast = 5000ms;

  const Call& call_;
  const Control& control_;
  const TestStream stream_{0};
  const Pinned stale_{0, {1}}, fresh_;
  Pinned out_{0, {0}};
  OnDevice x_{0, 1}, y_{0, 1};
};

/// Whether it comes out right; `left_out`: null: nothing is.
bool is_right(const Call& call, const LeftOut* left_out, Late late) {
  const Control& control = *Driver::get().control;
  control.reset();
  static Number fresh = 0;
  fresh += 100;  // memory may hold what was in it before
  const Number expected = call.name == std::string_view("all_reduce") ? fresh + kOfHost : fresh;
  std::atomic<bool> is_right{true};
  on_ranks(
      2,
      [&](ProcessGroup& world) {
        if (world.rank() == 1) {
          OneCall one(call, control, fresh);
          world.barrier();
          const Number got = one.run(world, left_out, late);
          if (call.is_of_y && got != expected) is_right = false;
          return;
        }
        Numbers x = {kOfHost}, y = {call.is_of_x ? 0 : fresh};
        world.barrier();
        call.start(world, x, y).wait();
        if (y[0] != expected) is_right = false;
      },
      on_device());
  control.reset();
  return is_right;
}

using LeftOutOrder = StandinTest;

TEST_F(LeftOutOrder, NothingLeftOutIsRight) {
  for (const Call& call : calls()) {
    EXPECT_TRUE(is_right(call, nullptr, Late::begin)) << call.name;
    if (call.is_of_y) {
      EXPECT_TRUE(is_right(call, nullptr, Late::copy_out)) << call.name;
    }
  }
}

TEST_F(LeftOutOrder, EveryEventThatIsLeftOutIsSeen) {
  if (kNoForks && std::getenv("TUTTI_TEST_RACE") == nullptr) GTEST_SKIP() << "it is a data race";
  for (const LeftOut& left_out : kLeftOut) {
    EXPECT_FALSE(is_right(call_of(left_out.call), &left_out, left_out.late))
        << left_out.call << ", call " << left_out.nth << " of " << left_out.function << ": "
        << left_out.what;
  }
}

}  // namespace
}  // namespace tutti
