// One rank of a job that tests the backend "mpi": `mpi_rank SCENARIO RECORDS`.
//
// Prints nothing; what happened goes to the file RECORDS.R of rank R, because launchers kill, mix
// and swallow: "ok", "failed: <text>", or "<code> <culprits>: <text>" of an Error.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <thread>

#include "mpi_values.h"

#if defined(TUTTI_TEST_OWN_MPI)
#include <mpi.h>
#endif

namespace tutti::mpi_test {
namespace {

using namespace std::chrono_literals;

// ---- reductions

void all_reduce_cell(ProcessGroup& group, DType dtype, ReduceOp op, std::size_t count,
                     bool in_place) {
  const int rank = group.rank(), ranks = group.world_size();
  Elements input(dtype, values_of(dtype, rank, 0, count)), output(dtype, count);
  Buffer target = in_place ? input.buffer() : output.buffer();
  group.all_reduce(input.buffer(), target, {.op = op});
  (in_place ? input : output).expect(reduced(dtype, op, ranks, 0, count), "all_reduce");
  if (!in_place) input.expect(values_of(dtype, rank, 0, count), "the input of all_reduce");
}

void reduce_cell(ProcessGroup& group, DType dtype, ReduceOp op, std::size_t count, bool in_place) {
  const int rank = group.rank(), ranks = group.world_size(), root = ranks - 1;
  Elements input(dtype, values_of(dtype, rank, 0, count)), output(dtype, count);
  group.reduce(input.buffer(), in_place ? input.buffer() : output.buffer(),
               {.op = op, .root = root});
  if (rank == root) {
    (in_place ? input : output).expect(reduced(dtype, op, ranks, 0, count), "reduce");
  } else {
    input.expect(values_of(dtype, rank, 0, count), "reduce, not root");
  }
}

void reduce_scatter_cell(ProcessGroup& group, DType dtype, ReduceOp op, std::size_t count,
                         bool in_place) {
  const int rank = group.rank(), ranks = group.world_size();
  const std::size_t whole = count * static_cast<std::size_t>(ranks);
  const std::size_t own = count * static_cast<std::size_t>(rank);
  Elements input(dtype, values_of(dtype, rank, 0, whole)), output(dtype, count);
  if (in_place) {
    group.reduce_scatter(input.buffer(), {.op = op});
    std::vector<double> got;
    for (std::size_t i = 0; i < count; ++i) got.push_back(input.get(own + i));
    output = Elements(dtype, got);
  } else {
    group.reduce_scatter(input.buffer(), output.buffer(), {.op = op});
  }
  output.expect(reduced(dtype, op, ranks, own, count), "reduce_scatter");
}

/// Parts of 0, 1, ... times `count` elements, the largest first.
std::vector<std::size_t> uneven_counts(int ranks, std::size_t count) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(count * static_cast<std::size_t>(ranks - 1 - rank));
  }
  return counts;
}

std::size_t sum_before(const std::vector<std::size_t>& counts, int rank) {
  std::size_t sum = 0;
  for (int before = 0; before < rank; ++before) sum += counts[static_cast<std::size_t>(before)];
  return sum;
}

void reduce_scatterv_cell(ProcessGroup& group, DType dtype, ReduceOp op, std::size_t count,
                          bool in_place) {
  const int rank = group.rank(), ranks = group.world_size();
  const std::vector<std::size_t> counts = uneven_counts(ranks, count);
  const std::size_t whole = sum_before(counts, ranks), begin = sum_before(counts, rank);
  const std::size_t own = counts[static_cast<std::size_t>(rank)];
  Elements input(dtype, values_of(dtype, rank, 0, whole)), output(dtype, own);
  group.reduce_scatterv(input.buffer(), in_place ? input.part(begin, own) : output.buffer(), counts,
                        {.op = op});
  for (std::size_t i = 0; in_place && i < own; ++i) output.set(i, input.get(begin + i));
  output.expect(reduced(dtype, op, ranks, begin, own), "reduce_scatterv");
}

