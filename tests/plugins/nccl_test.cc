// The backend nccl on the stand-ins of NCCL and of CUDA (standin/nccl.h says what these are not),
// through the interface that a group uses: every operation against a reference, and how its groups
// end.
#include "standin/nccl.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/half.h"
#include "base/legality.h"
#include "device/driver_memory.h"
#include "ranks.h"
#include "standin/program.h"
#include "tutti/backend.h"
#include "tutti/test_kit.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using standin::DeviceArray;
using standin::TestStream;
using Clock = std::chrono::steady_clock;

template <class Function>
Function* find(const char* file, const char* symbol) {
  void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  void* const found = ::dlsym(library, symbol);
  if (found == nullptr) throw std::runtime_error(symbol);
  return reinterpret_cast<Function*>(found);
}

const standin::NcclControl& control(const char* file = TUTTI_STANDIN_NCCL) {
  return *find<const standin::NcclControl*()>(file, "tutti_standin_nccl")();
}

// ---- ranks

struct Options {
  const char* nccl = TUTTI_STANDIN_NCCL;
  std::chrono::nanoseconds timeout = 20s;
  std::vector<int> devices = {};  // by rank; empty: each its own
};

/// What a rank has.
class Rank {
 public:
  Rank(const GroupSpec& spec, int device, std::barrier<>& entry)
      : rank(spec.rank),
        ranks(static_cast<int>(spec.world_ranks.size())),
        stream(device),
        backend(find<Backend*(const GroupSpec&)>(TUTTI_NCCL_PLUGIN, "tutti_backend_make")(spec)),
        entry_(entry) {}

  /// As the group does: all ranks have come when the backend is called.
  void run(Request request) {
    entry_.arrive_and_wait();
    backend->run(request);
  }
  Request all_reduce(DeviceArray<float>& data) {
    Request request;
    request.op = Op::all_reduce;
    request.dtype = DType::f32;
    request.count = data.count();
    request.output = Buffer::cuda(data.data(), data.count(), data.device(), stream.stream().handle);
    request.input = request.output;
    request.stream = stream.stream();
    request.seq = ++seq_;
    request.stall = Deadline::after(stall);
    return request;
  }
  void meet() { entry_.arrive_and_wait(); }

  const int rank, ranks;
  const TestStream stream;
  std::unique_ptr<Backend> backend;
  std::chrono::nanoseconds stall = 20s;

 private:
  std::barrier<>& entry_;
  std::uint64_t seq_ = 0;
};

GroupSpec spec_of(int rank, int ranks, std::shared_ptr<Store> store, const Options& options) {
  GroupSpec spec;
  spec.id = 1;
  spec.rank = rank;
  spec.world_ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(spec.world_ranks.begin(), spec.world_ranks.end(), 0);
  spec.hosts.resize(static_cast<std::size_t>(ranks));
  spec.store = std::move(store);
  spec.timeout = options.timeout;
  for (const SettingInfo& row : describe_settings()) spec.settings[row.name] = row.value;
  spec.settings["stall_timeout"] = "300ms";
  spec.settings["nccl_library"] = options.nccl;
  spec.settings["cuda_library"] = standin::driver_file();
  spec.on_failure = [](const std::function<void(const Error&)>&) {};
  return spec;
}

/// What each rank ended with; empty: well.
using Ends = std::vector<std::optional<Error>>;

Ends collect(int ranks, const std::function<void(Rank&)>& function, const Options& options = {}) {
  const auto store = make_memory_store();
  std::barrier<> entry(ranks);
  Ends ends(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const int device = options.devices.empty() ? rank : options.devices.at(rank);
        Rank me(spec_of(rank, ranks, store, options), device, entry);
        function(me);
      } catch (const Error& error) {
        ends[static_cast<std::size_t>(rank)] = error;
      } catch (const std::exception& other) {
        ADD_FAILURE() << "rank " << rank << ": " << other.what();
      }
      entry.arrive_and_drop();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

/// As the other one, of backends without a group.
void on_ranks(int ranks, const std::function<void(Rank&)>& function, const Options& options = {}) {
  for (const auto& end : collect(ranks, function, options)) {
    if (end) ADD_FAILURE() << end->what();
  }
}

class NcclBackend : public testing::Test {
 protected:
  void SetUp() override {
    standin::Driver::get().control->reset();
    standin::Driver::get().control->set_device_count(standin::kMostDevices);
    for (const char* file : {TUTTI_STANDIN_NCCL, TUTTI_STANDIN_NCCL_2_18}) control(file).reset();
  }
  void TearDown() override {
    for (const char* file : {TUTTI_STANDIN_NCCL, TUTTI_STANDIN_NCCL_2_18}) {
      const standin::NcclCounts counts = control(file).counts();
      EXPECT_EQ(counts.living, 0);
      EXPECT_EQ(counts.overlaps, 0);
      EXPECT_EQ(counts.operators, 0);
    }
    const standin::Counts left = standin::Driver::get().control->counts();
    EXPECT_EQ(left.events, 0U);
    EXPECT_EQ(left.streams, 0U);
    EXPECT_EQ(left.device_bytes, 0U);
    EXPECT_EQ(left.freed_in_use, 0U);
  }
};

// ---- the reference

using Bytes = std::vector<std::byte>;

/// Element `i` of the input of `rank`: small enough for exact sums and products in every type.
double value(int rank, std::size_t i) {
  return static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 3 + i / 5) % 3);
}

