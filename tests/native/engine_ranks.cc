#include "engine_ranks.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

namespace tutti::native::test {

namespace {

constexpr std::size_t kCommonBytes = 4096;
constexpr std::size_t kHeadBytes = (sizeof(EngineHead) + 4095) / 4096 * 4096;

std::uint64_t mix(std::uint64_t chain, std::uint64_t value) {
  chain ^= value + 0x9e3779b97f4a7c15u + (chain << 6) + (chain >> 2);
  return chain * 0xff51afd7ed558ccdu;
}

}  // namespace

SharedMemory::SharedMemory(int ranks, const EngineTuning& tuning)
    : ranks_(ranks),
      tuning_(tuning),
      byte_count_(kCommonBytes +
                  static_cast<std::size_t>(ranks) * (kHeadBytes + tuning.ring_bytes)),
      base_(static_cast<std::byte*>(::mmap(nullptr, byte_count_, PROT_READ | PROT_WRITE,
                                           MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  if (base_ == MAP_FAILED) throw std::bad_alloc();
  new (base_) Common;
  for (int rank = 0; rank < ranks; ++rank) {
    std::byte* const head = base_ + kCommonBytes + static_cast<std::size_t>(rank) * kHeadBytes;
    heads_.push_back(head);
    rings_.push_back(ring(rank));
  }
}

SharedMemory::~SharedMemory() { ::munmap(base_, byte_count_); }

std::byte* SharedMemory::ring(int rank) const {
  return base_ + kCommonBytes + static_cast<std::size_t>(ranks_) * kHeadBytes +
         static_cast<std::size_t>(rank) * tuning_.ring_bytes;
}

EngineView SharedMemory::view(int rank) const {
  EngineView view;
  view.rank = rank;
  view.head = base_ + kCommonBytes + static_cast<std::size_t>(rank) * kHeadBytes;
  view.heads = heads_;
  view.rings = rings_;
  view.ring_bytes = tuning_.ring_bytes;
  view.abort_word = &common().abort_word;
  return view;
}

Engine make_engine(const SharedMemory& memory, int rank, Tuning tuning, EngineSignals& signals) {
  struct Planted : Engine {
    Planted(const EngineView& view, const EngineTuning& unsound, EngineSignals& to) noexcept
        : Engine(Unchecked(), view, unsound, to) {}
  };
  if (tuning == Tuning::planted) return Planted(memory.view(rank), memory.tuning(), signals);
  return Engine(memory.view(rank), memory.tuning(), signals);
}

Rank::Rank(const SharedMemory& memory, int rank, Tuning tuning)
    : memory_(memory), rank_(rank), engine_(make_engine(memory, rank, tuning, *this)) {}

void Rank::disagree(int) noexcept {
  disagreed_ = true;
  memory_.common().disagreements.fetch_add(1);
  memory_.common().abort_word.store(1);
}

void Rank::begin(Request& request) {
  request.seq = ++seq_;
  chain_ = mix(chain_, static_cast<std::uint64_t>(request.op));
  chain_ = mix(chain_, static_cast<std::uint64_t>(request.dtype));
  chain_ = mix(chain_, static_cast<std::uint64_t>(request.reduce.kind()));
  chain_ = mix(chain_, request.count);
  chain_ = mix(chain_, static_cast<std::uint64_t>(request.root + 1));
  request.chain = chain_;
  engine_.begin(request);
}

void Rank::run(Request& request) {
  begin(request);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(50);
  for (std::uint64_t looks = 0; !engine_.step(); ++looks) {
    if (memory_.common().abort_word.load() != 0) throw Stopped("aborted");
    ::sched_yield();
    if (looks % 4096 == 4095 && std::chrono::steady_clock::now() > end) throw Stopped("too slow");
  }
}

Request Rank::all_reduce(DType dtype, ReduceOp op, const void* input, void* output,
                         std::size_t count) {
  Request request;
  request.op = Op::all_reduce;
  request.dtype = dtype;
  request.reduce = op;
  request.input = ConstBuffer(input, count, dtype);
  request.output = Buffer(output, count, dtype);
  request.count = count;
  return request;
}

Request Rank::broadcast(DType dtype, void* data, std::size_t count, int root) {
  Request request = all_reduce(dtype, ReduceOp::sum, data, data, count);
  request.op = Op::broadcast;
  request.root = root;
  return request;
}

Request Rank::barrier() {
  Request request;
  request.op = Op::barrier;
  return request;
}

void run_threads(const SharedMemory& memory, const std::function<void(Rank&)>& body) {
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < memory.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Rank self(memory, rank);
        body(self);
      } catch (...) {
        memory.common().abort_word.store(1);
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

int run_forked(const SharedMemory& memory, const std::function<void(Rank&)>& body,
               std::chrono::seconds limit) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < memory.ranks(); ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(static_cast<unsigned>(limit.count()));  // never outlives the test
      int status = 0;
      try {
        Rank self(memory, rank);
        body(self);
      } catch (const std::exception& error) {
        memory.common().abort_word.store(1);
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        status = 1;
      }
      ::_exit(status);
    }
    if (child > 0) children.push_back(child);
  }
  int failed = memory.ranks() - static_cast<int>(children.size());
  for (const pid_t child : children) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (status == 0) continue;
    ++failed;
    memory.common().abort_word.store(1);
  }
  return failed;
}

std::vector<std::unique_ptr<Rank>> make_ranks(const SharedMemory& memory, Tuning tuning) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < memory.ranks(); ++rank) {
    ranks.push_back(std::make_unique<Rank>(memory, rank, tuning));
  }
  return ranks;
}

bool step_programs(std::vector<std::unique_ptr<Rank>>& ranks,
                   std::vector<std::vector<Request>>& programs, std::mt19937_64& random,
                   const std::function<void(int, std::size_t)>& done) {
  std::vector<std::size_t> next(ranks.size(), 0);
  std::vector<bool> busy(ranks.size(), false);
  std::size_t left = 0;
  for (const auto& program : programs) left += program.size();
  const std::size_t patience = 200 * ranks.size() * ranks.size();
  for (std::size_t idle = 0; left > 0 && idle < patience; ++idle) {
    const std::size_t rank = random() % ranks.size();
    if (!busy[rank]) {
      if (next[rank] == programs[rank].size()) continue;
      ranks[rank]->begin(programs[rank][next[rank]]);
      busy[rank] = true;
    }
    const int before = ranks[rank]->notified();
    const bool complete = ranks[rank]->engine().step();
    if (complete || ranks[rank]->notified() != before) idle = 0;
    if (!complete) continue;
    busy[rank] = false;
    if (done) done(static_cast<int>(rank), next[rank]);
    ++next[rank];
    --left;
  }
  return left == 0;
}

}  // namespace tutti::native::test
