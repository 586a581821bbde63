// What is under way between this rank and one peer, by tag: thousands of tags cost no search.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "native/channel/channel.h"

namespace tutti::native {

class Transfer;

/// A place in a line.
struct Link {
  Transfer* previous = nullptr;
  Transfer* next = nullptr;
};

/// Transfers one after another, chained through their `place`.
template <Link Transfer::*place>
struct LineOf {
  Transfer* first = nullptr;
  Transfer* last = nullptr;

  void append(Transfer& transfer) noexcept { insert_after(last, transfer); }
  /// `after` null: at the front.
  void insert_after(Transfer* after, Transfer& transfer) noexcept {
    Link& link = transfer.*place;
    link.previous = after;
    link.next = after != nullptr ? (after->*place).next : first;
    (after != nullptr ? (after->*place).next : first) = &transfer;
    (link.next != nullptr ? (link.next->*place).previous : last) = &transfer;
  }
  void remove(Transfer& transfer) noexcept {
    const Link& link = transfer.*place;
    (link.previous != nullptr ? (link.previous->*place).next : first) = link.next;
    (link.next != nullptr ? (link.next->*place).previous : last) = link.previous;
  }
};

/// A message that arrived before its receive; its payload follows it.
struct Kept {
  FrameHeader header;
  std::uint64_t order = 0;  ///< of arrival, among those of all peers
  Kept* next = nullptr;
  std::byte* payload() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
};

/// One tag of one peer.
template <class Line>
struct Tag {
  std::int32_t tag = 0;
  Line sends, receives;              ///< in submission order
  Transfer* first_queued = nullptr;  ///< of `sends`: it and all behind it are to be announced
  std::size_t announced = 0;         ///< by us, and unmatched
  Kept* first_kept = nullptr;
  Kept* last_kept = nullptr;
  bool ready = false;      ///< in the peer's list of tags with something to announce
  bool unsettled = false;  ///< in its list of tags where something may match
  Tag* next = nullptr;     ///< in its bucket, or among the free

  bool idle() const noexcept {
    return sends.first == nullptr && receives.first == nullptr && announced == 0 &&
           first_kept == nullptr && !ready && !unsettled;
  }
};

/// The tags of a peer. Idle ones go when others need their place, which is in `get` only.
template <class Tag>
class TagTable {
 public:
  Tag* find(std::int32_t tag) const noexcept {
    Tag* each = buckets_.empty() ? nullptr : buckets_[index_of(tag)];
    while (each != nullptr && each->tag != tag) each = each->next;
    return each;
  }
  Tag& get(std::int32_t tag) {
    if (Tag* const known = find(tag)) return *known;
    if (count_ == buckets_.size()) make_room();
    if (free_ == nullptr) free_ = &all_.emplace_back();
    Tag& made = *free_;
    free_ = made.next;
    Tag*& head = buckets_[index_of(tag)];
    made = Tag{};
    made.tag = tag;
    made.next = std::exchange(head, &made);
    ++count_;
    return made;
  }
  template <class Visit>
  void each(Visit&& visit) const {
    for (Tag* tag : buckets_) {
      for (; tag != nullptr; tag = tag->next) visit(*tag);
    }
  }

 private:
  std::size_t index_of(std::int32_t tag) const noexcept {
    return static_cast<std::uint32_t>(tag) * 0x9e3779b1u >>
           (32 - std::bit_width(buckets_.size() - 1));
  }
  /// Lets the idle ones go; more buckets if that leaves the table half full.
  void make_room() {
    std::vector<Tag*> old = std::move(buckets_);
    std::size_t live = 0;
    for (Tag* tag : old) {
      for (; tag != nullptr; tag = tag->next) live += tag->idle() ? 0 : 1;
    }
    buckets_.assign(2 * live >= old.size() ? std::max<std::size_t>(16, 2 * old.size()) : old.size(),
                    nullptr);
    count_ = live;
    for (Tag* tag : old) {
      while (tag != nullptr) {
        Tag* const next = tag->next;
        Tag*& head = tag->idle() ? free_ : buckets_[index_of(tag->tag)];
        tag->next = head;
        head = tag;
        tag = next;
      }
    }
  }

  std::vector<Tag*> buckets_;  // a power of two, or none
  std::size_t count_ = 0;      // in buckets_
  std::deque<Tag> all_;
  Tag* free_ = nullptr;
};

}  // namespace tutti::native
