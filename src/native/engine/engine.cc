// Vocabulary. An operation has a *number*, its place among the operations of this engine, and a
// *chain*, the group's running hash that says what it is. A rank *enters* an operation by posting
// its *line* {number, chain, payload}; lines alternate, so a line is overwritten two operations
// later. Nobody enters operation k before it has seen that all others entered k-1 (and with the
// same chain): they have thus finished k-2 and no longer read what is overwritten. That *settling*
// is free after operations in which all read all, and for the others bounds how far a rank runs
// ahead, and lets a disagreement be seen at the next call at the latest. No data of a peer is
// looked at before its line of this operation has been seen with the own chain.
//
// Three paths, by size. *Line*: the payload is in the line. *Small*: it is in one of two slots. In
// both everybody reads everybody and combines for itself. *Ring*: a large message is cut into
// *segments* which travel through a ring of staging memory that every rank owns. A segment has the
// same *position* in all rings; positions only grow. In an all_reduce each rank owns one *slice* of
// each segment: every rank *stages* its input of the others' slices, *reduces* its own slice out of
// all inputs, and *drains* the others' results; three counters per rank tell how far it has come. A
// ring place is used again when all ranks have drained what was there. In a broadcast the root
// stages and the others drain. The arrival of the first segment is told by the line, so that a
// message of one segment costs no further transfer.
//
// A segment lies in one piece: where it does not fit before the end of the ring, the rest of the
// ring is *skipped*. So a ring holds at least two segments of the largest size, and then somebody
// can always step. Look at the oldest segment that a rank still has to drain. All before it is
// drained everywhere. What is skipped before it is shorter than it is, so both together fit into
// the ring, in which nothing else is needed any more: whoever stages it has room. When it is staged
// everywhere it can be reduced, and when it is reduced everywhere it can be drained. In a smaller
// ring it and the skip could be longer than the ring: it would wait for a place within the skip to
// be drained, where no rank has been yet, and all would wait for ever.
//
// Flags are stored and loaded seq_cst: a rank that is about to sleep and a rank that is about to
// look for sleepers must see each other (base/wait.h).
//
// All combining is done by one call over all ranks' inputs in rank order (kernels::reduce_tree), so
// the bits do not depend on the path.
#include "native/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/of_rank.h"
#include "kernels/kernels.h"
#include "tutti/error.h"

