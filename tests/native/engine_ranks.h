// Engines without a group: n ranks over plain shared memory, stepped by one thread in random order,
// by threads, or by forked processes.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "native/engine/engine.h"

namespace tutti::native::test {

/// What all ranks share; outside the engines' own memory.
struct Common {
  std::atomic<std::uint64_t> abort_word{0};
  std::atomic<int> disagreements{0};
  std::atomic<int> failures{0};
};

/// Memory of `ranks` engines, shared with children.
class SharedMemory {
 public:
  SharedMemory(int ranks, const EngineTuning& tuning);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  EngineView view(int rank) const;
  std::byte* ring(int rank) const;
  Common& common() const { return *reinterpret_cast<Common*>(base_); }
  int ranks() const { return ranks_; }
  const EngineTuning& tuning() const { return tuning_; }

 private:
  const int ranks_;
  const EngineTuning tuning_;
  std::size_t byte_count_;
  std::byte* base_;
  std::vector<const std::byte*> heads_, rings_;
};

/// Something did not happen in time, or the abort word was set.
struct Stopped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Whether an engine has a tuning that no engine may have.
enum class Tuning { sound, planted };
Engine make_engine(const SharedMemory& memory, int rank, Tuning tuning, EngineSignals& signals);

/// One rank: its engine, and the number and chain of its operations.
class Rank final : private EngineSignals {
 public:
  Rank(const SharedMemory& memory, int rank, Tuning tuning = Tuning::sound);

  int rank() const { return rank_; }
  int ranks() const { return memory_.ranks(); }
  bool disagreed() const { return disagreed_; }
  int notified() const { return notified_; }
  Engine& engine() { return engine_; }

  /// Chains and begins; the request must stay.
  void begin(Request& request);
  /// begin, then step until done; yields between steps. Throws Stopped.
  void run(Request& request);

  Request all_reduce(DType dtype, ReduceOp op, const void* input, void* output, std::size_t count);
  Request broadcast(DType dtype, void* data, std::size_t count, int root);
  Request barrier();

 private:
  void notify_all() noexcept override { ++notified_; }
  void progressed() noexcept override {}
  void disagree(int peer) noexcept override;
  std::byte* open_ring() override { return memory_.ring(rank_); }

  const SharedMemory& memory_;
  const int rank_;
  Engine engine_;
  std::uint64_t seq_ = 0, chain_ = 7;
  int notified_ = 0;
  bool disagreed_ = false;
};

/// Runs `body` on every rank, each in a thread; throws what the first failing rank threw.
void run_threads(const SharedMemory& memory, const std::function<void(Rank&)>& body);
/// Runs `body` on every rank, each in a forked process; returns how many failed.
int run_forked(const SharedMemory& memory, const std::function<void(Rank&)>& body,
               std::chrono::seconds limit = std::chrono::seconds(250));
/// Runs one program per rank in this thread: steps a random rank at a time, and begins its next
/// request when it has none, so that ranks run ahead of each other as far as the engine lets them.
/// `done(rank, index)` is called after each request. False: nothing moved for long.
bool step_programs(std::vector<std::unique_ptr<Rank>>& ranks,
                   std::vector<std::vector<Request>>& programs, std::mt19937_64& random,
                   const std::function<void(int, std::size_t)>& done = {});

std::vector<std::unique_ptr<Rank>> make_ranks(const SharedMemory& memory,
                                              Tuning tuning = Tuning::sound);

}  // namespace tutti::native::test
