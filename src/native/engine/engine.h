// all_reduce, broadcast and barrier among the ranks of one host, as one state machine per rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "native/engine/layout.h"
#include "native/engine/store_choice.h"
#include "tutti/request.h"

namespace tutti::native {

/// The memory of all ranks of a group as one of them sees it. The spans are by rank, the own one
/// included.
struct EngineView {
  int rank = 0;
  std::byte* head = nullptr;  ///< sizeof(EngineHead) bytes, zero at first
  std::span<const std::byte* const> heads;
  std::span<const std::byte* const> rings;
  std::size_t ring_bytes = 0;                              ///< of each of `rings`
  const std::atomic<std::uint64_t>* abort_word = nullptr;  ///< nonzero: stop moving data
};

/// What the engine tells those around it.
class EngineSignals {
 public:
  /// Something was stored that peers may be waiting for.
  virtual void notify_all() noexcept = 0;
  /// Part of a large message moved.
  virtual void progressed() noexcept = 0;
  /// `peer` entered another operation than this rank; the group must fail.
  virtual void disagree(int peer) noexcept = 0;
  /// The own ring, to write: asked for once, at the first large message. Throws if there is no
  /// memory.
  virtual std::byte* open_ring() = 0;

 protected:
  ~EngineSignals() = default;
};

/// Sizes at which the engine changes its ways. Results never depend on them, but all ranks of a
/// group must have the same.
///
/// A ring holds at least two segments, or ranks could wait for each other for ever (engine.cc says
/// why).
struct EngineTuning {
  std::size_t small_bytes = 8 * 1024;      ///< up to here everybody reads everything
  std::size_t segment_bytes = 256 * 1024;  ///< at most, of larger messages
  std::size_t ring_bytes = 2 * 1024 * 1024;
};
EngineTuning engine_tuning(int local_ranks, int usable_cores) noexcept;
/// Why no engine can run with `tuning`; empty if one can.
std::string_view why_unsound(const EngineTuning& tuning) noexcept;

/// One rank's engine in one group.
///
///     engine.begin(request);
///     wait(..., [&] { return engine.step(); });
///
/// Threads  One at a time.
/// Errors   kInternal from the constructor for an unsound tuning or rings that are shorter than it
///          says.
class Engine {
 public:
  Engine(const EngineView& view, const EngineTuning& tuning, EngineSignals& signals);

  /// Takes up an all_reduce, broadcast or barrier, which stays where it is until the end.
  void begin(const Request& request) noexcept;
  /// Does whatever can be done now; true when the operation is complete. False means that nothing
  /// can be done until a peer moves (or for ever: a mismatch was signalled, the abort word is set).
  bool step();
  /// Whether data or flags have moved since this was last asked: a wait begins anew.
  bool take_moved() noexcept { return std::exchange(moved_, false); }
  /// A rank that is awaited now, or -1.
  int awaited() const noexcept { return awaited_; }

 protected:
  /// For tests that show what an unsound tuning does.
  struct Unchecked {};
  Engine(Unchecked, const EngineView& view, const EngineTuning& tuning,
         EngineSignals& signals) noexcept;

 private:
  enum class Phase : std::uint8_t { idle, settle, stage_first, meet, stream, failed };
  enum class Path : std::uint8_t { line, small, ring };
  /// A place in a large message and in the rings.
  struct Cursor {
    std::size_t element = 0;
    std::uint64_t position = 0;
  };
  struct Segment {
    std::size_t element = 0;  ///< first element
    std::size_t count = 0;    ///< elements
    std::size_t slice = 0;    ///< elements of a slice; the last ones may be shorter or empty
    std::size_t place = 0;    ///< bytes into the rings
    std::uint64_t end = 0;    ///< position
  };
  struct Slice {
    std::size_t offset = 0;  ///< bytes into the user's buffers
    std::size_t place = 0;   ///< bytes into the rings
    std::size_t count = 0;   ///< elements
  };
  using CounterOf = Counter EngineHead::*;

  const EngineHead& head(int peer) const noexcept;
  const std::byte* ring_at(int peer, std::size_t place) const noexcept;
  int peer_at(int distance) const noexcept;
  bool is_source() const noexcept;
  bool entered(int peer) noexcept;
  bool all_entered() noexcept;
  bool put_first();
  void post() noexcept;
  void tell() noexcept;
  bool met() noexcept;
  const void* small_data(int peer) const noexcept;
  bool finish_small() noexcept;
  bool finish_alone() noexcept;
  bool complete() noexcept;

  void open_stream();
  Segment segment_at(const Cursor& cursor) const noexcept;
  Slice slice_of(const Segment& segment, int rank) const noexcept;
  void advance(Cursor& cursor, const Segment& segment) const noexcept;
  bool all_reached(CounterOf counter, std::uint64_t position, std::uint64_t& known) noexcept;
  void publish(CounterOf counter, std::uint64_t position) noexcept;
  void put(std::byte* to, const std::byte* from, std::size_t byte_count) const noexcept;
  bool stage();
  bool reduce() noexcept;
  bool drain() noexcept;
  bool stream();

  const EngineView view_;
  const EngineTuning tuning_;
  EngineSignals& signals_;
  const int ranks_;
  EngineHead& own_;

  const Request* request_ = nullptr;
  Phase phase_ = Phase::idle;
  Path path_ = Path::line;
  std::byte* ring_ = nullptr;  ///< own; null until the first large message
  bool moved_ = false;
  int seen_ = 0;  ///< how many peers are known to have entered operation `number_`
  int awaited_ = -1;
  std::uint64_t number_ = 0;  ///< of the operation entered last
  std::uint64_t chain_ = 0;   ///< of the operation entered last
  std::size_t element_bytes_ = 1;
  std::size_t byte_count_ = 0;

  // Large messages.
  std::size_t segment_elements_ = 0;
  StoreChoice choice_;
  kernels::Store store_ = kernels::Store::cached;
  Cursor to_stage_, to_reduce_, to_drain_;
  std::uint64_t position_ = 0;   ///< where the next large message begins in the rings
  std::uint64_t first_end_ = 0;  ///< the first segment's end: its arrival is told by the line
  std::uint64_t known_staged_ = 0, known_reduced_ = 0, known_drained_ = 0;
};

}  // namespace tutti::native
