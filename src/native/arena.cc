#include "native/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/of_rank.h"
#include "control/board/limits.h"
#include "control/membership.h"
#include "control/memory/hand_over.h"
#include "group/native_spec.h"
#include "native/channel/shm.h"
#include "native/engine/engine.h"
#include "net/poller.h"
#include "tutti/error.h"

namespace tutti::native {

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kMaxChannelBytes = 256 * 1024;
constexpr std::size_t kRingOffset = kArenaBytes - kEngineRingBytes;
static_assert(kPageBytes >= ShmSender::kLeastRingBytes);
static_assert(kEngineHeadBytes + control::kMaxLocalRanks * kLaneCount *
                                     (sizeof(ChannelCounters) + kPageBytes) <=
                  kRingOffset,
              "a group of the largest size has room for a page per channel");

std::size_t index_of(int peer, Lane lane) noexcept {
  return static_cast<std::size_t>(peer) * kLaneCount + static_cast<std::size_t>(lane);
}

const ChannelCounters& counters_at(const std::byte* base, std::size_t offset) noexcept {
  return *reinterpret_cast<const ChannelCounters*>(base + offset);
}

}  // namespace

ArenaLayout::ArenaLayout(int group_size) {
  const std::size_t channels = static_cast<std::size_t>(group_size) * kLaneCount;
  head_bytes = kEngineHeadBytes + channels * sizeof(ChannelCounters);
  head_bytes = (head_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  channel_bytes = std::min(kMaxChannelBytes, std::bit_floor((kRingOffset - head_bytes) / channels));
}

std::size_t ArenaLayout::counters_offset(int peer, Lane lane) const noexcept {
  return kEngineHeadBytes + index_of(peer, lane) * sizeof(ChannelCounters);
}

std::size_t ArenaLayout::channel_offset(int peer, Lane lane) const noexcept {
  return head_bytes + index_of(peer, lane) * channel_bytes;
}

std::unique_ptr<Arena> Arena::make(const GroupSpec& spec) {
  std::vector<int> all(spec.world_ranks.size());
  std::iota(all.begin(), all.end(), 0);
  return make(spec, all);
}

std::unique_ptr<Arena> Arena::make(const GroupSpec& spec, const std::vector<int>& here) {
  const bool all_are_here = here.size() == spec.world_ranks.size();
  const auto group_size = static_cast<int>(here.size());
  const auto own = static_cast<int>(std::find(here.begin(), here.end(), spec.rank) - here.begin());
  std::unique_ptr<Arena> arena(
      new Arena(own, group_size, control::make_memory("tutti-arena", kArenaBytes)));
  const auto take = [&](int rank, net::Fd memory) {
    if (rank == own) return;
    of_rank(arena->mappings_, rank) = control::map_shared(memory, kArenaBytes, false);
  };
  const net::Interrupt interrupt{&group::membership_of(spec).abort_word()};
  const std::string prefix = all_are_here ? "arena" : fmt::format("arena/{}", here.front());
  control::hand_over(*spec.store, prefix, own, group_size, arena->memory_.get(),
                     Deadline::after(spec.timeout), take, interrupt, here);
  return arena;
}

Arena::Arena(int rank, int group_size, net::Fd memory)
    : rank_(rank),
      layout_(group_size),
      memory_(std::move(memory)),
      mappings_(static_cast<std::size_t>(group_size)),
      channel_reserved_(static_cast<std::size_t>(group_size) * kLaneCount) {
  control::reserve_memory(memory_, 0, layout_.head_bytes);
  reserved_bytes_ = layout_.head_bytes;
  of_rank(mappings_, rank) = control::map_shared(memory_, kArenaBytes, true);
  control::seal_writes(memory_);
}

void Arena::reserve(std::atomic<bool>& reserved, std::size_t offset, std::size_t byte_count) {
  if (reserved.load(std::memory_order_relaxed)) return;
  control::reserve_memory(memory_, offset, byte_count);
  if (!reserved.exchange(true)) reserved_bytes_ += byte_count;
}

std::span<std::byte> Arena::engine_ring() {
  reserve(ring_reserved_, kRingOffset, kEngineRingBytes);
  return {own() + kRingOffset, kEngineRingBytes};
}

ChannelCounters& Arena::counters(int peer, Lane lane) noexcept {
  return const_cast<ChannelCounters&>(counters_at(own(), layout_.counters_offset(peer, lane)));
}

std::span<std::byte> Arena::channel_ring(int peer, Lane lane) {
  const std::size_t offset = layout_.channel_offset(peer, lane);
  reserve(channel_reserved_[index_of(peer, lane)], offset, layout_.channel_bytes);
  return {own() + offset, layout_.channel_bytes};
}

Arena::View Arena::peer(int rank) const noexcept {
  return {of_rank(mappings_, rank)->data(), layout_};
}

std::span<const std::byte> Arena::View::engine_ring() const noexcept {
  return {base_ + kRingOffset, kEngineRingBytes};
}

const ChannelCounters& Arena::View::counters(int reader, Lane lane) const noexcept {
  return counters_at(base_, layout_->counters_offset(reader, lane));
}

std::span<const std::byte> Arena::View::channel_ring(int reader, Lane lane) const noexcept {
  return {base_ + layout_->channel_offset(reader, lane), layout_->channel_bytes};
}

PeerLink shm_link(Arena& arena, int peer, Lane lane) {
  const int rank = arena.rank();
  ChannelCounters& own = arena.counters(peer, lane);
  const ChannelCounters& theirs = arena.peer(peer).counters(rank, lane);
  return {.receiver = std::make_unique<ShmReceiver>(arena.peer(peer).channel_ring(rank, lane),
                                                    theirs.produced, own.consumed),
          .open_sender =
              [&arena, peer, lane, &own, &theirs] {
                return std::make_unique<ShmSender>(arena.channel_ring(peer, lane), own.produced,
                                                   theirs.consumed);
              },
          .own_words = {&own.withdrawn, &own.matching, &own.taken, &own.held},
          .words_of_peer = {&theirs.withdrawn, &theirs.matching, &theirs.taken, &theirs.held}};
}

std::size_t shm_max_payload(int group_size) {
  return ShmSender::max_payload_of(ArenaLayout(group_size).channel_bytes);
}

Channels shm_channels(Arena* arena, Lane lane) {
  // A message to oneself needs no channel, but is cut alike.
  constexpr std::size_t kPayloadAlone = std::size_t{64} << 10;
  if (arena == nullptr) return Channels(1, 0, kPayloadAlone, {});
  return Channels(arena->group_size(), arena->rank(), shm_max_payload(arena->group_size()),
                  [=](int peer) { return shm_link(*arena, peer, lane); });
}

}  // namespace tutti::native
