// Sends and receives that a rank has posted, in lines.
#pragma once

#include <atomic>
#include <cstdint>

namespace tutti::native {

struct Posted;

/// A place in a line.
struct Link {
  Posted* previous = nullptr;
  Posted* next = nullptr;
};

/// One send or receive, as far as finding its other half goes.
struct Posted {
  enum class State : std::uint8_t {
    queued,    ///< a send that was not announced yet
    waiting,   ///< announced; a receive from the start
    matched,   ///< content is moving
    complete,  ///< all is moved, but an older one of the tag is under way
    ended,
  };
  Posted(int peer_in, std::int32_t tag_in) noexcept : peer(peer_in), tag(tag_in) {}
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;

  std::atomic<int> peer;  ///< kAnyRank until matched
  const std::int32_t tag;
  std::atomic<State> state{State::queued};
  std::uint64_t order = 0;  ///< of a receive: among all of the rank
  Link in_tag;              ///< in the line of its tag
  Link in_stream;           ///< while its content moves: in the peer's line of those

 protected:
  ~Posted() = default;
};

/// Some of them one after another, chained through their `place`.
template <Link Posted::*place>
struct LineOf {
  Posted* first = nullptr;
  Posted* last = nullptr;

  void append(Posted& posted) noexcept { insert_after(last, posted); }
  /// `after` null: at the front.
  void insert_after(Posted* after, Posted& posted) noexcept {
    Link& link = posted.*place;
    link.previous = after;
    link.next = after != nullptr ? (after->*place).next : first;
    (after != nullptr ? (after->*place).next : first) = &posted;
    (link.next != nullptr ? (link.next->*place).previous : last) = &posted;
  }
  void remove(Posted& posted) noexcept {
    const Link& link = posted.*place;
    (link.previous != nullptr ? (link.previous->*place).next : first) = link.next;
    (link.next != nullptr ? (link.next->*place).previous : last) = link.previous;
  }
};
/// Those of one peer, tag and direction, in the order of submission.
using PostedLine = LineOf<&Posted::in_tag>;
/// Those of one peer and direction whose content moves.
using PostedStreams = LineOf<&Posted::in_stream>;

}  // namespace tutti::native
