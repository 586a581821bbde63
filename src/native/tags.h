// What is under way between this rank and one peer, by tag: thousands of tags cost no search.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace tutti::native {

/// Things by tag. `Tag` has `tag`, `next` (for the table alone) and `idle()`: idle ones go when
/// others need their place, which is in `get` only. What `get` throws has changed nothing.
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
    std::size_t live = 0;
    each([&](const Tag& tag) { live += tag.idle() ? 0 : 1; });
    const std::size_t size = buckets_.size();
    // Before anything is moved: there may be no memory.
    std::vector<Tag*> old(2 * live >= size ? std::max<std::size_t>(16, 2 * size) : size, nullptr);
    old.swap(buckets_);
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