template <class T>
void put(Bytes& bytes, T element) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&element);
  bytes.insert(bytes.end(), begin, begin + sizeof element);
}

void append(Bytes& bytes, DType dtype, double real, double imaginary) {
  switch (dtype) {
    case DType::bool_:
      return put(bytes, static_cast<std::uint8_t>(real != 0));
    case DType::u8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return put(bytes, static_cast<std::uint8_t>(real));
    case DType::i8:
      return put(bytes, static_cast<std::int8_t>(real));
    case DType::i16:
    case DType::u16:
      return put(bytes, static_cast<std::uint16_t>(real));
    case DType::i32:
    case DType::u32:
      return put(bytes, static_cast<std::uint32_t>(real));
    case DType::i64:
    case DType::u64:
      return put(bytes, static_cast<std::uint64_t>(real));
    case DType::f16:
      return put(bytes, half_bits(static_cast<float>(real)));
    case DType::bf16:
      return put(bytes, bfloat_bits(static_cast<float>(real)));
    case DType::f32:
      return put(bytes, static_cast<float>(real));
    case DType::f64:
      return put(bytes, real);
    case DType::complex64:
      return put(bytes,
                 std::complex<float>(static_cast<float>(real), static_cast<float>(imaginary)));
    case DType::complex128:
      return put(bytes, std::complex<double>(real, imaginary));
  }
}

struct Case {
  Op op = Op::all_reduce;
  DType dtype = DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  std::size_t count = 0;
  bool uneven = false;
  bool in_place = false;
  int root = 0;
};

ReduceOp reduce_op(ReduceOp::Kind kind) {
  using Kind = ReduceOp::Kind;
  switch (kind) {
    case Kind::sum:
      return ReduceOp::sum;
    case Kind::product:
      return ReduceOp::product;
    case Kind::min:
      return ReduceOp::min;
    case Kind::max:
      return ReduceOp::max;
    case Kind::avg:
      return ReduceOp::avg;
    case Kind::premul_sum:
      return ReduceOp::premul_sum(0.5);
    case Kind::band:
      return ReduceOp::band;
    case Kind::bor:
      return ReduceOp::bor;
    case Kind::bxor:
      return ReduceOp::bxor;
  }
  return ReduceOp::sum;
}

double combine(ReduceOp::Kind kind, DType dtype, const std::vector<double>& values) {
  double result = values.front();
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (kind == ReduceOp::Kind::product) {
      result *= values[i];
    } else if (kind == ReduceOp::Kind::min) {
      result = std::min(result, values[i]);
    } else if (kind == ReduceOp::Kind::max) {
      result = std::max(result, values[i]);
    } else {
      result += values[i];
    }
  }
  if (kind == ReduceOp::Kind::premul_sum) return result * 0.5;
  if (kind != ReduceOp::Kind::avg) return result;
  const auto n = static_cast<double>(values.size());
  const bool is_double = dtype == DType::f64 || dtype == DType::complex128;
  return is_double ? result / n : static_cast<float>(result) / static_cast<float>(n);
}

/// What one case is for one rank.
class Play {
 public:
  Play(const Case& what, int rank, int ranks) : what_(what), rank_(rank), ranks_(ranks) {}

