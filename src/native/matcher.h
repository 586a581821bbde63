// Which message goes to which receive: the rules alone, without a channel, a thread or a clock.
//
// A message that comes is *taken* by the oldest receive posted for its peer and tag, or from any
// rank with that tag; else it is *kept* until there is one. Messages of a peer and tag are taken in
// the order in which they came; a receive from any rank takes what came first of all peers. Whether
// a pair can be made now is asked of the Taker: where it cannot, the pair is tried again by the
// next `settle`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/of_rank.h"
#include "native/channel/channel.h"
#include "native/posted.h"
#include "native/tags.h"

namespace tutti::native {

/// A message whose receive is sought.
struct Offer {
  FrameHeader header;
  const std::byte* payload = nullptr;  ///< `header.payload_bytes` of it
  Posted* send = nullptr;              ///< of a message to oneself that was not copied
};

class Taker {
 public:
  /// Makes a pair; a receive from any rank becomes one from `from` by `Matcher::assign`. False: not
  /// now, or the group has failed.
  virtual bool take(int from, Posted& receive, const Offer& offer) = 0;

 protected:
  ~Taker() = default;
};

/// Threads   One at a time.
/// Errors    kInternal, naming the peer: more is kept than it may send.
class Matcher {
 public:
  /// What all kept messages of a peer may take, with kKeptBytes for each.
  static constexpr std::size_t kMaxKeptBytes = std::size_t{64} << 20;
  static constexpr std::size_t kKeptBytes = 128;
  static std::size_t cost_of(const FrameHeader& header) noexcept {
    return kKeptBytes + header.payload_bytes;
  }

  Matcher(int group_size, std::size_t max_payload, Taker& taker);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  /// Puts a receive in line, in which it stands until it has ended or was assigned. What it throws
  /// has changed nothing.
  PostedLine& post(Posted& receive);
  /// A message has come: it is taken at once, or kept with a copy of its payload.
  void offer(int from, const Offer& offer);
  /// Makes pairs with what is kept of this peer, or for receives from any rank, as far as that goes
  /// now.
  void settle(int from);
  void settle_any();
  bool has_unsettled_any() const noexcept { return !unsettled_any_.empty(); }
  /// Whether a message of this peer has its receive, and could not be taken yet.
  bool has_unsettled(int from) const noexcept {
    return !peer(from).unsettled.empty() || (has_unsettled_any() && kept_bytes(from) > 0);
  }
  /// Whether a message that `receive` may take has come, and could not be taken yet.
  bool keeps_for(const Posted& receive) const noexcept;
  /// A kept message is no more. False: it is not here.
  bool take_back(int from, std::int32_t tag, std::uint64_t id);
  /// A kept message to oneself has its bytes elsewhere from now on. False: it is not here.
  bool replace(int from, const Posted& send, Posted& by) noexcept;
  /// For the Taker: a receive from any rank becomes one from `from`, in its place among those.
  /// Returns that line.
  PostedLine& assign(Posted& receive, int from);

  std::size_t kept_bytes(int from) const noexcept { return peer(from).kept_bytes; }
  /// All receives.
  template <class Visit>
  void each(Visit&& visit) const {
    for (const Peer& from : peers_) from.tags.each([&](const Tag& tag) { each_in(tag, visit); });
    any_.each([&](const Tag& tag) { each_in(tag, visit); });
  }

 private:
  /// A message that came before its receive; its payload follows it.
  struct Kept {
    FrameHeader header;
    std::uint64_t order = 0;  ///< of arrival, among those of all peers
    Posted* send = nullptr;
    Kept* next = nullptr;
    std::byte* payload() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
    std::size_t cost() const noexcept { return send != nullptr ? 0 : cost_of(header); }
  };
  /// One tag of one peer, or of any.
  struct Tag {
    std::int32_t tag = 0;
    PostedLine receives;
    Kept* first_kept = nullptr;
    Kept* last_kept = nullptr;
    bool unsettled = false;  ///< in the list of tags where something may match
    Tag* next = nullptr;
    bool idle() const noexcept {
      return receives.first == nullptr && first_kept == nullptr && !unsettled;
    }
  };
  struct Peer {
    TagTable<Tag> tags;
    std::vector<Tag*> unsettled;
    std::size_t kept_bytes = 0;
  };

  template <class Visit>
  static void each_in(const Tag& tag, Visit&& visit) {
    for (Posted *receive = tag.receives.first, *next = nullptr; receive != nullptr;
         receive = next) {
      next = receive->in_tag.next;
      visit(*receive);
    }
  }
  Peer& peer(int rank) noexcept { return of_rank(peers_, rank); }
  const Peer& peer(int rank) const noexcept { return of_rank(peers_, rank); }
  static void unsettle(std::vector<Tag*>& list, Tag& tag);
  Posted* find_receive(const Tag& tag) const noexcept;
  bool is_for_settle_any(const Posted* receive) const noexcept;
  bool take_oldest(int from, Tag& tag);
  void keep(int from, Tag& tag, const Offer& offer);
  static void release(Peer& from, Tag& tag, Kept* before, Kept& kept) noexcept;

  const std::size_t max_payload_;
  Taker& taker_;
  std::vector<Peer> peers_;
  TagTable<Tag> any_;                // receives from any rank
  std::vector<Tag*> unsettled_any_;  // of any_
  std::uint64_t next_order_ = 1;
};

/// What only a bug can cause, ours or that of somebody who writes to our memory.
[[noreturn]] void throw_broken(int peer, const std::string& what);

}  // namespace tutti::native