namespace tutti::native {

namespace {

/// Of several ranks on one core: what shorter segments save in the cache they lose in waits.
constexpr std::size_t kLeastRingBytes = 256 * 1024;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

EngineTuning engine_tuning(int local_ranks, int usable_cores) noexcept {
  EngineTuning tuning;
  const auto ranks = static_cast<std::size_t>(std::max(local_ranks, 1));
  const auto cores = static_cast<std::size_t>(std::max(usable_cores, 1));
  // Everybody reads everything: past some total the slices win.
  tuning.small_bytes = ranks <= 2   ? kSmallBytes
                       : ranks <= 4 ? 16 * 1024
                                    : std::max<std::size_t>(512, 32 * 1024 / ranks);
  // Several ranks on one core share its cache: their rings together should fit.
  const std::size_t ranks_per_core = (ranks + cores - 1) / cores;
  if (ranks_per_core > 1) {
    tuning.ring_bytes =
        std::max(kLeastRingBytes, std::bit_floor(tuning.ring_bytes / ranks_per_core));
    tuning.segment_bytes = std::min(tuning.segment_bytes, tuning.ring_bytes / 2);
  }
  return tuning;
}

std::string_view why_unsound(const EngineTuning& tuning) noexcept {
  if (tuning.small_bytes > kSmallBytes) return "a slot does not hold a small message";
  if (tuning.segment_bytes == 0 || tuning.segment_bytes % kCacheLine != 0 ||
      tuning.ring_bytes % kCacheLine != 0) {
    return "segments and rings are whole cache lines";
  }
  // Compared so that nothing overflows.
  if (tuning.segment_bytes > tuning.ring_bytes / 2) {
    return "a ring holds at least two segments, or ranks wait for each other for ever";
  }
  return {};
}

Engine::Engine(const EngineView& view, const EngineTuning& tuning, EngineSignals& signals)
    : Engine(Unchecked(), view, tuning, signals) {
  std::string_view why = why_unsound(tuning);
  if (why.empty() && view.ring_bytes < tuning.ring_bytes) why = "the rings are shorter";
  if (why.empty()) return;
  throw Error(
      ErrorCode::kInternal,
      fmt::format("rank {}'s engine cannot run with small messages to {} bytes and segments "
                  "of {} in rings of {}: {}. Please report this",
                  view.rank, tuning.small_bytes, tuning.segment_bytes, tuning.ring_bytes, why));
}

Engine::Engine(Unchecked, const EngineView& view, const EngineTuning& tuning,
               EngineSignals& signals) noexcept
    : view_(view),
      tuning_(tuning),
      signals_(signals),
      ranks_(static_cast<int>(view.heads.size())),
      own_(*reinterpret_cast<EngineHead*>(view.head)),
      seen_(ranks_ - 1) {}

const EngineHead& Engine::head(int peer) const noexcept {
  return *reinterpret_cast<const EngineHead*>(of_rank(view_.heads, peer));
}

const std::byte* Engine::ring_at(int peer, std::size_t place) const noexcept {
  return of_rank(view_.rings, peer) + place;
}

/// Upwards from this rank, so that not all ranks turn to the same peer first.
int Engine::peer_at(int distance) const noexcept {
  const int peer = view_.rank + distance;
  return peer < ranks_ ? peer : peer - ranks_;
}

/// Whether this rank's input matters.
bool Engine::is_source() const noexcept {
  return request_->op == Op::all_reduce ||
         (request_->op == Op::broadcast && request_->root == view_.rank);
}

void Engine::begin(const Request& request) noexcept {
  request_ = &request;
  element_bytes_ = size_of(request.dtype);
  byte_count_ = request.op == Op::barrier ? 0 : request.count * element_bytes_;
  path_ = byte_count_ <= kLinePayload          ? Path::line
          : byte_count_ <= tuning_.small_bytes ? Path::small
                                               : Path::ring;
  phase_ = Phase::settle;
}

bool Engine::step() {
  switch (phase_) {
    case Phase::idle:
      return true;
    case Phase::failed:
      return false;
    case Phase::settle:
      if (!all_entered()) return false;
      if (ranks_ == 1) return finish_alone();
      ++number_;
      chain_ = request_->chain;
      seen_ = 0;
      if (path_ == Path::ring) open_stream();
      phase_ = Phase::stage_first;
      [[fallthrough]];
    case Phase::stage_first:
      if (!put_first()) return false;
      post();
      phase_ = Phase::meet;
      [[fallthrough]];
    case Phase::meet:
      if (!met()) return false;
      if (path_ != Path::ring) return finish_small();
      phase_ = Phase::stream;
      [[fallthrough]];
    case Phase::stream:
      return stream();
  }
  return false;
}

// ---- entering ----------------------------------------------------------------------------------

/// Whether `peer` has posted its line of operation `number_`. Any other chain there, or a number
/// beyond, is a disagreement.
bool Engine::entered(int peer) noexcept {
  const Line& line = head(peer).lines[number_ % 2];
  const std::uint64_t number = line.number.load(std::memory_order_seq_cst);
  awaited_ = peer;
  if (number < number_) return false;
  if (number == number_ && line.chain.load(std::memory_order_relaxed) == chain_) return true;
  phase_ = Phase::failed;
  signals_.disagree(peer);
  return false;
}

bool Engine::all_entered() noexcept {
  while (seen_ < ranks_ - 1) {
    if (!entered(peer_at(seen_ + 1))) return false;
    ++seen_;
  }
  awaited_ = -1;
  return true;
}

/// Puts what the line will announce where peers look for it; false while the ring is full.
bool Engine::put_first() {
  if (!is_source()) return true;
  switch (path_) {
    case Path::line:
      if (byte_count_ > 0) {
        std::memcpy(own_.lines[number_ % 2].payload, request_->input.data, byte_count_);
      }
      return true;
    case Path::small:
      std::memcpy(own_.small[number_ % 2], request_->input.data, byte_count_);
      return true;
    case Path::ring:
      return stage();
  }
  return true;
}

void Engine::post() noexcept {
  Line& line = own_.lines[number_ % 2];
  line.chain.store(chain_, std::memory_order_relaxed);
  line.number.store(number_, std::memory_order_seq_cst);
  tell();
}

void Engine::tell() noexcept {
  moved_ = true;
  signals_.notify_all();
}

/// Whether those whose data this rank needs have entered.
bool Engine::met() noexcept {
  if (request_->op != Op::broadcast) return all_entered();
  return is_source() || entered(request_->root);
}

// ---- line and small ----------------------------------------------------------------------------

const void* Engine::small_data(int peer) const noexcept {
  const EngineHead& from = head(peer);
  if (path_ == Path::line) return from.lines[number_ % 2].payload;
  return from.small[number_ % 2];
}

bool Engine::finish_small() noexcept {
  if (request_->op == Op::all_reduce && byte_count_ > 0) {
    std::array<const void*, kMaxEngineRanks> inputs;
    for (int peer = 0; peer < ranks_; ++peer) {
      of_rank(inputs, peer) = peer == view_.rank ? request_->input.data : small_data(peer);
    }
    kernels::reduce_tree(request_->dtype, request_->reduce, inputs.data(), ranks_,
                         request_->output.data, nullptr, request_->count);
  } else if (request_->op == Op::broadcast && byte_count_ > 0 && !is_source()) {
    std::memcpy(request_->output.data, small_data(request_->root), byte_count_);
  }
  return complete();
}

bool Engine::finish_alone() noexcept {
  if (request_->op == Op::all_reduce && byte_count_ > 0) {
    const void* input = request_->input.data;
    kernels::reduce_tree(request_->dtype, request_->reduce, &input, 1, request_->output.data,
                         nullptr, request_->count);
  }
  return complete();
}

bool Engine::complete() noexcept {
  phase_ = Phase::idle;
  awaited_ = -1;
  return true;
}

// ---- ring --------------------------------------------------------------------------------------

void Engine::open_stream() {
  if (ring_ == nullptr) ring_ = signals_.open_ring();
  const std::size_t segments = (byte_count_ + tuning_.segment_bytes - 1) / tuning_.segment_bytes;
  const std::size_t line_elements = kCacheLine / element_bytes_;
  segment_elements_ = round_up((request_->count + segments - 1) / segments, line_elements);
  const Cursor start{0, position_};
  to_stage_ = to_reduce_ = to_drain_ = start;
  first_end_ = segment_at(start).end;
}

Engine::Segment Engine::segment_at(const Cursor& cursor) const noexcept {
  Segment segment;
  segment.element = cursor.element;
  segment.count = std::min(segment_elements_, request_->count - cursor.element);
  const std::size_t ranks = static_cast<std::size_t>(ranks_);
  segment.slice = round_up((segment.count + ranks - 1) / ranks, kCacheLine / element_bytes_);
  const std::size_t byte_count = round_up(segment.count * element_bytes_, kCacheLine);
  segment.place = cursor.position % tuning_.ring_bytes;
  segment.end = cursor.position + byte_count;
  const std::size_t left = tuning_.ring_bytes - segment.place;
  if (byte_count > left) {
    segment.place = 0;
    segment.end += left;
  }
  return segment;
}

Engine::Slice Engine::slice_of(const Segment& segment, int rank) const noexcept {
  const std::size_t first = std::min(segment.slice * static_cast<std::size_t>(rank), segment.count);
  const std::size_t last = std::min(first + segment.slice, segment.count);
  return {(segment.element + first) * element_bytes_, segment.place + first * element_bytes_,
          last - first};
}

/// Whether all peers' counters have reached `position`; `known` remembers the lowest.
bool Engine::all_reached(CounterOf counter, std::uint64_t position, std::uint64_t& known) noexcept {
  if (known >= position) return true;
  std::uint64_t lowest = UINT64_MAX;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == view_.rank) continue;
    const std::uint64_t reached = (head(peer).*counter).position.load(std::memory_order_seq_cst);
    if (reached < position) {
      awaited_ = peer;
      return false;
    }
    lowest = std::min(lowest, reached);
  }
  known = lowest;
  return true;
}