  /// How many elements go from `from` to `to`, in operations with parts.
  std::size_t edge(int from, int to) const {
    if (!what_.uneven) return what_.count;
    if (what_.op == Op::all_to_all) {
      return static_cast<std::size_t>((from + 2 * to) % 3) * what_.count;
    }
    return part(what_.op == Op::scatter || what_.op == Op::reduce_scatter ? to : from);
  }
  Bytes input() const { return has_input() ? elements(rank_, 0, input_count()) : Bytes(); }
  Bytes output() const {
    const Op op = what_.op;
    if ((op == Op::reduce || op == Op::gather) && rank_ != what_.root) return {};
    if (op == Op::broadcast) return elements(what_.root, 0, what_.count);
    if (op == Op::all_reduce || op == Op::reduce) return reduced(0, what_.count);
    if (op == Op::reduce_scatter) return reduced(first_of(0, rank_), edge(0, rank_));
    if (op == Op::scatter) {
      return elements(what_.root, first_of(what_.root, rank_), edge(what_.root, rank_));
    }
    Bytes all;
    for (int from = 0; from < ranks_; ++from) {
      const std::size_t first = op == Op::all_to_all ? first_of(from, rank_) : 0;
      const Bytes part = elements(from, first, edge(from, rank_));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  /// In place: where the smaller buffer lies in the larger one.
  std::size_t place() const {
    const bool has_parts = what_.op == Op::all_gather || what_.op == Op::gather ||
                           what_.op == Op::scatter || what_.op == Op::reduce_scatter;
    std::size_t before = 0;
    for (int i = 0; has_parts && i < rank_; ++i) {
      const bool gathers = what_.op == Op::gather || what_.op == Op::all_gather;
      before += gathers ? edge(i, rank_) : edge(rank_, i);
    }
    return before * size_of(what_.dtype);
  }
  std::vector<std::size_t> send_counts() const {
    const bool sends = what_.op == Op::reduce_scatter || what_.op == Op::all_to_all ||
                       (what_.op == Op::scatter && rank_ == what_.root);
    std::vector<std::size_t> counts;
    for (int to = 0; sends && to < ranks_; ++to) counts.push_back(edge(rank_, to));
    return counts;
  }
  std::vector<std::size_t> recv_counts() const {
    const bool receives = what_.op == Op::all_gather || what_.op == Op::all_to_all ||
                          (what_.op == Op::gather && rank_ == what_.root);
    std::vector<std::size_t> counts;
    for (int from = 0; receives && from < ranks_; ++from) counts.push_back(edge(from, rank_));
    return counts;
  }
  /// Request::count.
  std::size_t count(std::size_t input_elements, std::size_t output_elements) const {
    if (!what_.uneven) return what_.count;
    return what_.op == Op::all_gather || what_.op == Op::scatter ? output_elements : input_elements;
  }

 private:
  std::size_t part(int rank) const {
    return rank % 2 == 1 ? 0 : what_.count + static_cast<std::size_t>(rank);
  }
  bool has_input() const { return what_.op != Op::scatter || rank_ == what_.root; }
  /// Where in the input of `from` the part for `to` begins.
  std::size_t first_of(int from, int to) const {
    std::size_t first = 0;
    for (int i = 0; i < to; ++i) first += edge(from, i);
    return first;
  }
  std::size_t input_count() const {
    const Op op = what_.op;
    if (op == Op::scatter || op == Op::reduce_scatter || op == Op::all_to_all) {
      return first_of(rank_, ranks_);
    }
    return op == Op::gather || op == Op::all_gather ? edge(rank_, 0) : what_.count;
  }
  Bytes elements(int rank, std::size_t first, std::size_t count) const {
    Bytes bytes;
    for (std::size_t i = first; i < first + count; ++i) {
      append(bytes, what_.dtype, value(rank, i), value(rank, i + 1));
    }
    return bytes;
  }
  Bytes reduced(std::size_t first, std::size_t count) const {
    Bytes bytes;
    const auto at = [&](std::size_t i) {
      std::vector<double> values;
      for (int rank = 0; rank < ranks_; ++rank) values.push_back(value(rank, i));
      return combine(what_.reduce.kind(), what_.dtype, values);
    };
    for (std::size_t i = first; i < first + count; ++i)
      append(bytes, what_.dtype, at(i), at(i + 1));
    return bytes;
  }

  const Case what_;
  const int rank_, ranks_;
};

std::string name_of_case(const Case& what, int ranks) {
  return std::string(name_of(what.op)) + " of " + std::string(name_of(what.dtype)) + " " +
         std::string(name_of(what.reduce.kind())) + " " + std::to_string(what.count) +
         (what.uneven ? " uneven" : "") + (what.in_place ? " in place" : "") + " root " +
         std::to_string(what.root) + " of " + std::to_string(ranks);
}

void play(Rank& me, const Case& what) {
  const Play mine(what, me.rank, me.ranks);
  const Bytes input = mine.input(), due = mine.output();
  const std::vector<std::size_t> send_counts = mine.send_counts(), recv_counts = mine.recv_counts();
  // Both buffers; in place the larger one, which holds the other.
  const bool input_is_larger = input.size() > due.size();
  const std::size_t place = what.in_place ? mine.place() : 0;
  Bytes memory(std::max(input.size(), due.size()) + (what.in_place ? 0 : due.size()) + 1,
               std::byte{0x5A});
  const std::size_t input_at = what.in_place && !input_is_larger ? place : 0;
  const std::size_t output_at = !what.in_place ? input.size() : input_is_larger ? place : 0;
  memory.resize(std::max({memory.size(), input_at + input.size(), output_at + due.size()}));
  std::copy(input.begin(), input.end(), memory.begin() + static_cast<std::ptrdiff_t>(input_at));
  DeviceArray<std::byte> data(me.stream.device(), memory);

  Request request;
  request.op = what.op;
  request.dtype = what.dtype;
  request.reduce = what.reduce;
  request.root = what.root;
  request.uneven = what.uneven;
  if (what.uneven) {
    request.send_counts = send_counts;
    request.recv_counts = recv_counts;
  }
  request.stream = me.stream.stream();
  request.stall = Deadline::after(me.stall);
  const std::size_t bytes = size_of(what.dtype);
  request.count = mine.count(input.size() / bytes, due.size() / bytes);
  const int device = me.stream.device();
  if (!input.empty() || what.op != Op::scatter || me.rank == what.root) {
    request.input = ConstBuffer::cuda(data.data() + input_at, input.size() / bytes, what.dtype,
                                      device, request.stream.handle);
  }
  const bool has_output = me.rank == what.root || (what.op != Op::reduce && what.op != Op::gather);
  if (has_output) {
    request.output = Buffer::cuda(data.data() + output_at, due.size() / bytes, what.dtype, device,
                                  request.stream.handle);
  }
  me.run(request);
  const Bytes after = data.download(me.stream.stream());
  EXPECT_TRUE(
      std::equal(due.begin(), due.end(), after.begin() + static_cast<std::ptrdiff_t>(output_at)))
      << name_of_case(what, me.ranks) << ", rank " << me.rank;
}

constexpr Op kOps[] = {Op::broadcast,  Op::all_reduce, Op::reduce,         Op::gather,
                       Op::all_gather, Op::scatter,    Op::reduce_scatter, Op::all_to_all};

bool can_be_uneven(Op op) {
  return op == Op::gather || op == Op::all_gather || op == Op::scatter ||
         op == Op::reduce_scatter || op == Op::all_to_all;
}

/// Every operation that is supported, with all dtypes and reduce operations, in its forms by turns.
std::vector<Case> all_cases(const Backend& backend, int ranks) {
  std::vector<Case> cases;
  std::size_t turn = 0;
  for (const Op op : kOps) {
    for (std::size_t dtype = 0; dtype < kDTypeCount; ++dtype) {
      for (std::size_t kind = 0; kind < (reduces(op) ? kReduceKindCount : 1); ++kind) {
        const OpKey key{op, static_cast<DType>(dtype), static_cast<ReduceOp::Kind>(kind),
                        Device::Kind::cuda};
        if (!backend.supports(key).yes) continue;
        for (const bool uneven : {false, true}) {
          if (uneven && !can_be_uneven(op)) continue;
          // A broadcast always is; parts that differ do not lie where they came from.
          const bool in_place =
              op == Op::broadcast || (turn / 2 % 2 == 1 && !(uneven && op == Op::all_to_all));
          const std::size_t counts[] = {1, 37, 0, 1000, 5};
          cases.push_back({op, key.dtype, reduce_op(key.reduce), counts[turn % 5], uneven, in_place,
                           static_cast<int>(turn / 3 % static_cast<std::size_t>(ranks))});
          ++turn;
        }
      }
    }
  }
  return cases;
}

void play_all(const Options& options, int ranks) {
  on_ranks(
      ranks,
      [&](Rank& me) {
        for (const Case& what : all_cases(*me.backend, ranks)) play(me, what);
        me.backend->close(Deadline::after(10s));
      },
      options);
}

TEST_F(NcclBackend, EveryOperationGivesWhatItShould) {
  for (const int ranks : {1, 2, 3, 4}) play_all({}, ranks);
}

TEST_F(NcclBackend, OperationsOfAnNcclWithoutTheNewerOnes) {
  for (const int ranks : {1, 3}) play_all({.nccl = TUTTI_STANDIN_NCCL_2_18}, ranks);
}

TEST_F(NcclBackend, OperationsThatAreInProgressForAWhile) {
  control().set_polls(3);
  play_all({}, 2);
}

TEST_F(NcclBackend, IsOrderedWithItsStream) {
  standin::Driver::get().control->set_delays(7, 300);
  on_ranks(3, [](Rank& me) {
    DeviceArray<float> a(me.stream.device(), std::vector<float>(1000, 1));
    const DeviceArray<float> source(me.stream.device(), std::vector<float>(1000, 1));
    DeviceArray<float> b(me.stream.device(), std::vector<float>(1000, 0));
    TestStream other(me.stream.device());
    for (int round = 0; round < 20; ++round) {
      standin::delay(me.stream, std::chrono::microseconds(100 * me.rank));
      a.load(source, me.stream.stream());
      me.run(me.all_reduce(a));
      b.load(a, me.stream.stream());
      Request request = me.all_reduce(a);  // in another stream, which waits for the first one
      me.stream.synchronize();
      request.stream = other.stream();
      me.run(request);
      other.synchronize();
      EXPECT_EQ(b.download(me.stream.stream()), std::vector<float>(1000, 3));
      EXPECT_EQ(a.download(me.stream.stream()), std::vector<float>(1000, 9));
    }
    me.backend->close(Deadline::after(10s));
  });
}

TEST_F(NcclBackend, GroupsHaveCommunicatorsOfTheirOwn) {
  const auto store = make_memory_store();
  on_ranks(3, [&](Rank& me) {
    Options options;
    const auto other =
        me.backend->make_group(spec_of(2 - me.rank, 3, make_prefix_store(store, "2"), options));
    DeviceArray<float> data(me.stream.device(), {1.F});
    me.run(me.all_reduce(data));
    Request request = me.all_reduce(data);
    request.op = Op::broadcast;
    request.root = 0;
    me.meet();
    other->run(request);
    EXPECT_EQ(data.download(me.stream.stream()), std::vector<float>{3});
    EXPECT_EQ(control().counts().living, 6);
    me.meet();
    other->close(Deadline::after(10s));
    me.backend->close(Deadline::after(10s));
  });
}

// ---- in groups

test_kit::RunOptions in_groups(Settings settings = {}) {
  test_kit::RunOptions options;
  options.init.backend = "cpu:native,cuda:nccl";
  options.init.settings = std::move(settings);
  options.init.settings["cuda_library"] = standin::driver_file();
  options.init.settings["nccl_library"] = TUTTI_STANDIN_NCCL;
  return options;
}

TEST_F(NcclBackend, GroupsPutThroughItWhatItCanDo) {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto check = [](ProcessGroup& world) {
      const TestStream stream(world.rank());
      const test_kit::DeviceMemory memory = standin::memory_of(stream);
      const test_kit::ConformanceReport report = test_kit::run_conformance(
          world, {.counts = {1, 1000}, .one_variant_in = 8, .memory = &memory});
      EXPECT_GT(report.cells, 100);
      for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
    };
    test_kit::run_ranks(ranks, check, in_groups());
    EXPECT_GT(control().calls("ncclAllReduce"), 10U);
  }
}

TEST_F(NcclBackend, GroupsFollowTheStreamsOfTheProgram) {
  standin::Driver::get().control->set_delays(11, 200);
  const auto check = [](ProcessGroup& world) {
    std::deque<TestStream> streams;
    std::deque<DeviceArray<float>> arrays;
    for (int i = 0; i < 3; ++i) {
      streams.emplace_back(world.rank());
      arrays.emplace_back(world.rank(), std::vector<float>(100, 0));
    }
    std::mt19937 random(5);  // the same on all ranks, who call the same
    std::vector<Work> works(3);
    for (int round = 0; round < 300; ++round) {
      const std::size_t i = random() % 3;
      works[i].wait();
      arrays[i].upload(std::vector<float>(100, static_cast<float>(round + world.rank())),
                       streams[i].stream());
      if (random() % 2 == 0) {
        world.all_reduce(standin::buffer_of(arrays[i], streams[i]));
      } else {
        works[i] = world.all_reduce(standin::buffer_of(arrays[i], streams[i]), async);
      }
      const std::size_t seen = random() % 4;
      if (seen != i) continue;
      works[i].wait();
      ASSERT_EQ(arrays[i].download(streams[i].stream()),
                std::vector<float>(100, static_cast<float>(2 * round + 1)));
    }
    for (const TestStream& stream : streams) stream.synchronize();  // the arrays go first
  };
  test_kit::run_ranks(2, check, in_groups());
}

TEST_F(NcclBackend, AWorkThatWasWaitedForLetsTheHostGoOn) {
  test_kit::run_ranks(
      1,
      [](ProcessGroup& world) {
        const TestStream stream(0);
        const DeviceArray<float> x(0, std::vector<float>(10, 1));
        world.all_reduce(standin::buffer_of(x, stream));
        standin::Gate gate(stream);
        { world.all_reduce(standin::buffer_of(x, stream), async).wait(); }
        EXPECT_FALSE(stream.is_idle());
        gate.open();
        EXPECT_EQ(x.download(stream.stream()), std::vector<float>(10, 1));
      },
      in_groups());
}

TEST_F(NcclBackend, GroupsOfItEndTogether) {
  const auto check = [](ProcessGroup& world) {
    const TestStream stream(world.rank());
    const DeviceArray<float> x(world.rank(), std::vector<float>(10, 1));
    const Buffer buffer = standin::buffer_of(x, stream);
    world.all_reduce(buffer);
    EXPECT_EQ(x.download(stream.stream()), std::vector<float>(10, 3));
    world.barrier();
    if (world.rank() == 1) control().fail("ncclAllReduce", 1, 3);
    world.barrier();
    try {
      world.all_reduce(buffer);
      world.all_reduce(buffer);
      ADD_FAILURE() << "rank " << world.rank() << " has heard of nothing";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("ncclAllReduce failed"), std::string::npos)
          << error.what();
    }
    (void)x.download(stream.stream());  // its stream was let go of
  };
  const auto body = [&](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    check(world);
    return std::string();
  };
  for (const test_kit::Outcome& outcome : test_kit::collect_ranks(3, body, in_groups())) {
    EXPECT_EQ(outcome.failure, "");
  }
}

