// How a message that nothing has matched is taken back: by its sender or receiver, because its time
// has passed, or by Work::cancel.
//
// A receive is of its own rank alone, and so is a send that was not announced. One that was
// announced may be matched by its receiver at any time.
//
// Ends that share memory *freeze* the pair, so that neither waits for the other; see freeze.
//
// Over a connection the receiver alone decides. The sender *recalls* the message, by a frame behind
// its announcement, and it stays what it is. The receiver reads that after the announcement: either
// it has the message in its table still, throws it away and says that it is *returned*; or it has
// matched it, then the match is on its way already, and it says nothing. So each recall is answered
// by one frame, a match or a return, and the sender does as that says: the send goes on, or ends. A
// message is recalled once, whoever wants it back, and its id is never used again. The receiver
// answers although its program computes, since its progress thread listens. If it does not, the
// group fails after the time in which something must move, as when it does not receive what it has
// matched. What was buffered is not copied while it is recalled: a copy has ended at its sender.
#include <fmt/format.h>

#include <thread>
#include <utility>

#include "native/channel/tcp.h"
#include "native/helping.h"
#include "native/messages.h"

namespace tutti::native {

bool Messages::withdraw(Transfer& transfer, bool by_force) {
  take_token(&transfer);
  take_in();
  const bool mine = !transfer.ended() && (by_force || take_back(transfer, nullptr));
  if (mine && by_force) forget(transfer);
  give_token();
  return mine;
}

bool Messages::cancel(Transfer& transfer, const Error& failure) {
  take_token();
  take_in();
  bool mine = false;
  // A match of another message is over in no time, unless its rank is stopped there.
  const auto goes_on = [&] { return !mine && !transfer.matched() && !transfer.is_recalled(); };
  for (int tries = 0; tries < 1000 && goes_on(); ++tries) {
    if (tries > 0 && membership_.abort_word().load() != 0) break;
    if (tries > 0) std::this_thread::yield();
    mine = take_back(transfer, &failure);
  }
  if (mine) fail(transfer, failure);
  const bool is_asked = !mine && transfer.is_recalled();
  give_token();
  return is_asked ? await_answer(transfer) : mine;
}

/// Whether it was returned.
bool Messages::await_answer(Transfer& transfer) {
  help(*this, membership_, Deadline::Clock::time_point::max(), [&] { return transfer.matched(); });
  return transfer.was_returned();
}

/// Withdraws what nobody has matched. False: too late, or not now, or its peer is asked; `failure`
/// is what an asynchronous one ends with if it is returned.
bool Messages::take_back(Transfer& transfer, const Error* failure) {
  if (transfer.matched()) return false;
  transfer.held_back_ = held_back(transfer);
  if (!is_announced(transfer)) {
    forget(transfer);
    return true;
  }
  Peer& to = peer(transfer.awaited());
  if (to.connection != nullptr) {
    recall(to, transfer, failure != nullptr ? std::make_unique<Error>(*failure) : nullptr);
    return false;
  }
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
  give_back_place(to, tag, send);
  ++to.withdrawals;
  note(to, FrameType::withdraw, send.id_, tag.tag);
  forget(send);
  if (tag.first_queued != nullptr) make_ready(to, tag);
}

/// In the peer's table.
void Messages::give_back_place(Peer& to, Tag& tag, const Transfer& send) noexcept {
  --tag.announced;
  to.announced_bytes -= kKeptBytes + (send.carried_ ? send.byte_count() : 0);
}

/// One that was announced, over a connection.
void Messages::recall(Peer& to, Transfer& send, std::unique_ptr<Error> failure) {
  if (send.recall_.load() != Transfer::Recall::none) return;
  note(to, FrameType::recall, send.id_, send.tag);
  send.failure_ = std::move(failure);
  send.recall_.store(Transfer::Recall::asked);
  guarded([&] { tell_notes(to); });
}

void Messages::on_recall(Peer& from, const FrameHeader& header) {
  if (!matcher_.take_back(from.rank, header.tag, header.id)) return;  // the match is under way
  note(from, FrameType::returned, header.id, header.tag);
}

void Messages::on_returned(Peer& to, const FrameHeader& header) {
  Tag* const tag = to.tags.find(header.tag);
  Posted* posted = tag != nullptr ? tag->sends.first : nullptr;
  const auto is_it = [&](Posted& each) {
    return transfer_of(each).id_ == header.id && transfer_of(each).is_recalled();
  };
  while (posted != nullptr && !is_it(*posted)) posted = posted->in_tag.next;
  if (posted == nullptr) {
    throw_broken(to.rank, fmt::format("gave back message {}, which was not recalled", header.id));
  }
  Transfer& send = transfer_of(*posted);
  give_back_place(to, *tag, send);
  forget(send);
  end_completed(tag->sends);  // a younger one may have been matched before this was heard
  if (tag->first_queued != nullptr) make_ready(to, *tag);
  send.recall_.store(Transfer::Recall::returned);
  if (send.is_asynchronous()) {
    const std::unique_ptr<Error> failure = std::move(send.failure_);
    return fail(send, *failure);
  }
  if (&send != own_) others_ended_ = true;
  send.set_ended();
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
  guarded([&] { tell_notes(to); });
  membership_.notify(to.rank);  // which may have something to match
}

void Messages::note(Peer& to, FrameType type, std::uint64_t id, std::int32_t tag) {
  to.notes.push_back({type, id, tag});
  owe();
}

bool Messages::tell_notes(Peer& to) {
  FrameHeader header;
  for (; to.told_notes < to.notes.size(); ++to.told_notes) {
    const Note& each = to.notes[to.told_notes];
    header.type = each.type;
    header.id = each.id;
    header.tag = each.tag;
    if (!try_send(to, header, nullptr)) return false;
    owed_.fetch_sub(1);
  }
  to.notes.clear();
  to.told_notes = 0;
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
  if (!transfer.is_send() || transfer.line_ == &unplaced_) return;
  const Peer& to = peer(transfer.awaited());
  // It may be what has found no room, and the next frame, which would say so, may never be.
  if (to.connection != nullptr && !has_to_send(to)) to.connection->set_owes(false);
}

/// Whether something waits for room on its way to the peer, or may.
bool Messages::has_to_send(const Peer& to) const noexcept {
  const bool has_words = !to.notes.empty() || to.owes[kTaken] || to.owes[kLast];
  const bool has_queued = to.plain_heads > 0 || to.held > 0 || to.uncopied.first != nullptr;
  return to.has_begun || has_words || has_queued || to.sending.first != nullptr ||
         matcher_.has_unsettled(to.rank);
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
