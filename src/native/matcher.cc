#include "native/matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "tutti/error.h"
#include "tutti/request.h"

namespace tutti::native {

void throw_broken(int peer, const std::string& what) {
  throw Error(ErrorCode::kInternal, fmt::format("rank {} {}. Please report this", peer, what),
              {.culprits = {peer}});
}

Matcher::Matcher(int group_size, std::size_t max_payload, Taker& taker)
    : max_payload_(max_payload), taker_(taker), peers_(static_cast<std::size_t>(group_size)) {}

Matcher::~Matcher() {
  for (Peer& from : peers_) {
    from.tags.each([&](Tag& tag) {
      while (tag.first_kept != nullptr) release(from, tag, nullptr, *tag.first_kept);
    });
  }
}

PostedLine& Matcher::post(Posted& receive) {
  const int from = receive.peer.load();
  Tag& tag = (from == kAnyRank ? any_ : peer(from).tags).get(receive.tag);
  if (from == kAnyRank) {
    unsettle(unsettled_any_, tag);
  } else if (tag.first_kept != nullptr) {
    unsettle(peer(from).unsettled, tag);
  }
  receive.order = next_order_++;
  tag.receives.append(receive);
  receive.state.store(Posted::State::waiting);
  return tag.receives;
}

void Matcher::offer(int from, const Offer& offer) {
  if (offer.send == nullptr && offer.header.payload_bytes > max_payload_) {
    throw_broken(from, fmt::format("announced message {} with {} bytes beside it, and at most {} "
                                   "may come",
                                   offer.header.id, offer.header.payload_bytes, max_payload_));
  }
  Tag& tag = peer(from).tags.get(offer.header.tag);
  Posted* const receive = find_receive(tag);
  const bool is_first = tag.first_kept == nullptr && !is_for_settle_any(receive);
  if (receive != nullptr && is_first && taker_.take(from, *receive, offer)) return;
  keep(from, tag, offer);
  if (receive != nullptr) unsettle(peer(from).unsettled, tag);
}

/// The oldest receive that takes a message of this peer and tag.
Posted* Matcher::find_receive(const Tag& tag) const noexcept {
  Posted* own = tag.receives.first;
  while (own != nullptr && own->state.load() != Posted::State::waiting) own = own->in_tag.next;
  const Tag* const of_any = any_.find(tag.tag);
  Posted* const any = of_any != nullptr ? of_any->receives.first : nullptr;
  if (own == nullptr || any == nullptr) return own != nullptr ? own : any;
  return own->order < any->order ? own : any;
}

/// A receive from any rank, for which older messages of others may be kept.
bool Matcher::is_for_settle_any(const Posted* receive) const noexcept {
  if (receive == nullptr || receive->peer.load() != kAnyRank) return false;
  const Tag* const of_any = any_.find(receive->tag);
  return of_any != nullptr && of_any->unsettled;
}

void Matcher::unsettle(std::vector<Tag*>& list, Tag& tag) {
  if (tag.unsettled) return;
  list.push_back(&tag);
  tag.unsettled = true;
}

void Matcher::settle(int from) {
  Peer& each = peer(from);
  std::size_t left = 0;
  for (std::size_t i = 0; i < each.unsettled.size(); ++i) {
    Tag& tag = *each.unsettled[i];
    while (!is_for_settle_any(find_receive(tag)) && take_oldest(from, tag)) {
    }
    tag.unsettled = tag.first_kept != nullptr && find_receive(tag) != nullptr;
    if (tag.unsettled) each.unsettled[left++] = &tag;
  }
  each.unsettled.resize(left);
}

/// A tag stays listed while the oldest message cannot be taken now: others behind it wait for the
/// same receives.
void Matcher::settle_any() {
  std::size_t left = 0;
  for (std::size_t i = 0; i < unsettled_any_.size(); ++i) {
    Tag& of_any = *unsettled_any_[i];
    Tag* oldest = nullptr;
    for (bool taken = true; taken;) {
      int from = -1;
      oldest = nullptr;
      for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
        Tag* const tag = peers_[rank].tags.find(of_any.tag);
        if (tag == nullptr || tag->first_kept == nullptr) continue;
        if (oldest != nullptr && oldest->first_kept->order < tag->first_kept->order) continue;
        from = static_cast<int>(rank);
        oldest = tag;
      }
      taken = oldest != nullptr && take_oldest(from, *oldest);
    }
    of_any.unsettled = oldest != nullptr && of_any.receives.first != nullptr;
    if (of_any.unsettled) unsettled_any_[left++] = &of_any;
  }
  unsettled_any_.resize(left);
}