/// What each rank of two ends with that goes on until the group fails.
template <class Call>
void expect_all_told(Call&& call, const std::vector<int>& culprits, const std::string& text) {
  const auto body = [&](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    const Error error = call(world);
    EXPECT_EQ(error.context().culprits, culprits);
    expect_text(error, text);
    return std::string();
  };
  for (const test_kit::Outcome& outcome : test_kit::collect_ranks(2, body, in_groups())) {
    EXPECT_EQ(outcome.failure, "");
  }
}

/// What a program gets that forgets to choose its device.
TEST_F(NcclBackend, TwoRanksOfAGroupOnOneDeviceAreToldOfEachOther) {
  expect_all_told(
      [](ProcessGroup& world) {
        const TestStream stream(0);
        const DeviceArray<float> x(0, {1});
        return thrown_by([&] { world.all_reduce(standin::buffer_of(x, stream)); });
      },
      {0, 1}, "ranks 0 and 1 both use the device 0000:3B:00.0");
}

TEST_F(NcclBackend, ABufferOfAnotherDeviceIsToldToAll) {
  expect_all_told(
      [](ProcessGroup& world) {
        const TestStream stream(world.rank()), other(2 * world.rank());
        const DeviceArray<float> x(stream.device(), {1}), y(other.device(), {1});
        world.all_reduce(standin::buffer_of(x, stream));
        const Error error = thrown_by([&] {
          world.all_reduce(standin::buffer_of(y, other));  // of which the device is told
          for (;;) world.barrier();
        });
        for (const TestStream* const each : {&stream, &other}) each->synchronize();
        return error;
      },
      {1}, "the buffer is on cuda:2, and NCCL serves this group on cuda:1");
}