void Engine::publish(CounterOf counter, std::uint64_t position) noexcept {
  (own_.*counter).position.store(position, std::memory_order_seq_cst);
  signals_.progressed();
  tell();
}

void Engine::advance(Cursor& cursor, const Segment& segment) const noexcept {
  cursor.element += segment.count;
  cursor.position = segment.end;
}

void Engine::put(std::byte* to, const std::byte* from, std::size_t byte_count) const noexcept {
  if (store_ == kernels::Store::streaming) {
    kernels::copy_streaming(to, from, byte_count);
  } else {
    kernels::copy(to, from, byte_count);
  }
}

/// Copies one segment of the own input into the own ring, if there is room.
bool Engine::stage() {
  if (to_stage_.element == request_->count) return false;
  const Segment segment = segment_at(to_stage_);
  if (segment.end > tuning_.ring_bytes &&
      !all_reached(&EngineHead::drained, segment.end - tuning_.ring_bytes, known_drained_)) {
    // A root that waits for room looks whether the others are in the same broadcast at all.
    if (phase_ == Phase::stream) all_entered();
    return false;
  }
  const auto* input = static_cast<const std::byte*>(request_->input.data);
  store_ = choice_.next();
  const std::uint64_t start = ticks();
  std::size_t staged = 0;
  if (request_->op == Op::broadcast) {
    staged = segment.count * element_bytes_;
    put(ring_ + segment.place, input + segment.element * element_bytes_, staged);
  } else {
    for (int distance = 1; distance < ranks_; ++distance) {
      const Slice slice = slice_of(segment, peer_at(distance));
      const std::size_t byte_count = slice.count * element_bytes_;
      put(ring_ + slice.place, input + slice.offset, byte_count);
      staged += byte_count;
    }
  }
  choice_.measured(staged, ticks() - start);
  advance(to_stage_, segment);
  if (segment.end != first_end_) publish(&EngineHead::staged, segment.end);
  return true;
}