/// False: there is nothing to take, or it cannot be done now.
bool Matcher::take_oldest(int from, Tag& tag) {
  Kept* const kept = tag.first_kept;
  Posted* const receive = kept != nullptr ? find_receive(tag) : nullptr;
  if (receive == nullptr) return false;
  if (!taker_.take(from, *receive, {kept->header, kept->payload(), kept->send})) return false;
  release(peer(from), tag, nullptr, *kept);
  return true;
}

bool Matcher::keeps_for(const Posted& receive) const noexcept {
  const auto keeps = [&](const Peer& from) {
    const Tag* const tag = from.tags.find(receive.tag);
    return tag != nullptr && tag->first_kept != nullptr;
  };
  const int from = receive.peer.load();
  return from == kAnyRank ? std::ranges::any_of(peers_, keeps) : keeps(peer(from));
}

PostedLine& Matcher::assign(Posted& receive, int from) {
  PostedLine& line = peer(from).tags.get(receive.tag).receives;
  any_.get(receive.tag).receives.remove(receive);
  receive.peer.store(from);
  Posted* after = line.last;
  while (after != nullptr && after->order > receive.order) after = after->in_tag.previous;
  line.insert_after(after, receive);
  return line;
}

bool Matcher::replace(int from, const Posted& send, Posted& by) noexcept {
  Tag* const tag = peer(from).tags.find(send.tag);
  Kept* kept = tag != nullptr ? tag->first_kept : nullptr;
  while (kept != nullptr && kept->send != &send) kept = kept->next;
  if (kept == nullptr) return false;
  kept->send = &by;
  return true;
}

bool Matcher::take_back(int from, std::int32_t tag_number, std::uint64_t id) {
  Tag* const tag = peer(from).tags.find(tag_number);
  Kept* before = nullptr;
  Kept* kept = tag != nullptr ? tag->first_kept : nullptr;
  while (kept != nullptr && kept->header.id != id) before = std::exchange(kept, kept->next);
  if (kept == nullptr) return false;
  release(peer(from), *tag, before, *kept);
  return true;
}

void Matcher::keep(int from, Tag& tag, const Offer& offer) {
  const std::size_t byte_count = offer.send != nullptr ? 0 : offer.header.payload_bytes;
  Peer& each = peer(from);
  if (offer.send == nullptr && each.kept_bytes + cost_of(offer.header) > kMaxKeptBytes) {
    throw_broken(from, fmt::format("announced message {} of {} bytes where {} bytes are unmatched, "
                                   "which is more than it may",
                                   offer.header.id, byte_count, each.kept_bytes));
  }
  Kept* const kept =
      new (::operator new (sizeof(Kept) + byte_count, std::align_val_t{alignof(Kept)}))
          Kept{.header = offer.header, .order = next_order_++, .send = offer.send};
  if (byte_count > 0) std::memcpy(kept->payload(), offer.payload, byte_count);
  (tag.first_kept == nullptr ? tag.first_kept : tag.last_kept->next) = kept;
  tag.last_kept = kept;
  each.kept_bytes += kept->cost();
}

void Matcher::release(Peer& from, Tag& tag, Kept* before, Kept& kept) noexcept {
  (before != nullptr ? before->next : tag.first_kept) = kept.next;
  if (tag.last_kept == &kept) tag.last_kept = before;
  from.kept_bytes -= kept.cost();
  ::operator delete (&kept, std::align_val_t{alignof(Kept)});
}

}  // namespace tutti::native