// ---- what it cannot do

TEST_F(NcclBackend, SaysWhatItCannotDo) {
  on_ranks(1, [](Rank& me) {
    const auto why = [&](Op op, DType dtype, ReduceOp::Kind kind,
                         Device::Kind device = Device::Kind::cuda) {
      const Support support = me.backend->supports({op, dtype, kind, device});
      EXPECT_EQ(support.yes, support.reason.empty());
      return support.reason;
    };
    using Kind = ReduceOp::Kind;
    EXPECT_EQ(why(Op::broadcast, DType::f32, Kind::sum, Device::Kind::cpu),
              "nccl moves device memory only; copy to the device, or use another backend");
    EXPECT_EQ(why(Op::scan, DType::f32, Kind::sum), "NCCL has no scans");
    EXPECT_EQ(why(Op::all_reduce, DType::i32, Kind::bor), "NCCL has no bitwise operations");
    EXPECT_EQ(why(Op::all_reduce, DType::i16, Kind::sum), "NCCL cannot combine elements of i16");
    EXPECT_EQ(why(Op::all_reduce, DType::bool_, Kind::max), "NCCL cannot combine elements of bool");
    EXPECT_EQ(why(Op::reduce, DType::complex64, Kind::product),
              "NCCL knows no complex numbers, and can only add their parts");
    EXPECT_NE(why(Op::all_reduce, DType::i32, Kind::avg), "");
    EXPECT_NE(why(Op::send, DType::f32, Kind::sum), "");
    EXPECT_NE(why(Op::barrier, DType::u8, Kind::sum), "");
    EXPECT_EQ(why(Op::broadcast, DType::i16, Kind::sum), "");
    EXPECT_EQ(why(Op::all_gather, DType::f8_e4m3, Kind::sum), "");
    EXPECT_EQ(why(Op::all_reduce, DType::complex128, Kind::premul_sum), "");
    EXPECT_THROW((void)me.backend->start({}), Error);
    EXPECT_EQ(me.backend->info().version, "2.28.9");
    EXPECT_FALSE(me.backend->info().checks_itself);
  });
}