/// Reduces the own slice of one segment into the own output and the own ring, if all inputs are
/// there.
bool Engine::reduce() noexcept {
  if (to_reduce_.element == to_stage_.element) return false;
  const Segment segment = segment_at(to_reduce_);
  if (segment.end != first_end_ && !all_reached(&EngineHead::staged, segment.end, known_staged_)) {
    return false;
  }
  const Slice slice = slice_of(segment, view_.rank);
  if (slice.count > 0) {
    std::array<const void*, kMaxEngineRanks> inputs;
    for (int peer = 0; peer < ranks_; ++peer) {
      of_rank(inputs, peer) = ring_at(peer, slice.place);
    }
    of_rank(inputs, view_.rank) =
        static_cast<const std::byte*>(request_->input.data) + slice.offset;
    kernels::reduce_tree(request_->dtype, request_->reduce, inputs.data(), ranks_,
                         static_cast<std::byte*>(request_->output.data) + slice.offset,
                         ring_ + slice.place, slice.count, store_);
  }
  advance(to_reduce_, segment);
  publish(&EngineHead::reduced, segment.end);
  return true;
}

/// Copies the others' results of one segment out of their rings, if they are there.
bool Engine::drain() noexcept {
  auto* output = static_cast<std::byte*>(request_->output.data);
  if (request_->op == Op::broadcast) {
    if (to_drain_.element == request_->count) return false;
    const Segment segment = segment_at(to_drain_);
    const int root = request_->root;
    if (segment.end != first_end_ &&
        head(root).staged.position.load(std::memory_order_seq_cst) < segment.end) {
      awaited_ = root;
      return false;
    }
    std::memcpy(output + segment.element * element_bytes_, ring_at(root, segment.place),
                segment.count * element_bytes_);
    advance(to_drain_, segment);
    publish(&EngineHead::drained, segment.end);
    return true;
  }
  if (to_drain_.element == to_reduce_.element) return false;
  const Segment segment = segment_at(to_drain_);
  if (!all_reached(&EngineHead::reduced, segment.end, known_reduced_)) return false;
  for (int distance = 1; distance < ranks_; ++distance) {
    const int peer = peer_at(distance);
    const Slice slice = slice_of(segment, peer);
    std::memcpy(output + slice.offset, ring_at(peer, slice.place), slice.count * element_bytes_);
  }
  advance(to_drain_, segment);
  publish(&EngineHead::drained, segment.end);
  return true;
}

/// Does all work that is ready, oldest segments first, so that what is read is still in the cache.
bool Engine::stream() {
  const bool all_reduce = request_->op == Op::all_reduce;
  const bool stages = is_source();
  const bool drains = all_reduce || !stages;
  const Cursor& last = drains ? to_drain_ : to_stage_;
  while (last.element < request_->count) {
    if (view_.abort_word->load(std::memory_order_relaxed) != 0) return false;
    const bool moved = (drains && drain()) || (all_reduce && reduce()) || (stages && stage());
    if (!moved) return false;
  }
  position_ = last.position;
  if (!drains) publish(&EngineHead::drained, position_);
  return complete();
}

}  // namespace tutti::native
