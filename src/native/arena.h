// The memory a rank shows to the others of its group.
//
// An *arena* is one sealed memfd per rank and group. Its owner writes it, the others map it
// read-only and acknowledge in their own arenas. It is cut into *regions*: the *head* (the engine's
// lines and slots, then the channels' counters), the engine's *ring* (staging of large operations),
// and for each peer and *lane* the outgoing ring of one channel. The head is reserved at once;
// every other region when its owner first uses it. Ranks of one process share one mapping of each
// arena.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/of_rank.h"
#include "control/memory/memory.h"
#include "native/channels.h"
#include "net/fd.h"
#include "tutti/backend.h"

namespace tutti::native {

inline constexpr std::size_t kArenaBytes = std::size_t{8} << 20;
inline constexpr std::size_t kEngineHeadBytes = 64 * 1024;
inline constexpr std::size_t kEngineRingBytes = std::size_t{4} << 20;

/// One end of a channel in an arena: a line for what the owner has produced for a peer, one for
/// what it has consumed from that peer. The counters only grow. Beside them lie the LinkWords.
struct ChannelCounters {
  alignas(64) std::atomic<std::uint64_t> produced{0};
  std::atomic<std::uint64_t> withdrawn{0};
  std::atomic<std::uint64_t> held{0};
  alignas(64) std::atomic<std::uint64_t> consumed{0};
  std::atomic<std::uint64_t> matching{0};
  std::atomic<std::uint64_t> taken{0};
};
static_assert(sizeof(ChannelCounters) == 128);

/// Where the regions of an arena lie: a pure function of the number of ranks, the same in all
/// arenas of a group.
struct ArenaLayout {
  explicit ArenaLayout(int group_size);
  std::size_t counters_offset(int peer, Lane lane) const noexcept;
  std::size_t channel_offset(int peer, Lane lane) const noexcept;

  std::size_t head_bytes = 0;     ///< engine head and channel counters; a multiple of a page
  std::size_t channel_bytes = 0;  ///< of one channel's ring: a power of two, at least a page
};

class Arena;

/// The channels of a lane over the arenas of a group; null in a group of one, which has no peers.
/// Their memory is reserved when a channel is first used: kSystem if there is none.
Channels shm_channels(Arena* arena, Lane lane);
/// The same to one peer, by its number among those that have arenas.
PeerLink shm_link(Arena& arena, int peer, Lane lane);
/// The largest payload of a channel between ranks of which so many share memory.
std::size_t shm_max_payload(int group_size);

/// The arenas of a group as one of its ranks sees them: its own to write, the others' to read. If
/// the group has members on other hosts, those of this host alone have them, and count as a group
/// of their own here.
///
/// Lifetime  Mappings of peers outlive their owners: what was written can still be read.
/// Threads   Const members from any thread; each region belongs to one writer at a time.
/// Errors    kSystem when memory cannot be reserved.
class Arena {
 public:
  /// Makes the own arena and exchanges it with the other members; waits for all of them.
  static std::unique_ptr<Arena> make(const GroupSpec& spec);
  /// `here`: the members that are on this host, ascending.
  static std::unique_ptr<Arena> make(const GroupSpec& spec, const std::vector<int>& here);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int rank() const noexcept { return rank_; }
  int group_size() const noexcept { return static_cast<int>(mappings_.size()); }
  const ArenaLayout& layout() const noexcept { return layout_; }

  // ---- own: zero at first ----------------------------------------------------------------------
  std::span<std::byte> engine_head() noexcept { return {own(), kEngineHeadBytes}; }
  /// Reserves the pages at the first call.
  std::span<std::byte> engine_ring();
  ChannelCounters& counters(int peer, Lane lane) noexcept;
  /// The ring of the channel to `peer`; reserves its pages at the first call.
  std::span<std::byte> channel_ring(int peer, Lane lane);

  // ---- another rank's (or the own), to read ----------------------------------------------------
  class View {
   public:
    std::span<const std::byte> engine_head() const noexcept { return {base_, kEngineHeadBytes}; }
    std::span<const std::byte> engine_ring() const noexcept;
    /// Counters and ring of the channel from the arena's owner to `reader`.
    const ChannelCounters& counters(int reader, Lane lane) const noexcept;
    std::span<const std::byte> channel_ring(int reader, Lane lane) const noexcept;

   private:
    friend class Arena;
    View(const std::byte* base, const ArenaLayout& layout) noexcept
        : base_(base), layout_(&layout) {}
    const std::byte* base_;
    const ArenaLayout* layout_;
  };
  View peer(int rank) const noexcept;

  /// Bytes of the own arena that hold pages, for tests and reports.
  std::size_t reserved_bytes() const noexcept { return reserved_bytes_.load(); }

 private:
  Arena(int rank, int group_size, net::Fd memory);
  std::byte* own() const noexcept { return of_rank(mappings_, rank_)->data(); }
  void reserve(std::atomic<bool>& reserved, std::size_t offset, std::size_t byte_count);

  const int rank_;
  const ArenaLayout layout_;
  const net::Fd memory_;
  std::vector<std::shared_ptr<control::Mapping>> mappings_;  // by rank; the own one is writable
  std::atomic<std::size_t> reserved_bytes_{0};
  std::atomic<bool> ring_reserved_{false};
  std::vector<std::atomic<bool>> channel_reserved_;  // by peer and lane
};

}  // namespace tutti::native