/// Its functions are all found; none is called but that of the version.
TEST_F(NcclBackend, OpensNcclItself) {
  const std::string file = TUTTI_NCCL_ITSELF;
  if (file.empty()) GTEST_SKIP() << "there is no NCCL here";
  const std::string folder = file.substr(0, file.rfind('/'));
  for (const std::string& setting : {file, folder}) {
    Options options;
    options.nccl = setting.c_str();
    on_ranks(
        1, [](Rank& me) { EXPECT_EQ(me.backend->info().version.substr(0, 2), "2."); }, options);
  }
}

Error refused(const std::string& nccl) {
  Options options;
  options.nccl = nccl.c_str();
  const Ends ends = collect(
      1, [](Rank&) {}, options);
  if (ends[0]) return *ends[0];
  ADD_FAILURE() << nccl << " was taken";
  return Error(ErrorCode::kInternal, "");
}

TEST_F(NcclBackend, SaysWhichNcclItNeeds) {
  const Error missing = refused("/nowhere/libnccl.so.2");
  EXPECT_EQ(missing.code(), ErrorCode::kUnsupported);
  expect_text(missing, "NCCL's library cannot be opened: /nowhere/libnccl.so.2");
  expect_text(missing, "nvidia-nccl-cu12");
  expect_text(missing, "TUTTI_NCCL_LIBRARY");

  const Error old = refused(TUTTI_STANDIN_NCCL_2_10);
  EXPECT_EQ(old.code(), ErrorCode::kUnsupported);
  expect_text(old, "is of version 2.10.3, and 2.14.0 or later is needed");
  expect_text(old, TUTTI_STANDIN_NCCL_2_10);

  const Error other = refused(TUTTI_STANDIN_CUDA);
  EXPECT_EQ(other.code(), ErrorCode::kUnsupported);
  expect_text(other, "has no ncclGetVersion");

  const Error folder = refused("/");
  EXPECT_EQ(folder.code(), ErrorCode::kUnsupported);
  expect_text(folder, "libnccl.so.2 is not in /");
}

TEST_F(NcclBackend, RefusesTwoRanksOnOneDevice) {
  const Ends ends = collect(3,
                            [](Rank& me) {
                              DeviceArray<float> data(me.stream.device(), {1.F});
                              me.run(me.all_reduce(data));
                            },
                            {.devices = {0, 1, 0}});
  for (const auto& end : ends) {
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->code(), ErrorCode::kUnsupported);
    expect_text(*end, "ranks 0 and 2 both use the device 0000:3B:00.0");
    expect_text(*end, "NCCL_MULTI_RANK_GPU_ENABLE=1");
    EXPECT_EQ(end->context().culprits, (std::vector<int>{0, 2}));
  }
}

TEST_F(NcclBackend, HasOneDeviceForEachRank) {
  const Ends ends = collect(1, [](Rank& me) {
    DeviceArray<float> here(0, {1.F}), there(1, {1.F});
    me.run(me.all_reduce(here));
    me.stream.synchronize();
    me.run(me.all_reduce(there));
  });
  ASSERT_TRUE(ends[0].has_value());
  EXPECT_EQ(ends[0]->code(), ErrorCode::kInvalidArgument);
  expect_text(*ends[0], "the buffer is on cuda:1, and NCCL serves this group on cuda:0");
}

// ---- how groups end

/// Runs all_reduces until one fails, and tells all others by abort, as the group does.
Ends run_until_failure(int ranks, const std::function<void(Rank&)>& before,
                       const Options& options = {},
                       std::chrono::nanoseconds stall = std::chrono::seconds(20)) {
  std::vector<Backend*> backends(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  std::optional<Error> cause;
  std::atomic<int> inside{0};
  return collect(
      ranks,
      [&](Rank& me) {
        me.stall = stall;
        {
          const std::lock_guard lock(mutex);
          backends[static_cast<std::size_t>(me.rank)] = me.backend.get();
        }
        inside.fetch_add(1);
        me.meet();
        before(me);
        std::optional<Error> own;
        DeviceArray<float> data(me.stream.device(), std::vector<float>(10, 1));
        try {
          for (;;) {
            const Request request = me.all_reduce(data);
            me.backend->run(request);
            std::this_thread::sleep_for(1ms);
          }
        } catch (const Error& error) {
          own = error;
          const std::lock_guard lock(mutex);
          if (!cause) {
            cause = error;
            for (Backend* const backend : backends) {
              backend->abort({error.code(), error.what(), error.context().culprits, {}});
            }
          }
        }
        // Nobody's backend goes while others may call it.
        inside.fetch_sub(1);
        while (inside.load() > 0) std::this_thread::sleep_for(1ms);
        me.stream.synchronize();  // the abort lets go of it
        EXPECT_THROW(me.backend->run(me.all_reduce(data)), Error);
        throw Error(*own);
      },
      options);
}

void expect_ended(const Ends& ends, ErrorCode code, const std::string& text) {
  for (const auto& end : ends) {
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->code(), code) << end->what();
    expect_text(*end, text);
  }
}

