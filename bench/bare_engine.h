// The bare engine over memory shared with forked ranks: no public call, no board, no failure
// handling.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <vector>

#include "base/cores.h"
#include "native/engine/engine.h"

namespace bench {

/// Made before fork; then each process takes its rank.
class BareMemory {
 public:
  BareMemory(int ranks, const tutti::native::EngineTuning& tuning)
      : tuning_(tuning),
        heads_(shared_bytes(static_cast<std::size_t>(ranks) * kHeadBytes)),
        rings_(shared_bytes(static_cast<std::size_t>(ranks) * tuning.ring_bytes)) {
    for (int rank = 0; rank < ranks; ++rank) {
      all_heads_.push_back(head(rank));
      all_rings_.push_back(ring(rank));
    }
  }
  const tutti::native::EngineTuning& tuning() const { return tuning_; }
  std::byte* head(int rank) const { return heads_ + static_cast<std::size_t>(rank) * kHeadBytes; }
  std::byte* ring(int rank) const {
    return rings_ + static_cast<std::size_t>(rank) * tuning_.ring_bytes;
  }
  tutti::native::EngineView view(int rank) const {
    tutti::native::EngineView view;
    view.rank = rank;
    view.head = head(rank);
    view.heads = all_heads_;
    view.rings = all_rings_;
    view.ring_bytes = tuning_.ring_bytes;
    view.abort_word = &abort_word_;
    return view;
  }

 private:
  static constexpr std::size_t kHeadBytes = sizeof(tutti::native::EngineHead);
  static std::byte* shared_bytes(std::size_t byte_count) {
    return static_cast<std::byte*>(::mmap(nullptr, byte_count, PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  }

  const tutti::native::EngineTuning tuning_;
  std::byte* const heads_;
  std::byte* const rings_;
  std::vector<const std::byte*> all_heads_, all_rings_;
  const std::atomic<std::uint64_t> abort_word_{0};
};

/// One rank: spins while there is a core for everybody, else yields.
class BareEngine final : private tutti::native::EngineSignals {
 public:
  BareEngine(const BareMemory& memory, int rank, int ranks)
      : ring_(memory.ring(rank)),
        pauses_(ranks <= tutti::usable_cores() ? 2000 : 20),
        engine_(memory.view(rank), memory.tuning(), *this) {}

  void run(tutti::Request& request) {
    request.chain = ++chain_;
    engine_.begin(request);
    for (int looks = 0; !engine_.step(); ++looks) {
      if (looks < pauses_) {
        __builtin_ia32_pause();
      } else {
        ::sched_yield();
      }
    }
  }
  void all_reduce(float* data, std::size_t count) {
    tutti::Request request;
    request.op = tutti::Op::all_reduce;
    request.dtype = tutti::DType::f32;
    request.input = tutti::ConstBuffer(data, count, tutti::DType::f32);
    request.output = tutti::Buffer(data, count, tutti::DType::f32);
    request.count = count;
    run(request);
  }
  void barrier() {
    tutti::Request request;
    run(request);
  }

 private:
  void notify_all() noexcept override {}
  void progressed() noexcept override {}
  void disagree(int) noexcept override { std::abort(); }
  std::byte* open_ring() override { return ring_; }

  std::byte* const ring_;
  const int pauses_;
  tutti::native::Engine engine_;
  std::uint64_t chain_ = 0;
};

}  // namespace bench
