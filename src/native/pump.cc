// How messages move: what is announced, matched, sent and received whenever a thread that holds the
// driver token steps.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "kernels/kernels.h"
#include "native/messages.h"

namespace tutti::native {

namespace {

/// What only a bug can cause, ours or that of somebody who writes to our memory.
[[noreturn]] void throw_broken(int peer, const std::string& what) {
  ErrorContext context;
  context.culprits = {peer};
  throw Error(ErrorCode::kInternal, fmt::format("rank {} {}. Please report this", peer, what),
              std::move(context));
}

}  // namespace

void Messages::take_in() noexcept {
  if (!inbox_full_.load()) return;
  Line taken;
  {
    const std::lock_guard lock(inbox_mutex_);
    taken = std::exchange(inbox_, Line{});
    inbox_full_.store(false);
  }
  while (Transfer* transfer = taken.first) {
    taken.remove(*transfer);
    place(*transfer);
  }
}

Messages::Tag& Messages::tag_of(Transfer& transfer) noexcept {
  const std::int32_t tag = transfer.request_->message.tag;
  return transfer.awaited() == kAnyRank ? any_.get(tag) : peer(transfer.awaited()).tags.get(tag);
}

void Messages::place(Transfer& transfer) noexcept {
  transfer.order_ = next_order_++;
  Tag& tag = tag_of(transfer);
  if (transfer.is_send()) {
    tag.sends.append(transfer);
    if (tag.first_queued == nullptr) tag.first_queued = &transfer;
    return make_ready(peer(transfer.awaited()), tag);
  }
  tag.receives.append(transfer);
  transfer.state_.store(State::waiting);
  if (transfer.awaited() == kAnyRank) {
    if (!std::exchange(tag.unsettled, true)) unsettled_any_.push_back(&tag);
  } else if (tag.first_kept != nullptr || transfer.awaited() == membership_.rank()) {
    unsettle(peer(transfer.awaited()), tag);
  }
}

void Messages::pump() noexcept {
  guarded([&] {
    for (Peer& each : peers_) advance(each);
    if (!unsettled_any_.empty()) settle_any();
  });
}

void Messages::advance(Peer& each) {
  if (each.rank == membership_.rank()) {
    announce_to_self(each);
    return settle(each);
  }
  read_frames(each);
  settle(each);
  if (tell_withdrawals(each) && send_content(each)) send_announcements(each);
}

void Messages::read_frames(Peer& from) {
  Receiver& receiver = channels_.receiver(from.rank);
  while (const Frame* frame = receiver.peek()) {
    if (membership_.abort_word().load(std::memory_order_relaxed) != 0) return;
    switch (frame->header.type) {
      case FrameType::announce:
      case FrameType::envelope:
        on_announce(from, *frame);
        break;
      case FrameType::match:
        on_match(from, frame->header);
        break;
      case FrameType::withdraw:
        on_withdraw(from, frame->header);
        break;
      case FrameType::content:
        on_content(from, *frame);
        break;
      case FrameType::none:
      case FrameType::padding:
      case FrameType::segment:
        throw_broken(from.rank, fmt::format("sent a frame of type {} among its messages",
                                            static_cast<int>(frame->header.type)));
    }
    receiver.pop();
    membership_.progressed();
    membership_.notify(from.rank);
  }
}

void Messages::on_announce(Peer& from, const Frame& frame) {
  Tag& tag = from.tags.get(frame.header.tag);
  Transfer* const receive = find_receive(tag);
  if (receive != nullptr && tag.first_kept == nullptr &&
      match(from, *receive, frame.header, frame.payload.data())) {
    return;
  }
  keep(from, tag, frame.header, frame.payload.data());
  if (receive != nullptr) unsettle(from, tag);
}

/// The oldest receive that takes a message of this peer and tag.
Transfer* Messages::find_receive(const Tag& tag) const noexcept {
  Transfer* own = tag.receives.first;
  while (own != nullptr && own->state_.load() != State::waiting) own = own->in_tag_.next;
  const Tag* const of_any = any_.find(tag.tag);
  Transfer* const any = of_any != nullptr ? of_any->receives.first : nullptr;
  if (own == nullptr || any == nullptr) return own != nullptr ? own : any;
  return own->order_ < any->order_ ? own : any;
}

void Messages::unsettle(Peer& each, Tag& tag) {
  if (std::exchange(tag.unsettled, true)) return;
  each.unsettled.push_back(&tag);
}

/// Matches kept messages with the receives that wait for them, as far as that goes now.
void Messages::settle(Peer& each) {
  std::size_t left = 0;
  for (std::size_t i = 0; i < each.unsettled.size(); ++i) {
    Tag& tag = *each.unsettled[i];
    while (match_oldest(each, tag)) {
    }
    const bool more = tag.first_kept != nullptr && find_receive(tag) != nullptr;
    tag.unsettled = more;
    if (more) each.unsettled[left++] = &tag;
  }
  each.unsettled.resize(left);
}

/// False: there is nothing to match, or it cannot be done now.
bool Messages::match_oldest(Peer& from, Tag& tag) {
  if (from.rank == membership_.rank()) return meet_self(from, tag);
  Kept* const kept = tag.first_kept;
  Transfer* const receive = kept != nullptr ? find_receive(tag) : nullptr;
  if (receive == nullptr || !match(from, *receive, kept->header, kept->payload())) return false;
  release(from, tag, nullptr, *kept);
  return true;
}

/// Receives from any rank take what came first. A tag stays listed while the oldest message cannot
/// be matched now: others behind it wait for the same receives.
void Messages::settle_any() {
  std::size_t left = 0;
  for (std::size_t i = 0; i < unsettled_any_.size(); ++i) {
    Tag& of_any = *unsettled_any_[i];
    Tag* oldest = nullptr;
    for (bool matched = true; matched;) {
      Peer* from = nullptr;
      oldest = nullptr;
      for (Peer& each : peers_) {
        Tag* const tag = each.tags.find(of_any.tag);
        if (tag == nullptr) continue;
        if (each.rank == membership_.rank()) unsettle(each, *tag);
        if (tag->first_kept == nullptr || each.rank == membership_.rank()) continue;
        if (oldest != nullptr && oldest->first_kept->order < tag->first_kept->order) continue;
        from = &each;
        oldest = tag;
      }
      matched = oldest != nullptr && match_oldest(*from, *oldest);
    }
    of_any.unsettled = oldest != nullptr && of_any.receives.first != nullptr;
    if (of_any.unsettled) unsettled_any_[left++] = &of_any;
  }
  unsettled_any_.resize(left);
  settle(peer(membership_.rank()));
}

/// False: not now, or they do not agree and the group has failed.
bool Messages::match(Peer& from, Transfer& receive, const FrameHeader& header,
                     const std::byte* payload) {
  if (!agree(from, receive, header) || !claim(from, header)) return false;
  if (!take_up(from, receive, header)) return true;
  receive.state_.store(State::matched);
  kernels::copy(receive.data_, payload, header.payload_bytes);
  if (header.type == FrameType::envelope || header.payload_bytes == receive.byte_count()) {
    complete(tag_of(receive).receives, receive);
  } else {
    from.receiving.append(receive);
    receive.in_stream_line_ = true;
  }
  return true;
}

/// Tells the sender of a match, unless it is just taking messages back; see freeze. False: not now.
bool Messages::claim(Peer& from, const FrameHeader& announced) {
  FrameHeader header;
  header.type = FrameType::match;
  header.id = announced.id;
  header.tag = announced.tag;
  header.what.count = cost_of(announced);
  std::atomic<std::uint64_t>& matching = channels_.own_words(from.rank).matching;
  matching.store(1);
  const bool mine = channels_.words_of(from.rank).withdrawn.load() == from.withdrawals_read &&
                    try_send(from, header, nullptr);
  matching.store(0, std::memory_order_release);
  return mine;
}

/// The receive becomes that of one message. False: there is no room, and the group has failed.
bool Messages::take_up(Peer& from, Transfer& receive, const FrameHeader& header) {
  const Request& request = *receive.request_;
  if (request.message.make_room != nullptr && !make_room(receive, header.what.count)) return false;
  if (receive.awaited() == kAnyRank) {
    tag_of(receive).receives.remove(receive);
    receive.peer_.store(from.rank);
    Line& line = from.tags.find(header.tag)->receives;
    Transfer* after = line.last;
    while (after != nullptr && after->order_ > receive.order_) after = after->in_tag_.previous;
    line.insert_after(after, receive);
  }
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

/// What arrived fits the receive; if not, both ends must learn of it: the group fails.
bool Messages::agree(const Peer& from, const Transfer& receive, const FrameHeader& header) {
  const Request& request = *receive.request_;
  const std::size_t most = std::numeric_limits<std::ptrdiff_t>::max() / size_of(request.dtype);
  const bool same = header.what.dtype == static_cast<std::uint8_t>(request.dtype) &&
                    (request.message.make_room != nullptr ? header.what.count <= most
                                                          : header.what.count == request.count);
  const bool sound = header.payload_bytes == 0 ||
                     header.payload_bytes == header.what.count * size_of(request.dtype);
  if (same && sound) return true;
  const auto at = [](const std::string& site) { return site.empty() ? site : " at " + site; };
  const auto dtype = static_cast<DType>(
      std::min<std::uint8_t>(header.what.dtype, static_cast<std::uint8_t>(kDTypeCount - 1)));
  membership_.fail(
      {ErrorCode::kCollectiveMismatch,
       fmt::format(
           "rank {} sent {} x {} with tag {} to rank {}{}, which receives {} x {}{}; make "
           "both ends agree in dtype and count",
           from.rank, name_of(dtype), header.what.count, header.tag, membership_.rank(),
           at(membership_.site_of(from.rank, header.what.site)), name_of(request.dtype),
           request.message.make_room != nullptr ? "any count" : std::to_string(request.count),
           at(name_of(request.where))),
       {from.rank},
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
  Transfer* send = tag->sends.first;
  while (send != tag->first_queued && send->id_ != header.id) send = send->in_tag_.next;
  if (send == tag->first_queued) return;  // buffered: it has ended
  tell_sender(*send);
  if (send->carried_ || has_envelope_only(*send)) return complete(tag->sends, *send);
  send->state_.store(State::matched);
  to.sending.append(*send);
  send->in_stream_line_ = true;
}

void Messages::on_content(Peer& from, const Frame& frame) {
  Transfer* receive = from.receiving.first;
  while (receive != nullptr && receive->id_ != frame.header.id) receive = receive->in_stream_.next;
  if (receive == nullptr || frame.payload.size() > receive->byte_count() - receive->moved_) {
    throw_broken(from.rank, fmt::format("sent {} bytes of message {} that nothing waits for",
                                        frame.payload.size(), frame.header.id));
  }
  std::memcpy(static_cast<std::byte*>(receive->data_) + receive->moved_, frame.payload.data(),
              frame.payload.size());
  receive->moved_ += frame.payload.size();
  if (receive->moved_ < receive->byte_count()) return;
  from.receiving.remove(*receive);
  receive->in_stream_line_ = false;
  complete(tag_of(*receive).receives, *receive);
}

void Messages::on_withdraw(Peer& from, const FrameHeader& header) {
  Tag* const tag = from.tags.find(header.tag);
  Kept* before = nullptr;
  Kept* kept = tag != nullptr ? tag->first_kept : nullptr;
  while (kept != nullptr && kept->header.id != header.id) before = std::exchange(kept, kept->next);
  if (kept == nullptr) {
    throw_broken(from.rank, fmt::format("took back message {}, which is not here", header.id));
  }
  release(from, *tag, before, *kept);
  ++from.withdrawals_read;
}

bool Messages::try_send(Peer& to, const FrameHeader& header, const void* payload) {
  if (!channels_.sender(to.rank).try_send(header, payload)) return false;
  membership_.progressed();
  membership_.notify(to.rank);
  return true;
}

bool Messages::send_content(Peer& to) {
  while (Transfer* const send = to.sending.first) {
    FrameHeader header;
    header.type = FrameType::content;
    header.id = send->id_;
    while (send->moved_ < send->byte_count()) {
      const std::size_t byte_count =
          std::min(send->byte_count() - send->moved_, channels_.max_payload());
      header.payload_bytes = static_cast<std::uint32_t>(byte_count);
      const auto* data = static_cast<const std::byte*>(send->request_->input.data);
      if (!try_send(to, header, data + send->moved_)) return false;
      send->moved_ += byte_count;
    }
    to.sending.remove(*send);
    send->in_stream_line_ = false;
    complete(tag_of(*send).sends, *send);
  }
  return true;
}

// ---- announcing

/// Neither buffered nor to oneself.
bool Messages::has_envelope_only(const Transfer& send) const noexcept {
  const bool is_eager = send.request_->message.buffered && send.byte_count() <= eager_bytes_;
  return send.is_matched_only() && !is_eager && send.awaited() != membership_.rank();
}

void Messages::tell_sender(const Transfer& send) const noexcept {
  if (send.match_ == nullptr) return;
  *send.match_ = {send.awaited(), send.count_, send.id_, nullptr, !has_envelope_only(send)};
}

/// Where many are unmatched, their bytes stay here until they are asked for.
FrameHeader Messages::announcement(const Peer& to, const Transfer& send, std::uint64_t id) const {
  const Request& request = *send.request_;
  FrameHeader header;
  header.type = has_envelope_only(send) ? FrameType::envelope : FrameType::announce;
  header.tag = request.message.tag;
  header.id = id;
  header.what = describe(request);
  header.what.site = membership_.site(request.where);
  const bool carries = send.byte_count() <= eager_bytes_ &&
                       (request.message.buffered || to.announced_bytes < kMaxUnmatchedBytes / 2);
  if (header.type == FrameType::announce && carries) {
    header.payload_bytes = static_cast<std::uint32_t>(send.byte_count());
  }
  return header;
}

void Messages::make_ready(Peer& to, Tag& tag) {
  if (tag.announced >= kMaxUnmatchedPerTag || std::exchange(tag.ready, true)) return;
  to.ready.push_back(&tag);
}

/// One of each tag in turn.
void Messages::send_announcements(Peer& to) {
  while (!to.ready.empty()) {
    Tag& tag = *to.ready.front();
    if (tag.first_queued != nullptr && !announce(to, tag)) return;
    to.ready.pop_front();
    tag.ready = false;
    if (tag.first_queued != nullptr) make_ready(to, tag);
  }
}

/// False: there is no room, here or there.
bool Messages::announce(Peer& to, Tag& tag) {
  Transfer& send = *tag.first_queued;
  const FrameHeader header = announcement(to, send, to.next_id);
  if (to.announced_bytes + cost_of(header) > kMaxUnmatchedBytes) return false;
  if (!try_send(to, header, send.request_->input.data)) return false;
  tag.first_queued = send.in_tag_.next;
  ++tag.announced;
  to.announced_bytes += cost_of(header);
  send.id_ = to.next_id++;
  send.carried_ = header.type == FrameType::announce && header.payload_bytes == send.byte_count();
  send.state_.store(State::waiting);
  if (send.request_->message.buffered && send.carried_) {
    tell_sender(send);
    end(tag.sends, send);
  }
  return true;
}

// ---- messages to oneself: no channel, the same order

void Messages::announce_to_self(Peer& self) {
  while (!self.ready.empty()) {
    Tag& tag = *self.ready.front();
    self.ready.pop_front();
    tag.ready = false;
    while (Transfer* const send = tag.first_queued) {
      tag.first_queued = send->in_tag_.next;
      send->state_.store(State::waiting);
      send->id_ = self.next_id++;
      const FrameHeader header = announcement(self, *send, send->id_);
      const bool eager = send->request_->message.buffered && send->byte_count() <= eager_bytes_;
      if (!eager || self.kept_bytes + cost_of(header) > kMaxUnmatchedBytes) continue;
      keep(self, tag, header, static_cast<const std::byte*>(send->request_->input.data));
      tell_sender(*send);
      end(tag.sends, *send);
    }
    unsettle(self, tag);
  }
}

/// Matches the oldest receive with the oldest message of its tag, kept or waiting.
bool Messages::meet_self(Peer& self, Tag& tag) {
  Transfer* const receive = find_receive(tag);
  Kept* const first = tag.first_kept;
  Transfer* const send = tag.sends.first;
  if (receive == nullptr || (send == nullptr && first == nullptr)) return false;
  const bool kept = send == nullptr || (first != nullptr && first->header.id < send->id_);
  const FrameHeader header = kept ? first->header : announcement(self, *send, send->id_);
  if (!agree(self, *receive, header) || !take_up(self, *receive, header)) return false;
  kernels::copy(receive->data_,
                kept ? static_cast<const void*>(first->payload()) : send->request_->input.data,
                receive->byte_count());
  if (kept) {
    release(self, tag, nullptr, *first);
  } else {
    tell_sender(*send);
    complete(tag.sends, *send);
  }
  complete(tag.receives, *receive);
  return true;
}

// ---- the table

void Messages::keep(Peer& from, Tag& tag, const FrameHeader& header, const std::byte* payload) {
  if (from.kept_bytes + cost_of(header) > kMaxUnmatchedBytes ||
      header.payload_bytes > kEagerBytes) {
    throw_broken(from.rank,
                 fmt::format("announced message {} of {} bytes where {} bytes are unmatched, which "
                             "is more than it may",
                             header.id, header.payload_bytes, from.kept_bytes));
  }
  Kept* const kept =
      new (::operator new (sizeof(Kept) + header.payload_bytes, std::align_val_t{alignof(Kept)}))
          Kept;
  kept->header = header;
  kept->order = next_order_++;
  if (header.payload_bytes > 0) std::memcpy(kept->payload(), payload, header.payload_bytes);
  (tag.first_kept == nullptr ? tag.first_kept : tag.last_kept->next) = kept;
  tag.last_kept = kept;
  from.kept_bytes += cost_of(header);
}

void Messages::release(Peer& from, Tag& tag, Kept* before, Kept& kept) noexcept {
  (before != nullptr ? before->next : tag.first_kept) = kept.next;
  if (tag.last_kept == &kept) tag.last_kept = before;
  from.kept_bytes -= cost_of(kept.header);
  ::operator delete (&kept, std::align_val_t{alignof(Kept)});
}

}  // namespace tutti::native