TEST_F(NcclBackend, AnErrorOfACallEndsTheGroupOnAllRanks) {
  for (const char* const function :
       {"ncclAllReduce", "ncclCommInitRankConfig", "ncclGetUniqueId"}) {
    control().fail(function, 1, 3);
    const Ends ends = run_until_failure(3, [](Rank&) {});
    expect_ended(ends, ErrorCode::kSystem, std::string(function) + " failed: internal error");
    EXPECT_EQ(control().counts().living, 0) << function;
  }
}

TEST_F(NcclBackend, AnErrorLaterEndsTheGroup) {
  std::thread breaker;
  const Ends ends = run_until_failure(2, [&](Rank& me) {
    if (me.rank != 0) return;
    breaker = std::thread([] {
      const auto end = Clock::now() + 30s;
      while (control().counts().living < 2 && Clock::now() < end) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(50ms);
      control().fail_all(6);
    });
  });
  breaker.join();
  expect_ended(ends, ErrorCode::kPeerLost, "remote process exited");
}

TEST_F(NcclBackend, AnErrorThatOnlyTheWatchingThreadSees) {
  const Ends ends = collect(2, [](Rank& me) {
    DeviceArray<float> data(me.stream.device(), {1.F});
    me.run(me.all_reduce(data));
    me.stream.synchronize();
    me.meet();
    if (me.rank == 0) control().fail_all(1);
    const auto end = Clock::now() + 10s;
    while (control().counts().living > 0 && Clock::now() < end) std::this_thread::sleep_for(5ms);
    EXPECT_EQ(control().counts().aborted, 2);
    me.backend->run(me.all_reduce(data));
  });
  expect_ended(ends, ErrorCode::kSystem, "unhandled cuda error");
}

TEST_F(NcclBackend, WhatIsInProgressForEverEndsAtTheDeadline) {
  control().hang("ncclAllReduce", 3);
  const auto begin = Clock::now();
  const Ends ends = run_until_failure(
      2, [](Rank&) {}, {}, 300ms);
  expect_ended(ends, ErrorCode::kTimeout, "within 0.3 s");
  EXPECT_LT(Clock::now() - begin, 60s);

  control().hang("ncclCommInitRankConfig", 1);
  expect_ended(run_until_failure(2, [](Rank&) {}, {.timeout = 3s}), ErrorCode::kTimeout,
               "ncclCommInitRankConfig has not got done");
}

TEST_F(NcclBackend, ARankThatIsNeverThereEndsAtTheDeadline) {
  const Ends ends = collect(2,
                            [](Rank& me) {
                              if (me.rank == 1) return;
                              DeviceArray<float> data(me.stream.device(), {1.F});
                              me.backend->run(me.all_reduce(data));
                            },
                            {.timeout = 300ms});
  ASSERT_TRUE(ends[0].has_value());
  EXPECT_EQ(ends[0]->code(), ErrorCode::kTimeout) << ends[0]->what();
}

TEST_F(NcclBackend, AnOperationThatIsStuckOnTheDeviceEndsTheGroup) {
  const Ends ends = collect(2, [](Rank& me) {
    DeviceArray<float> data(me.stream.device(), {1.F});
    me.run(me.all_reduce(data));
    me.stream.synchronize();
    me.stall = 300ms;
    me.meet();
    if (me.rank == 1) {
      standin::Driver::get().control->hang("cuLaunchHostFunc", 1);
      me.backend->run(me.all_reduce(data));
    }
    me.meet();
    if (me.rank == 0) {
      me.backend->run(me.all_reduce(data));
      me.stream.synchronize();  // the abort lets go of it
      standin::Driver::get().control->release();
    }
    me.meet();
    me.stream.synchronize();
    if (me.rank == 1) me.backend->abort({ErrorCode::kAborted, "rank 0 has said so", {}, {}});
    me.backend->run(me.all_reduce(data));
  });
  ASSERT_TRUE(ends[0].has_value());
  EXPECT_EQ(ends[0]->code(), ErrorCode::kTimeout);
  expect_text(*ends[0], "all_reduce #2 was not done 0.3 s after the devices of all ranks");
  EXPECT_EQ(ends[0]->context().seq, 2U);
}

TEST_F(NcclBackend, WhatAProgramPutsBeforeAnOperationIsNoStall) {
  for (const int slow : {-1, 0, 1}) {  // all, or one whom the other awaits
    on_ranks(2, [&](Rank& me) {
      me.stall = 1s;
      DeviceArray<float> data(me.stream.device(), {1.F});
      if (slow < 0 || slow == me.rank) standin::delay(me.stream, 3s);
      me.run(me.all_reduce(data));
      EXPECT_EQ(data.download(me.stream.stream()), std::vector<float>{2});
      me.run(me.all_reduce(data));
      EXPECT_EQ(data.download(me.stream.stream()), std::vector<float>{4});
      me.backend->close(Deadline::after(10s));
    });
  }
}