void reductions(ProcessGroup& group) {
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      if (!is_legal(dtype, op)) {
        Elements x(dtype, 1);
        try {
          group.all_reduce(x.buffer(), op);
          throw std::runtime_error("an illegal reduction was run");
        } catch (const Error& error) {
          if (error.code() != ErrorCode::kUnsupported) throw;
        }
        continue;
      }
      all_reduce_cell(group, dtype, op, 37, true);
      all_reduce_cell(group, dtype, op, 5, false);
      reduce_cell(group, dtype, op, 5, op == ReduceOp::sum);
      reduce_scatter_cell(group, dtype, op, 3, op == ReduceOp::sum || op == ReduceOp::max);
      reduce_scatterv_cell(group, dtype, op, 2, op == ReduceOp::sum);
    }
  }
  all_reduce_cell(group, DType::f32, ReduceOp::sum, 0, true);
  reduce_scatter_cell(group, DType::f16, ReduceOp::sum, 0, false);
  for (const DType dtype : {DType::f32, DType::bf16}) {  // more than one staged piece
    all_reduce_cell(group, dtype, ReduceOp::avg, 1'500'001, true);
  }
}

/// min and max where the order of operands matters to MPI's own: NaN, and zeros of both signs.
void order_of_zeros(ProcessGroup& group) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const int rank = group.rank(), last = group.world_size() - 1;
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    const std::vector<double> mine{rank == 0 ? 0.0 : -0.0, rank == last ? 0.0 : -0.0,
                                   rank == last ? nan : 1.0, rank == 0 ? nan : 1.0};
    const bool alone = last == 0;
    Elements least(dtype, mine), most(dtype, mine);
    group.all_reduce(least.buffer(), ReduceOp::min);
    group.all_reduce(most.buffer(), ReduceOp::max);
    least.expect({alone ? 0.0 : -0.0, alone ? 0.0 : -0.0, nan, nan}, "min");
    most.expect({0.0, 0.0, nan, nan}, "max");
  }
}

// ---- moves

