// How a message that nothing has matched is taken back: by its sender or receiver, because its time
// has passed, or by Work::cancel.
#include <fmt/format.h>

#include <thread>

#include "native/messages.h"

namespace tutti::native {

bool Messages::withdraw(Transfer& transfer, bool by_force) {
  take_token(&transfer);
  take_in();
  const bool mine = !transfer.ended() && (by_force || take_back(transfer));
  if (mine && by_force) forget(transfer);
  give_token();
  return mine;
}

bool Messages::cancel(Transfer& transfer, const Error& failure) {
  take_token();
  take_in();
  bool mine = false;
  // A match of another message is over in no time, unless its rank is stopped there.
  for (int tries = 0; tries < 1000 && !mine && !transfer.matched(); ++tries) {
    if (tries > 0 && membership_.abort_word().load() != 0) break;
    if (tries > 0) std::this_thread::yield();
    mine = take_back(transfer);
  }
  if (mine) fail(transfer, failure);
  give_token();
  return mine;
}

/// Withdraws what nobody has matched. False: too late, or not now.
bool Messages::take_back(Transfer& transfer) {
  if (transfer.matched()) return false;
  transfer.held_back_ = held_back(transfer);
  if (!is_announced(transfer)) {
    forget(transfer);
    return true;
  }
  Peer& to = peer(transfer.awaited());
  if (!freeze(to)) return false;
  const bool mine = !transfer.matched();
  if (mine) take_back_announced(to, transfer);
  thaw(to);
  return mine;
}

bool Messages::is_announced(const Transfer& transfer) const noexcept {
  return transfer.is_send() && transfer.awaited() != membership_.rank() &&
         transfer.state.load() == State::waiting;
}

/// The pair is frozen.
void Messages::take_back_announced(Peer& to, Transfer& send) {
  Tag& tag = tag_of(send);
  --tag.announced;
  to.announced_bytes -= kKeptBytes + (send.carried_ ? send.byte_count() : 0);
  ++to.withdrawals;
  to.withdrawn.push_back({send.id_, tag.tag});
  owe();
  forget(send);
  if (tag.first_queued != nullptr) make_ready(to, tag);
}

/// A pair is *frozen* while its sender takes messages back: the receiver matches none of them.
/// Each end writes a word of its own and then reads the other's, so that at least one of them sees
/// the other and lets go: the sender adds to `withdrawn` and looks whether the receiver is
/// `matching`; the receiver says that it is matching and looks whether it has read as many
/// withdrawals as there are (`claim`). Neither waits. Once frozen, every match that was made has
/// been told, and is read here. False: a match is being made; try again. Or the group has failed:
/// then nothing is read any more.
bool Messages::freeze(Peer& to) {
  channels_.own_words(to.rank).withdrawn->store(to.withdrawals + 1);
  if (channels_.words_of(to.rank).matching->load() != 0) {
    thaw(to);
    return false;
  }
  guarded([&] { read_frames(to); });
  if (membership_.abort_word().load() == 0) return true;
  thaw(to);
  return false;
}

void Messages::thaw(Peer& to) noexcept {
  channels_.own_words(to.rank).withdrawn->store(to.withdrawals);
  guarded([&] { tell_withdrawals(to); });
  membership_.notify(to.rank);  // which may have something to match
}

bool Messages::tell_withdrawals(Peer& to) {
  FrameHeader header;
  header.type = FrameType::withdraw;
  for (; to.told_withdrawals < to.withdrawn.size(); ++to.told_withdrawals) {
    header.id = to.withdrawn[to.told_withdrawals].id;
    header.tag = to.withdrawn[to.told_withdrawals].tag;
    if (!try_send(to, header, nullptr)) return false;
    owed_.fetch_sub(1);
  }
  to.withdrawn.clear();
  to.told_withdrawals = 0;
  return true;
}

/// Takes a transfer that has not ended out of everything that points to it.
void Messages::forget(Transfer& transfer) noexcept {
  if (transfer.is_send() && transfer.line_ != &unplaced_) {
    Peer& to = peer(transfer.awaited());
    Tag& tag = tag_of(transfer);
    if (tag.first_queued == &transfer) {
      queue_from(to, tag, transfer.in_tag.next);
      if (tag.first_queued != nullptr) make_ready(to, tag);
    }
    if (transfer.awaited() == membership_.rank() && transfer.state.load() == State::waiting) {
      (void)matcher_.take_back(transfer.awaited(), transfer.tag, transfer.id_);
    }
  }
  transfer.line_->remove(transfer);
  stand_out(transfer);
}

/// Why a message that is not matched may be waiting for others; empty where it is not.
std::string Messages::held_back(const Transfer& transfer) {
  if (transfer.awaited() == kAnyRank || transfer.awaited() == membership_.rank()) return {};
  const Peer& other = peer(transfer.awaited());
  constexpr std::size_t kAlmostAll = kMaxUnmatchedBytes - kKeptBytes - kEagerBytes;
  if (!transfer.is_send()) {
    if (matcher_.kept_bytes(other.rank) < kAlmostAll) return {};
    return fmt::format(
        "messages of rank {} with other tags take {} bytes here, which is the most that may wait "
        "for their recv: receive those first",
        other.rank, kMaxUnmatchedBytes);
  }
  const bool is_queued = transfer.state.load() == State::queued;
  if (is_queued ? !has_room(other, kMaxUnmatchedBytes - kAlmostAll)
                : transfer.stream_ == &other.uncopied) {
    return fmt::format(
        "it was held back: messages of rank {} to rank {} take {} bytes, which is the most that "
        "may wait for their recv",
        membership_.rank(), other.rank, kMaxUnmatchedBytes);
  }
  if (!is_queued) return {};
  const Tag* const tag = other.tags.find(transfer.tag);
  if (tag == nullptr || tag->announced < kMaxUnmatchedPerTag) return {};
  return fmt::format("{} messages before it wait for a recv with this tag", tag->announced);
}

}  // namespace tutti::native
