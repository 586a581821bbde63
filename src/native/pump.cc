// How messages move: what is announced, matched, sent and received whenever a thread that holds the
// driver token steps.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <set>
#include <utility>

#include "kernels/kernels.h"
#include "native/channel/tcp.h"
#include "native/messages.h"

namespace tutti::native {

void Messages::take_in() noexcept {
  if (!inbox_full_.load()) return;
  PostedLine taken;
  {
    const std::lock_guard lock(inbox_mutex_);
    taken = std::exchange(inbox_, PostedLine{});
    inbox_full_.store(false);
  }
  while (taken.first != nullptr) {
    Transfer& transfer = transfer_of(*taken.first);
    taken.remove(transfer);
    place(transfer);
  }
}

/// Of one that was placed.
Messages::Tag& Messages::tag_of(const Transfer& send) noexcept {
  return *peer(send.awaited()).tags.find(send.tag);
}

void Messages::place(Transfer& transfer) noexcept {
  try {
    transfer.line_ = &(transfer.is_send() ? place_send(transfer) : matcher_.post(transfer));
  } catch (...) {
    unplaced_.append(transfer);
    transfer.line_ = &unplaced_;
    membership_.fail_with_thrown();
  }
}

PostedLine& Messages::place_send(Transfer& send) {
  Peer& to = peer(send.awaited());
  Tag& tag = to.tags.get(send.tag);
  tag.sends.append(send);
  if (tag.first_queued == nullptr) queue_from(to, tag, &send);
  make_ready(to, tag);
  if (send.is_buffered() && kKeptBytes + send.byte_count() <= kMaxUnmatchedBytes)
    stand_in(to.uncopied, send);
  return tag.sends;
}

/// `first` is to be announced next.
void Messages::queue_from(Peer& to, Tag& tag, Posted* first) noexcept {
  const auto is_plain = [](Posted* send) {
    return send != nullptr && !transfer_of(*send).is_buffered();
  };
  if (is_plain(tag.first_queued)) --to.plain_heads;
  tag.first_queued = first;
  if (is_plain(first)) ++to.plain_heads;
}

void Messages::pump() noexcept {
  guarded([&] {
    // What is kept came before what is about to be read.
    if (matcher_.has_unsettled_any()) matcher_.settle_any();
    for (Peer& each : peers_) advance(each);
    if (matcher_.has_unsettled_any()) matcher_.settle_any();
    if (has_summaries_) tell_all_summaries();
  });
}

void Messages::advance(Peer& each) {
  if (each.rank == membership_.rank()) {
    copy_buffered(each);
    announce_to_self(each);
    return matcher_.settle(each.rank);
  }
  read_frames(each);
  matcher_.settle(each.rank);
  if (!has_room(each, kMaxUnmatchedBytes / 2)) read_taken(each);
  // Content of which a part is out goes on whatever else has no room.
  const bool told = send_rest(each) && tell_notes(each);
  if (each.connection != nullptr) tell_summaries(each);
  if (send_content(each) && told) send_announcements(each);
  copy_buffered(each);
}

void Messages::read_frames(Peer& from) {
  Receiver& receiver = channels_.receiver(from.rank);
  while (const Frame* frame = receiver.peek()) {
    if (membership_.abort_word().load(std::memory_order_relaxed) != 0) return;
    switch (frame->header.type) {
      case FrameType::announce:
      case FrameType::envelope:
      case FrameType::buffered:
        matcher_.offer(from.rank, {frame->header, frame->payload.data()});
        break;
      case FrameType::match:
        on_match(from, frame->header);
        break;
      case FrameType::withdraw:
        on_withdraw(from, frame->header);
        break;
      case FrameType::recall:
      case FrameType::returned:
      case FrameType::taken:
      case FrameType::last:
      case FrameType::asks:
      case FrameType::read:
        on_word(from, frame->header);
        break;
      case FrameType::content:
        if (!on_content(from, *frame)) return;
        break;
      case FrameType::none:
      case FrameType::padding:
      case FrameType::segment:
        throw_broken(from.rank, fmt::format("sent a frame of type {} among its messages",
                                            static_cast<int>(frame->header.type)));
    }
    const bool has_moved = is_counted(frame->header.type);
    receiver.pop();
    if (has_moved) moved(from);
  }
}

bool Messages::take(int from, Posted& posted, const Offer& offer) {
  Transfer& receive = transfer_of(posted);
  const FrameHeader& header = offer.header;
  const bool is_own = from == membership_.rank();
  if (!agree(peer(from), receive, header) || !(is_own || claim(peer(from), header))) return false;
  if (!take_up(peer(from), receive, header)) return true;
  if (is_own) {
    take_own(receive, offer);
    return true;
  }
  receive.state.store(State::matched);
  kernels::copy(receive.data_, offer.payload, header.payload_bytes);
  if (header.type == FrameType::envelope || header.payload_bytes == receive.byte_count()) {
    complete(receive);
  } else {
    stand_in(peer(from).receiving, receive);
  }
  return true;
}

/// Tells the sender of a match, unless it is just taking messages back; see freeze. False: not now.
/// Nobody takes back what has ended: its sender need only know that there is room again.
bool Messages::claim(Peer& from, const FrameHeader& announced) {
  const auto& words = channels_.own_words(from.rank);
  if (announced.type == FrameType::buffered) {
    from.taken += Matcher::cost_of(announced);
    if (from.connection != nullptr) return has_summaries_ = true;
    words.taken->store(from.taken);
    moved(from);
    return true;
  }
  FrameHeader header;
  header.type = FrameType::match;
  header.id = announced.id;
  header.tag = announced.tag;
  header.what.count = Matcher::cost_of(announced);
  if (from.connection != nullptr) return try_send(from, header, nullptr);
  words.matching->store(1);
  const bool mine = channels_.words_of(from.rank).withdrawn->load() == from.withdrawals_read &&
                    try_send(from, header, nullptr);
  words.matching->store(0, std::memory_order_release);
  return mine;
}

/// The receive becomes that of one message. False: there is no room, and the group has failed.
bool Messages::take_up(Peer& from, Transfer& receive, const FrameHeader& header) {
  const Request& request = *receive.request_;
  if (request.message.make_room != nullptr && !make_room(receive, header.what.count)) return false;
  if (receive.awaited() == kAnyRank) receive.line_ = &matcher_.assign(receive, from.rank);
  receive.id_ = header.id;
  if (receive.match_ != nullptr) {
    *receive.match_ = {from.rank, receive.count_, header.id, receive.data_,
                       header.type != FrameType::envelope};
  } else if (request.message.matched != nullptr) {
    *request.message.matched = {from.rank, header.tag, request.dtype, receive.count_};
  }
  return true;
}

bool Messages::make_room(Transfer& receive, std::size_t count) {
  const Request& request = *receive.request_;
  try {
    receive.data_ = request.message.make_room(request.message.room_context, count);
    receive.count_ = count;
    return true;
  } catch (const std::exception& error) {
    membership_.fail({ErrorCode::kSystem,
                      fmt::format("rank {} has no room for a message of {} x {}: {}",
                                  membership_.rank(), count, name_of(request.dtype), error.what()),
                      {membership_.rank()},
                      {}});
    return false;
  }
}

namespace {

bool takes(const Request& receive, std::uint64_t count) {
  if (receive.message.make_room == nullptr) return count == receive.count;
  const std::size_t most = std::numeric_limits<std::ptrdiff_t>::max() / size_of(receive.dtype);
  return count <= most && count % receive.message.per_item == 0;
}

std::string taken_by(const Request& receive) {
  if (receive.message.make_room == nullptr) return std::to_string(receive.count);
  if (receive.message.per_item == 1) return "any count";
  return fmt::format("any multiple of {}", receive.message.per_item);
}

}  // namespace

/// What arrived fits the receive; if not, both ends must learn of it: the group fails.
bool Messages::agree(const Peer& from, const Transfer& receive, const FrameHeader& header) {
  const Request& request = *receive.request_;
  const bool same = header.what.dtype == static_cast<std::uint8_t>(request.dtype) &&
                    takes(request, header.what.count);
  const bool sound = (header.payload_bytes == 0 && header.type != FrameType::buffered) ||
                     header.payload_bytes == header.what.count * size_of(request.dtype);
  if (same && sound) return true;
  const auto at = [](const std::string& site) { return site.empty() ? site : " at " + site; };
  const auto dtype = static_cast<DType>(
      std::min<std::uint8_t>(header.what.dtype, static_cast<std::uint8_t>(kDTypeCount - 1)));
  const std::set<int> ends{from.rank, membership_.rank()};
  membership_.fail(
      {ErrorCode::kCollectiveMismatch,
       fmt::format("rank {} sent {} x {} with tag {} to rank {}{}, which receives {} x {}{}; make "
                   "both ends agree in dtype and count",
                   from.rank, name_of(dtype), header.what.count, header.tag, membership_.rank(),
                   at(membership_.site_of(from.rank, header.what.site)), name_of(request.dtype),
                   taken_by(request), at(name_of(request.where))),
       {ends.begin(), ends.end()},
       {}});
  return false;
}

void Messages::on_match(Peer& to, const FrameHeader& header) {
  Tag* const tag = to.tags.find(header.tag);
  if (tag == nullptr || tag->announced == 0 || header.what.count > to.announced_bytes) {
    throw_broken(to.rank, fmt::format("matched message {} with tag {}, which was not announced",
                                      header.id, header.tag));
  }
  --tag->announced;
  to.announced_bytes -= header.what.count;
  if (tag->first_queued != nullptr) make_ready(to, *tag);
  Posted* posted = tag->sends.first;
  while (posted != tag->first_queued && transfer_of(*posted).id_ != header.id) {
    posted = posted->in_tag.next;
  }
  if (posted == tag->first_queued) {
    throw_broken(to.rank, fmt::format("matched message {}, which has ended", header.id));
  }
  Transfer& send = transfer_of(*posted);
  tell_sender(send);
  if (send.is_recalled()) others_ended_ = true;  // who wants it back need wait no longer
  if (send.carried_ || has_envelope_only(send)) return complete(send);
  send.state.store(State::matched);
  stand_out(send);
  stand_in(to.sending, send);
}

/// False: the rest of the frame has yet to come.
bool Messages::on_content(Peer& from, const Frame& frame) {
  Transfer* receive = transfer_of(from.receiving.first);
  while (receive != nullptr && receive->id_ != frame.header.id) {
    receive = transfer_of(receive->in_stream.next);
  }
  const std::size_t byte_count = frame.header.payload_bytes;
  if (receive == nullptr || byte_count > receive->byte_count() - receive->moved_) {
    throw_broken(from.rank, fmt::format("sent {} bytes of message {} that nothing waits for",
                                        byte_count, frame.header.id));
  }
  std::byte* const target = static_cast<std::byte*>(receive->data_) + receive->moved_;
  if (channels_.receiver(from.rank).take_into(target) > 0) moved(from);
  if (!frame.is_taken()) return false;
  receive->moved_ += byte_count;
  if (receive->moved_ < receive->byte_count()) return true;
  stand_out(*receive);
  complete(*receive);
  return true;
}

void Messages::on_withdraw(Peer& from, const FrameHeader& header) {
  if (from.connection != nullptr || !matcher_.take_back(from.rank, header.tag, header.id)) {
    throw_broken(from.rank, fmt::format("took back message {}, which is not here", header.id));
  }
  ++from.withdrawals_read;
}

/// What words in shared memory tell otherwise.
void Messages::on_word(Peer& from, const FrameHeader& header) {
  if (from.connection == nullptr) {
    throw_broken(from.rank, fmt::format("sent a frame of type {} through shared memory",
                                        static_cast<int>(header.type)));
  }
  if (header.type == FrameType::recall) on_recall(from, header);
  if (header.type == FrameType::returned) on_returned(from, header);
  if (header.type == FrameType::taken) count_taken(from, header.what.count);
  if (header.type == FrameType::last) from.read_last = true;
  if (header.type == FrameType::asks) from.has_asked = true;
  if (header.type == FrameType::read && !from.connection->set_read(header.what.count)) {
    throw_broken(from.rank, fmt::format("has read {} frames, which were not sent or had been read "
                                        "before",
                                        header.what.count));
  }
}

/// Sends a frame of at most kWholeBytes. True: it is out, or will be without the caller.
bool Messages::try_send(Peer& to, const FrameHeader& header, const void* payload) {
  if (!send_rest(to)) return false;
  const Sent sent = channels_.sender(to.rank).try_send(header, payload);
  if (sent == Sent::nothing) return false;
  if (sent == Sent::part) {
    const auto* bytes = static_cast<const std::byte*>(payload);
    to.begun.assign(bytes, bytes + header.payload_bytes);
    to.begun_header = header;
    to.has_begun = true;
    owe();
  }
  if (is_counted(header.type)) moved(to);
  return true;
}

/// Of a small frame of which a part is out. False: there is no room.
bool Messages::send_rest(Peer& to) {
  if (!to.has_begun) return true;
  const Sent sent = channels_.sender(to.rank).try_send(to.begun_header, to.begun.data());
  if (sent != Sent::nothing && is_counted(to.begun_header.type)) moved(to);
  if (sent != Sent::whole) return false;
  to.has_begun = false;
  owed_.fetch_sub(1);
  return true;
}

/// Something has changed that the peer may wait for; what went over a connection wakes it there.
void Messages::moved(const Peer& other) noexcept {
  membership_.progressed();
  if (other.connection == nullptr) membership_.notify(other.rank);
}

bool Messages::send_content(Peer& to) {
  while (Transfer* const send = transfer_of(to.sending.first)) {
    FrameHeader header;
    header.type = FrameType::content;
    header.id = send->id_;
    while (send->moved_ < send->byte_count()) {
      const std::size_t byte_count =
          std::min(send->byte_count() - send->moved_, channels_.max_payload());
      header.payload_bytes = static_cast<std::uint32_t>(byte_count);
      const auto* data = static_cast<const std::byte*>(send->request_->input.data);
      const Sent sent = channels_.sender(to.rank).try_send(header, data + send->moved_);
      if (sent != Sent::nothing) moved(to);
      if (sent != Sent::whole) return false;
      send->moved_ += byte_count;
    }
    stand_out(*send);
    complete(*send);
  }
  return true;
}

// ---- announcing

/// Neither buffered nor to oneself.
bool Messages::has_envelope_only(const Transfer& send) const noexcept {
  return send.is_matched_only() && !send.is_buffered() && send.awaited() != membership_.rank();
}

void Messages::tell_sender(const Transfer& send) const noexcept {
  if (send.match_ == nullptr) return;
  *send.match_ = {send.awaited(), send.count_, send.id_, nullptr, !has_envelope_only(send)};
}

/// Where many are unmatched, or there is no room for its bytes, they stay here until they are asked
/// for.
FrameHeader Messages::announcement(const Peer& to, const Transfer& send, std::uint64_t id) const {
  const Request& request = *send.request_;
  FrameHeader header;
  header.tag = request.message.tag;
  header.id = id;
  header.what = control::description_of(request);
  header.what.site = membership_.site(request.where);
  header.type = has_envelope_only(send) ? FrameType::envelope : FrameType::announce;
  const bool carries = send.byte_count() <= eager_bytes_ && header.type != FrameType::envelope &&
                       (send.is_buffered() || (to.announced_bytes < kMaxUnmatchedBytes / 2 &&
                                               has_room(to, kKeptBytes + send.byte_count())));
  if (!carries) return header;
  if (send.is_buffered()) header.type = FrameType::buffered;
  header.payload_bytes = static_cast<std::uint32_t>(send.byte_count());
  return header;
}

/// What was buffered does not await that others of its tag are matched.
void Messages::make_ready(Peer& to, Tag& tag) noexcept {
  const bool is_full = tag.announced >= kMaxUnmatchedPerTag;
  if (is_full && !transfer_of(*tag.first_queued).is_buffered()) return;
  if (!tag.ready) push_ready(to, tag);
}

void Messages::push_ready(Peer& to, Tag& tag) noexcept {
  tag.ready = true;
  tag.next_ready = nullptr;
  (to.first_ready != nullptr ? to.last_ready->next_ready : to.first_ready) = &tag;
  to.last_ready = &tag;
}

Messages::Tag& Messages::pop_ready(Peer& to) noexcept {
  Tag& tag = *to.first_ready;
  to.first_ready = tag.next_ready;
  tag.ready = false;
  return tag;
}

/// One of each tag in turn. Copies have their room in the peer's table, and wait for nothing else;
/// what is not buffered may have room where what is has none.
void Messages::send_announcements(Peer& to) {
  const Tag* first_passed = nullptr;
  while (to.first_ready != nullptr && to.first_ready != first_passed) {
    Tag& tag = *to.first_ready;
    const Room room = tag.first_queued != nullptr ? announce(to, tag) : Room::is_there;
    const bool may_others = to.held > 0 || (to.plain_heads > 0 && has_room(to, kKeptBytes));
    if (room == Room::none_here || (room == Room::none_there && !may_others)) return;
    pop_ready(to);
    if (room == Room::none_there) {
      if (first_passed == nullptr) first_passed = &tag;
      push_ready(to, tag);
      continue;
    }
    first_passed = nullptr;
    if (tag.first_queued != nullptr) make_ready(to, tag);
  }
}

/// Where there is none: in the channel, or in the peer's table.
Messages::Room Messages::announce(Peer& to, Tag& tag) {
  Transfer& send = transfer_of(*tag.first_queued);
  const FrameHeader header = announcement(to, send, to.next_id);
  const std::size_t cost = Matcher::cost_of(header);
  const bool has_place =
      send.is_copy() || (send.is_buffered() ? has_room_for_buffered(to, cost) : has_room(to, cost));
  if (!has_place) return Room::none_there;
  if (!try_send(to, header, send.request_->input.data)) return Room::none_here;
  queue_from(to, tag, send.in_tag.next);
  to.announced_bytes += cost;
  send.id_ = to.next_id++;
  send.carried_ = header.type != FrameType::envelope && header.payload_bytes == send.byte_count();
  send.state.store(State::waiting);
  if (send.is_copy()) {
    to.copied_bytes -= cost;
    set_held(to, to.held - 1);
  }
  if (header.type != FrameType::buffered) {
    ++tag.announced;
    return Room::is_there;
  }
  stand_out(send);
  tell_sender(send);
  end(send);
  return Room::is_there;
}

// ---- messages to oneself: no channel, the same order

void Messages::announce_to_self(Peer& self) {
  while (self.first_ready != nullptr) {
    Tag& tag = pop_ready(self);
    while (tag.first_queued != nullptr) {
      Transfer& send = transfer_of(*tag.first_queued);
      queue_from(self, tag, send.in_tag.next);
      send.state.store(State::waiting);
      send.id_ = self.next_id++;
      matcher_.offer(self.rank, {announcement(self, send, send.id_), nullptr, &send});
    }
  }
}

void Messages::take_own(Transfer& receive, const Offer& offer) {
  Transfer* const send = transfer_of(offer.send);
  kernels::copy(receive.data_, send->request_->input.data, receive.byte_count());
  stand_out(*send);
  tell_sender(*send);
  complete(*send);
  complete(receive);
}

}  // namespace tutti::native