void append(std::vector<double>& all, const std::vector<double>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void even_moves(ProcessGroup& group, DType dtype, std::size_t count) {
  const int rank = group.rank(), ranks = group.world_size(), root = ranks - 1;
  const std::size_t whole = count * static_cast<std::size_t>(ranks);
  const std::size_t own = count * static_cast<std::size_t>(rank);
  const std::vector<double> mine = values_of(dtype, rank, 0, count);
  std::vector<double> everybody, to_me;
  for (int peer = 0; peer < ranks; ++peer) append(everybody, values_of(dtype, peer, 0, count));
  for (int peer = 0; peer < ranks; ++peer) append(to_me, values_of(dtype, peer, own, count));

  Elements spread(dtype, mine);
  group.broadcast(spread.buffer(), {.root = root});
  spread.expect(values_of(dtype, root, 0, count), "broadcast");

  Elements input(dtype, mine), gathered(dtype, whole), all(dtype, whole);
  group.gather(input.buffer(), gathered.buffer(), {.root = root});
  if (rank == root) gathered.expect(everybody, "gather");
  group.all_gather(input.buffer(), all.buffer());
  all.expect(everybody, "all_gather");

  Elements in_place(dtype, whole);
  for (std::size_t i = 0; i < count; ++i) in_place.set(own + i, mine[i]);
  group.all_gather(in_place.buffer());
  in_place.expect(everybody, "all_gather in place");
  Elements root_in_place(dtype, everybody);
  group.gather(rank == root ? root_in_place.part(own, count) : input.buffer(),
               root_in_place.buffer(), {.root = root});
  root_in_place.expect(everybody, "gather in place");

  Elements source(dtype, values_of(dtype, rank, 0, whole)), part(dtype, count);
  group.scatter(source.buffer(), part.buffer(), {.root = root});
  part.expect(values_of(dtype, root, own, count), "scatter");
  group.scatter(source.buffer(), rank == root ? source.part(own, count) : part.buffer(),
                {.root = root});
  source.expect(values_of(dtype, rank, 0, whole), "scatter in place");

  Elements exchanged(dtype, whole);
  group.all_to_all(source.buffer(), exchanged.buffer());
  exchanged.expect(to_me, "all_to_all");
  group.all_to_all(source.buffer());
  source.expect(to_me, "all_to_all in place");
}

void uneven_moves(ProcessGroup& group, DType dtype, std::size_t count) {
  const int rank = group.rank(), ranks = group.world_size(), root = ranks - 1;
  const std::vector<std::size_t> counts = uneven_counts(ranks, count);
  const std::size_t whole = sum_before(counts, ranks), begin = sum_before(counts, rank);
  const std::size_t own = counts[static_cast<std::size_t>(rank)];
  std::vector<double> everybody;
  for (int peer = 0; peer < ranks; ++peer) {
    append(everybody, values_of(dtype, peer, 0, counts[static_cast<std::size_t>(peer)]));
  }
  const std::vector<double> mine = values_of(dtype, rank, 0, own);

  Elements input(dtype, mine), gathered(dtype, whole), all(dtype, whole), in_place(dtype, whole);
  group.gatherv(input.buffer(), gathered.buffer(), counts, {.root = root});
  if (rank == root) gathered.expect(everybody, "gatherv");
  group.all_gatherv(input.buffer(), all.buffer(), counts);
  all.expect(everybody, "all_gatherv");
  for (std::size_t i = 0; i < own; ++i) in_place.set(begin + i, mine[i]);
  group.all_gatherv(in_place.part(begin, own), in_place.buffer(), counts);
  in_place.expect(everybody, "all_gatherv in place");

  Elements source(dtype, values_of(dtype, rank, 0, whole)), part(dtype, own);
  group.scatterv(source.buffer(), counts, part.buffer(), {.root = root});
  part.expect(values_of(dtype, root, begin, own), "scatterv");

  // Rank r sends (r + p) % 3 * count elements to rank p.
  const auto edge = [&](int from, int to) {
    return static_cast<std::size_t>((from + to) % 3) * count;
  };
  std::vector<std::size_t> sent, received;
  std::vector<double> outgoing, incoming;
  for (int peer = 0; peer < ranks; ++peer) {
    sent.push_back(edge(rank, peer));
    received.push_back(edge(peer, rank));
    append(outgoing, values_of(dtype, rank + peer, 0, sent.back()));
    append(incoming, values_of(dtype, peer + rank, 0, received.back()));
  }
  Elements out(dtype, outgoing), in(dtype, incoming.size());
  group.all_to_allv(out.buffer(), sent, in.buffer(), received);
  in.expect(incoming, "all_to_allv");
}

void moves(ProcessGroup& group) {
  for (const DType dtype : kDTypes) {
    even_moves(group, dtype, 5);
    uneven_moves(group, dtype, 2);
  }
  even_moves(group, DType::f32, 0);
  uneven_moves(group, DType::f32, 0);
  even_moves(group, DType::i32, 100'003);
  uneven_moves(group, DType::f64, 30'001);
  group.barrier();
}

// ---- messages, groups, worlds

void messages(ProcessGroup& group) {
  const int rank = group.rank(), ranks = group.world_size();
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{300'000}}) {
    Elements out(DType::f32, values_of(DType::f32, rank, 0, count)), in(DType::f32, count);
    group.sendrecv(out.buffer(), in.buffer(), {.to = next, .from = before});
    in.expect(values_of(DType::f32, before, 0, count), "sendrecv");
  }
  // Two at once, taken in the other order.
  std::vector<int> first(1000, rank), second(50'000, rank + 100), got_first(1000),
      got_second(50'000);
  Work one = group.send(first, next, {.tag = 1}, async);
  Work two = group.send(second, next, {.tag = 2}, async);
  group.recv(got_second, before, {.tag = 2});
  group.recv(got_first, before, {.tag = 1});
  one.wait();
  two.wait();
  if (got_first != std::vector<int>(1000, before) ||
      got_second != std::vector<int>(50'000, before + 100)) {
    throw std::runtime_error("messages arrived at the wrong tags");
  }
}

void asynchronous(ProcessGroup& group) {
  const int rank = group.rank(), ranks = group.world_size();
  Elements x(DType::i64, values_of(DType::i64, rank, 0, 1000));
  Elements y(DType::bf16, values_of(DType::bf16, rank, 0, 77));
  Work first = group.all_reduce(x.buffer(), async);
  Work second = group.all_reduce(y.buffer(), ReduceOp::max, async);
  second.wait();
  first.wait();
  x.expect(reduced(DType::i64, ReduceOp::sum, ranks, 0, 1000), "asynchronous all_reduce");
  y.expect(reduced(DType::bf16, ReduceOp::max, ranks, 0, 77), "asynchronous all_reduce");
}

void subgroups(ProcessGroup& world) {
  for (int round = 0; round < 3; ++round) {
    std::vector<int> members;  // every other rank, backwards
    for (int rank = world.world_size() - 1; rank >= 0; rank -= 2) members.push_back(rank);
    ProcessGroup group = world.new_group(members);
    if (!group.is_member()) continue;
    all_reduce_cell(group, DType::i32, ReduceOp::sum, 100, true);
    even_moves(group, DType::u8, 7);
    group.close();
  }
  ProcessGroup half = world.split({.color = world.rank() % 2});
  all_reduce_cell(half, DType::f64, ReduceOp::sum, 100, true);
}

/// Two groups of all ranks, each used from a thread of its own, with pauses between the calls.
void two_threads(ProcessGroup& world) {
  std::vector<int> all;
  for (int rank = 0; rank < world.world_size(); ++rank) all.push_back(rank);
  ProcessGroup groups[2] = {world.new_group(all), world.new_group(all)};
  std::string failures[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      try {
        for (int round = 0; round < 30; ++round) {
          all_reduce_cell(groups[i], DType::i32, ReduceOp::sum, 1 + 100u * (round % 7u), true);
          std::this_thread::sleep_for(std::chrono::microseconds((round * 7919 + i * 31) % 300));
        }
      } catch (const std::exception& failure) {
        failures[i] = failure.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) {
    if (!failure.empty()) throw std::runtime_error(failure);
  }
}

// ---- more than an int can count; two ranks

constexpr std::size_t kLarge = (std::size_t{1} << 31) + 5;

void expect_bytes(const std::vector<std::uint8_t>& bytes, std::size_t begin, std::size_t end,
                  std::uint8_t value) {
  for (std::size_t i = begin; i < end; ++i) {
    if (bytes[i] == value) continue;
    throw std::runtime_error("byte " + std::to_string(i) + " is " + std::to_string(bytes[i]) +
                             " instead of " + std::to_string(value));
  }
}

void large(ProcessGroup& group) {
  const auto rank = static_cast<std::uint8_t>(group.rank());
  std::vector<std::uint8_t> x(kLarge, rank == 1 ? 7 : 0);
  group.broadcast(x, {.root = 1});
  expect_bytes(x, 0, kLarge, 7);
  group.all_reduce(x);
  expect_bytes(x, 0, kLarge, 14);
  // The second part begins behind 2^31: 2^31 + 4 bytes stay, one crosses.
  const std::vector<std::size_t> counts =
      rank == 0 ? std::vector<std::size_t>{kLarge - 1, 1} : std::vector<std::size_t>{1, kLarge - 1};
  x.front() = x.back() = static_cast<std::uint8_t>(100 + rank);
  std::vector<std::uint8_t> y(kLarge);
  group.all_to_allv(x, counts, y, counts);
  if (y.front() != 100 || y.back() != 101) throw std::runtime_error("the ends are wrong");
  group.sendrecv(x, y, {.to = 1 - rank, .from = 1 - rank});
  expect_bytes(y, kLarge - 1, kLarge, static_cast<std::uint8_t>(101 - rank));
  expect_bytes(y, 1, kLarge - 1, 14);
}

// ---- failures

std::string describe(const Error& error) {
  std::string text(name_of(error.code()));
  for (const int culprit : error.context().culprits) text += " " + std::to_string(culprit);
  return text + ": " + error.what();
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  std::abort();
}

/// Rank 1 dies; the others are about to call, or wait for it in the check.
void die_before(ProcessGroup& group) {
  group.barrier();
  if (group.rank() == 1) die();
  std::vector<float> x(1000);
  group.all_reduce(x);
}

/// Rank 1 dies in the middle of an all_reduce of 64 MiB in which all ranks are.
void die_inside(ProcessGroup& group) {
  std::vector<float> x(16 << 20);
  group.all_reduce(x);
  const auto begin = std::chrono::steady_clock::now();
  group.all_reduce(x);
  const auto half = (std::chrono::steady_clock::now() - begin) / 2;
  if (group.rank() == 1) {
    std::thread([half] {
      std::this_thread::sleep_for(half);
      die();
    }).detach();
  }
  for (;;) group.all_reduce(x);
}

/// Rank 1 comes after the deadline of the others.
void late(ProcessGroup& group) {
  group.barrier();
  if (group.rank() == 1) std::this_thread::sleep_for(4s);
  std::vector<float> x(1000);
  group.all_reduce(x, {.timeout = 2s});
}

void mismatch(ProcessGroup& group) {
  std::vector<float> x(group.rank() == 1 ? 999 : 1000);
  group.all_reduce(x);
}

/// The user aborts while nobody is inside MPI: an error, and the process lives.
void user_abort(ProcessGroup& group) {
  group.barrier();
  if (group.rank() == 0) group.abort("enough");
  float x = 1;
  for (;;) group.all_reduce(x);
}

/// Two ranks of one world as threads of this process, of a job of one process.
void threads(ProcessGroup&) {
  const auto store = make_memory_store();
  std::string failures[2];
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const auto world = init_process_group(
            {.backend = "mpi", .rank = rank, .world_size = 2, .name = "threads", .store = store});
      } catch (const Error& error) {
        failures[rank] = describe(error);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  throw std::runtime_error(failures[0] + " | " + failures[1]);
}

// ---- the job

const std::map<std::string, void (*)(ProcessGroup&)> kScenarios = {
    {"reductions", reductions},
    {"order_of_zeros", order_of_zeros},
    {"moves", moves},
    {"messages", messages},
    {"asynchronous", asynchronous},
    {"subgroups", subgroups},
    {"two_threads", two_threads},
    {"large", large},
    {"die_before", die_before},
    {"die_inside", die_inside},
    {"late", late},
    {"mismatch", mismatch},
    {"user_abort", user_abort},
    {"threads", threads},
    {"nothing", [](ProcessGroup&) {}},
};

/// After a failure: the survivors make another group, which works.
void go_on_without(ProcessGroup& world, const Error& failure) {
  std::vector<int> survivors;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    const auto& culprits = failure.context().culprits;
    if (std::find(culprits.begin(), culprits.end(), rank) == culprits.end()) {
      survivors.push_back(rank);
    }
  }
  ProcessGroup group = world.new_group(survivors);
  all_reduce_cell(group, DType::f32, ReduceOp::sum, 1000, true);
}

/// SCENARIO is a list: "moves,again,messages" does "messages" in a second world.
void run_scenarios(const std::string& list, const std::function<void(const std::string&)>& record) {
  ProcessGroup world = init_process_group({.backend = "mpi"});
  const bool goes_on = list.ends_with(",go_on");
  try {
    for (std::size_t begin = 0; begin < list.size();) {
      const std::size_t end = std::min(list.find(',', begin), list.size());
      const std::string name = list.substr(begin, end - begin);
      begin = end + 1;
      if (name == "go_on") continue;
      if (name == "again") {
        world.close();
        world = init_process_group({.backend = "mpi"});
        continue;
      }
      kScenarios.at(name)(world);
    }
    world.close();
  } catch (const Error& failure) {
    if (!goes_on) throw;
    record(describe(failure));
    go_on_without(world, failure);
  }
}

int rank_of_environment() {
  for (const char* const name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"}) {
    if (const char* const value = std::getenv(name)) return std::atoi(value);
  }
  return 0;
}

#if defined(TUTTI_TEST_OWN_MPI)
/// The program starts MPI itself: "init-LEVEL" and "finalized", before the "/".
void start_own_mpi(std::string& scenario) {
  const std::size_t slash = scenario.find('/');
  if (slash == std::string::npos) return;
  const std::map<std::string, int> levels = {{"single", MPI_THREAD_SINGLE},
                                             {"funneled", MPI_THREAD_FUNNELED},
                                             {"serialized", MPI_THREAD_SERIALIZED},
                                             {"multiple", MPI_THREAD_MULTIPLE},
                                             {"finalized", MPI_THREAD_MULTIPLE}};
  const std::string level = scenario.substr(0, slash);
  scenario = scenario.substr(slash + 1);
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, levels.at(level), &provided);
  if (provided != levels.at(level)) throw std::runtime_error("MPI gave another thread level");
  if (level == "finalized") MPI_Finalize();
}

/// What the program started it ends: MPI must still be there.
void end_own_mpi() {
  int is_initialized = 0, is_finalized = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  if (is_initialized != 0 && is_finalized == 0) MPI_Finalize();
}
#else
void start_own_mpi(std::string&) {}
void end_own_mpi() {}
#endif

int main(std::string scenario, const std::string& records) {
  const std::string path = records + "." + std::to_string(rank_of_environment());
  const auto record = [&](const std::string& text) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    const std::string line = text + "\n";
    if (::write(file, line.data(), line.size()) < 0) std::perror("write");
    ::close(file);
  };
  try {
    start_own_mpi(scenario);
    run_scenarios(scenario, record);
    record("ok");
    end_own_mpi();
    return 0;
  } catch (const Error& failure) {
    record(describe(failure));
    return 3;
  } catch (const std::exception& failure) {
    record(std::string("failed: ") + failure.what());
    return 4;
  }
}

}  // namespace
}  // namespace tutti::mpi_test

int main(int argc, char** argv) { return argc == 3 ? tutti::mpi_test::main(argv[1], argv[2]) : 2; }