TEST_F(NcclBackend, AbortEndsWhatWaits) {
  const Ends ends = collect(2, [](Rank& me) {
    DeviceArray<float> data(me.stream.device(), {1.F});
    me.run(me.all_reduce(data));
    me.stream.synchronize();
    me.meet();
    if (me.rank == 1) return;
    control().hang("ncclAllReduce", 1);
    std::thread other([&] {
      std::this_thread::sleep_for(50ms);
      me.backend->abort({ErrorCode::kPeerLost, "rank 1 has died", {1}, "host"});
      me.backend->abort({ErrorCode::kAborted, "later", {}, {}});
    });
    try {
      me.backend->run(me.all_reduce(data));
    } catch (const Error&) {
      other.join();
      me.stream.synchronize();
      throw;
    }
    other.join();
  });
  ASSERT_TRUE(ends[0].has_value());
  EXPECT_EQ(ends[0]->code(), ErrorCode::kPeerLost);
  EXPECT_EQ(ends[0]->context().culprits, std::vector<int>{1});
  expect_text(*ends[0], "rank 1 has died");
}

TEST_F(NcclBackend, CloseEndsAtItsDeadline) {
  const Ends ends = collect(1, [](Rank& me) {
    DeviceArray<float> data(me.stream.device(), {1.F});
    me.run(me.all_reduce(data));
    me.stream.synchronize();
    control().hang("ncclCommFinalize", 1);
    me.backend->close(Deadline::after(200ms));
  });
  expect_ended(ends, ErrorCode::kTimeout, "ncclCommFinalize has not got done within 0.2 s");
}

/// What goes wrong in one round, on whichever rank it meets.
struct Trouble {
  explicit Trouble(std::mt19937& random) {
    static constexpr const char* kFunctions[] = {"ncclAllReduce", "ncclCommInitRankConfig",
                                                 "ncclCommGetAsyncError", "ncclGetUniqueId"};
    const std::size_t which = random() % 4;
    function = kFunctions[which];
    nth = which == 3 ? 1 : static_cast<int>(random() % 6) + 1;
    hangs = which < 2 && random() % 3 == 0;
    result = static_cast<int>(random() % 3) + 1;
    polls = static_cast<int>(random() % 3);
  }
  void arrange() const {
    control().reset();
    control().set_polls(polls);
    hangs ? control().hang(function, nth) : control().fail(function, nth, result);
  }
  const char* function = nullptr;
  int nth = 0, result = 0, polls = 0;
  bool hangs = false;
};

void operate(ProcessGroup& world) {
  const TestStream stream(world.rank());
  const DeviceArray<float> x(world.rank(), std::vector<float>(10, 1));
  try {
    for (int i = 0; i < 4; ++i) {
      world.all_reduce(standin::buffer_of(x, stream));
      world.all_reduce(standin::buffer_of(x, stream), async).wait();
    }
    stream.synchronize();
    world.close();
  } catch (const Error&) {
    stream.synchronize();  // the abort lets go of it
    throw;
  }
}

/// Whether something failed; if so all ranks blame the same.
bool run_round(std::uint32_t seed) {
  std::mt19937 random(seed);
  const Trouble trouble(random);
  const int ranks = static_cast<int>(random() % 2) + 2;
  SCOPED_TRACE(testing::Message() << "seed " << seed << ": call " << trouble.nth << " of "
                                  << trouble.function << (trouble.hangs ? " hangs" : " fails"));
  trouble.arrange();
  test_kit::RunOptions options = in_groups({{"stall_timeout", "200ms"}, {"log", "error"}});
  options.deadline = 60s;
  options.init.timeout = trouble.hangs ? 3s : 30s;  // a communicator may take that long to be made
  const auto body = [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    operate(world);
    return std::string();
  };
  const auto outcomes = test_kit::collect_ranks(ranks, body, options);
  const bool has_failed = !outcomes[0].failure.empty();
  for (const test_kit::Outcome& outcome : outcomes) {
    EXPECT_EQ(!outcome.failure.empty(), has_failed) << outcome.failure;
    if (!outcome.error || !outcomes[0].error) continue;
    EXPECT_TRUE(outcome.error->code() == ErrorCode::kSystem ||
                outcome.error->code() == ErrorCode::kTimeout)
        << outcome.failure;
    EXPECT_FALSE(outcome.error->context().culprits.empty()) << outcome.failure;
    EXPECT_EQ(outcome.error->context().culprits, outcomes[0].error->context().culprits)
        << outcome.failure;
  }
  EXPECT_EQ(control().counts().living, 0);
  return has_failed;
}

TEST_F(NcclBackend, ManyFailuresEndOnAllRanksAndLeaveNothing) {
  const int rounds = std::getenv("TUTTI_TEST_FULL") != nullptr ? 1000 : 40;
  int failed = 0;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    failed += run_round(static_cast<std::uint32_t>(round + 1)) ? 1 : 0;
  }
  std::printf("%d of %d rounds met the failure\n", failed, rounds);
  EXPECT_GT(failed, rounds / 2);
}

}  // namespace
}  // namespace tutti
