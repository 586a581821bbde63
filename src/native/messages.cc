#include "native/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "kernels/kernels.h"

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

// ---- lines

void Messages::Line::append(Transfer& transfer) noexcept {
  transfer.previous_ = last;
  transfer.next_ = nullptr;
  (last != nullptr ? last->next_ : first) = &transfer;
  last = &transfer;
}

void Messages::Line::insert(Transfer& transfer) noexcept {
  Transfer* after = last;
  while (after != nullptr && after->order_ > transfer.order_) after = after->previous_;
  transfer.previous_ = after;
  transfer.next_ = after != nullptr ? after->next_ : first;
  (after != nullptr ? after->next_ : first) = &transfer;
  (transfer.next_ != nullptr ? transfer.next_->previous_ : last) = &transfer;
}

void Messages::Line::remove(Transfer& transfer) noexcept {
  (transfer.previous_ != nullptr ? transfer.previous_->next_ : first) = transfer.next_;
  (transfer.next_ != nullptr ? transfer.next_->previous_ : last) = transfer.previous_;
}

// ---- calls

bool Transfer::step() {
  if (ended()) return true;
  messages_.drive(this);
  return ended();
}

Messages::Messages(Channels& channels, control::Membership& membership)
    : channels_(channels),
      membership_(membership),
      eager_bytes_(std::min(kEagerBytes, channels.max_payload())),
      peers_(static_cast<std::size_t>(membership.group_size())) {
  for (int rank = 0; rank < membership.group_size(); ++rank) {
    peer(rank).rank = rank;
    peer(rank).unmatched.reserve(kMaxUnmatchedPerTag);
    peer(rank).matches.reserve(kMaxUnmatchedPerTag);
  }
}

void Messages::run(const Request& request) {
  Transfer transfer(*this, request);
  membership_.enter(request);
  submit(transfer);
  for (;;) {
    StepPatience patience(membership_, request, transfer);
    switch (wait_among(
        crowd_, membership_.waiter(), patience, [&] { return transfer.step(); },
        [&] { return transfer.ended(); })) {
      case WaitResult::ready:
        return membership_.leave(request);
      case WaitResult::aborted:
        if (withdraw(transfer, true)) membership_.throw_cause(request);
        break;
      case WaitResult::gave_up:
        if (withdraw(transfer, false)) {
          membership_.leave(request);
          membership_.throw_gave_up(request);
        }
        break;
    }
  }
}

void Messages::submit(Transfer& transfer) {
  if (transfer.is_asynchronous()) pending_.fetch_add(1);
  if (token_.try_take()) {
    take_in();
    place(transfer);
    pump(&transfer);
    return give_token();
  }
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.append(transfer);
    inbox_full_.store(true);
  }
  drive(&transfer);
}

void Messages::drive(const Transfer* own) {
  if (!token_.try_take()) return;
  take_in();
  pump(own);
  give_token();
}

/// The holder never blocks, so this is short.
void Messages::take_token() noexcept {
  while (!token_.try_take()) std::this_thread::yield();
}

void Messages::give_token() noexcept {
  const bool wake = std::exchange(others_ended_, false);
  const bool refused = token_.give();
  if (wake) crowd_.wake_done();
  if (wake || refused) membership_.notify(membership_.rank());
}

bool Messages::withdraw(Transfer& transfer, bool by_force) {
  take_token();
  take_in();
  const bool mine = !transfer.ended() && (by_force || transfer.state_.load() < State::matched);
  if (mine) forget(transfer);
  give_token();
  return mine;
}

Messages::Line& Messages::line_of(Transfer& transfer) noexcept {
  if (transfer.awaited() == kAnyRank) return receives_from_any_;
  Peer& other = peer(transfer.awaited());
  return transfer.is_send() ? other.sends : other.receives;
}

/// Takes a transfer that has not ended out of everything that points to it.
void Messages::forget(Transfer& transfer) noexcept {
  line_of(transfer).remove(transfer);
  if (transfer.awaited() == kAnyRank) return;
  Peer& to = peer(transfer.awaited());
  const State state = transfer.state_.load();
  if (state == State::queued) --to.queued_sends;
  if (transfer.is_send() && state == State::matched) --to.streaming_sends;
  for (Match& match : to.matches) {
    if (match.filled == &transfer) match.filled = nullptr;
  }
}

// ---- asynchronous transfers

template <class Visit>
void Messages::visit_pending(Visit&& visit) {
  const auto visit_line = [&](const Line& line) {
    Transfer* next = nullptr;
    for (Transfer* transfer = line.first; transfer != nullptr; transfer = next) {
      next = transfer->next_;
      if (transfer->is_asynchronous()) visit(*transfer);
    }
  };
  for (const Peer& each : peers_) {
    visit_line(each.sends);
    visit_line(each.receives);
  }
  visit_line(receives_from_any_);
}

void Messages::ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) noexcept {
  if (!token_.try_take()) {
    *next = std::min(*next, now + std::chrono::milliseconds(1));
    return;
  }
  take_in();
  visit_pending([&](Transfer& transfer) {
    auto wanted = Deadline::Clock::time_point::max();
    transfer.clock_.matched = transfer.matched();
    const Patience::Verdict verdict =
        membership_.ask(*transfer.request_, transfer.awaited(), transfer.clock_, now, &wanted);
    *next = std::min(*next, wanted);
    if (verdict == Patience::Verdict::keep_waiting || transfer.is_send() || transfer.matched()) {
      return;
    }
    forget(transfer);
    pending_.fetch_sub(1);
    others_ended_ = true;
    try {
      membership_.throw_gave_up(*transfer.request_);
    } catch (const Error& error) {
      transfer.on_failure(error);
    }
  });
  give_token();
}

void Messages::fail_pending() noexcept {
  take_token();
  take_in();
  visit_pending([&](Transfer& transfer) {
    forget(transfer);
    pending_.fetch_sub(1);
    others_ended_ = true;
    transfer.on_failure(membership_.error(transfer.request_));
  });
  give_token();
}

// ---- the pump, with the token held

void Messages::take_in() {
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

void Messages::place(Transfer& transfer) {
  transfer.order_ = next_order_++;
  line_of(transfer).append(transfer);
  if (transfer.is_send()) {
    ++peer(transfer.awaited()).queued_sends;
  } else {
    transfer.state_.store(State::waiting);
    post(transfer);
  }
}

void Messages::pump(const Transfer* own) noexcept {
  own_ = own;
  try {
    for (Peer& each : peers_) {
      if (each.rank == membership_.rank()) {
        meet_self(each);
        continue;
      }
      read_frames(each);
      if (tell_matches(each) && send_content(each)) send_announcements(each);
    }
  } catch (const Error& error) {
    membership_.fail({error.code(), error.what(), error.context().culprits, {}});
  }
  own_ = nullptr;
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
        on_match(from, frame->header.id);
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
  if (Transfer* receive = find_receive(from, frame.header.tag)) {
    return match(from, *receive, frame.header, frame.payload.data());
  }
  keep(from, frame.header, frame.payload.data());
}

/// The oldest receive that takes a message of `from` with this tag.
Transfer* Messages::find_receive(Peer& from, std::int32_t tag) const noexcept {
  Transfer* oldest = nullptr;
  for (const Line* line : {&std::as_const(from.receives), &receives_from_any_}) {
    Transfer* each = line->first;
    while (each != nullptr &&
           (each->state_.load() != State::waiting || each->request_->tag != tag)) {
      each = each->next_;
    }
    if (each != nullptr && (oldest == nullptr || each->order_ < oldest->order_)) oldest = each;
  }
  return oldest;
}

/// Looks for the oldest message for `receive` that has arrived already.
void Messages::post(Transfer& receive) {
  Peer* from = nullptr;
  Unexpected* oldest = nullptr;
  Unexpected* before_oldest = nullptr;
  for (Peer& each : peers_) {
    if (each.rank == membership_.rank()) continue;  // see meet_self
    if (receive.awaited() != kAnyRank && receive.awaited() != each.rank) continue;
    Unexpected* before = nullptr;
    Unexpected* entry = each.first_unexpected;
    while (entry != nullptr && entry->header.tag != receive.request_->tag) {
      before = std::exchange(entry, entry->next);
    }
    if (entry == nullptr || (oldest != nullptr && oldest->order < entry->order)) continue;
    from = &each;
    oldest = entry;
    before_oldest = before;
  }
  if (oldest == nullptr) return;
  match(*from, receive, oldest->header, oldest->payload);
  release(*from, before_oldest, *oldest);
}

void Messages::match(Peer& from, Transfer& receive, const FrameHeader& header,
                     const std::byte* payload) {
  if (!take_up(from, receive, header)) return;
  receive.state_.store(State::matched);
  const bool is_whole =
      header.type == FrameType::envelope || header.payload_bytes == receive.byte_count();
  from.matches.push_back({header.id, is_whole ? &receive : nullptr});
  kernels::copy(receive.data_, payload, header.payload_bytes);
}

/// The receive becomes that of one message. False: they do not agree, and the group has failed.
bool Messages::take_up(Peer& from, Transfer& receive, const FrameHeader& header) {
  if (!agree(from, receive, header)) return false;
  const Request& request = *receive.request_;
  if (request.make_room != nullptr && !make_room(receive, header.what.count)) return false;
  if (receive.awaited() == kAnyRank) {
    receives_from_any_.remove(receive);
    receive.peer_.store(from.rank);
    from.receives.insert(receive);
  }
  receive.id_ = header.id;
  if (request.matched != nullptr) {
    *request.matched = {from.rank,      header.tag, request.dtype,
                        receive.count_, header.id,  header.type != FrameType::envelope};
  }
  return true;
}

bool Messages::make_room(Transfer& receive, std::size_t count) {
  const Request& request = *receive.request_;
  try {
    receive.data_ = request.make_room(request.room_context, count);
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

/// A message of the side group that is neither buffered nor to oneself.
bool Messages::has_envelope_only(const Transfer& send) const noexcept {
  const bool is_eager = send.request_->buffered && send.byte_count() <= eager_bytes_;
  return send.request_->stands_for != nullptr && !is_eager && send.awaited() != membership_.rank();
}

void Messages::tell_sender(const Transfer& send) const noexcept {
  const Request& request = *send.request_;
  if (request.matched == nullptr) return;
  *request.matched = {send.awaited(), request.tag, request.dtype,
                      send.count_,    send.id_,    !has_envelope_only(send)};
}

/// What arrived fits the receive; if not, both ends must learn of it: the group fails.
bool Messages::agree(const Peer& from, const Transfer& receive, const FrameHeader& header) {
  const Request& request = *receive.request_;
  const std::size_t most = std::numeric_limits<std::ptrdiff_t>::max() / size_of(request.dtype);
  const bool same = header.what.dtype == static_cast<std::uint8_t>(request.dtype) &&
                    (request.make_room != nullptr ? header.what.count <= most
                                                  : header.what.count == request.count);
  const bool sound = header.payload_bytes == 0 ||
                     header.payload_bytes == header.what.count * size_of(request.dtype);
  if (same && sound) return true;
  const auto dtype = static_cast<DType>(
      std::min<std::uint8_t>(header.what.dtype, static_cast<std::uint8_t>(kDTypeCount - 1)));
  membership_.fail(
      {ErrorCode::kCollectiveMismatch,
       fmt::format("rank {} sent {} x {} with tag {} to rank {}, which receives {} x {} at {}; "
                   "make both ends agree in dtype and count",
                   from.rank, name_of(dtype), header.what.count, header.tag, membership_.rank(),
                   name_of(request.dtype), request.count, name_of(request.where)),
       {from.rank},
       {}});
  return false;
}

void Messages::on_match(Peer& to, std::uint64_t id) {
  const auto known = std::find_if(to.unmatched.begin(), to.unmatched.end(),
                                  [&](const Unmatched& each) { return each.id == id; });
  if (known == to.unmatched.end()) {
    throw_broken(to.rank, fmt::format("matched message {}, which was not announced to it", id));
  }
  to.unmatched.erase(known);
  for (Transfer* send = to.sends.first; send != nullptr; send = send->next_) {
    if (send->id_ != id) continue;
    tell_sender(*send);
    if (send->byte_count() <= eager_bytes_ || has_envelope_only(*send)) {
      return complete(to.sends, *send);
    }
    send->state_.store(State::matched);
    ++to.streaming_sends;
    return;
  }
}

void Messages::on_content(Peer& from, const Frame& frame) {
  Transfer* receive = from.receives.first;
  while (receive != nullptr &&
         (receive->id_ != frame.header.id || receive->state_.load() != State::matched)) {
    receive = receive->next_;
  }
  if (receive == nullptr || frame.payload.size() > receive->byte_count() - receive->moved_) {
    throw_broken(from.rank, fmt::format("sent {} bytes of message {} that nothing waits for",
                                        frame.payload.size(), frame.header.id));
  }
  std::memcpy(static_cast<std::byte*>(receive->data_) + receive->moved_, frame.payload.data(),
              frame.payload.size());
  receive->moved_ += frame.payload.size();
  if (receive->moved_ == receive->byte_count()) complete(from.receives, *receive);
}

bool Messages::try_send(Peer& to, const FrameHeader& header, const void* payload) {
  if (!channels_.sender(to.rank).try_send(header, payload)) return false;
  membership_.progressed();
  membership_.notify(to.rank);
  return true;
}

/// A receive ends only when its sender has been told: nobody may move our transfers afterwards.
bool Messages::tell_matches(Peer& to) {
  FrameHeader header;
  header.type = FrameType::match;
  for (; to.told_matches < to.matches.size(); ++to.told_matches) {
    const Match& match = to.matches[to.told_matches];
    header.id = match.id;
    if (!try_send(to, header, nullptr)) return false;
    if (match.filled != nullptr) complete(to.receives, *match.filled);
  }
  to.matches.clear();
  to.told_matches = 0;
  return true;
}

bool Messages::send_content(Peer& to) {
  Transfer* next = nullptr;
  for (Transfer* send = to.sends.first; send != nullptr && to.streaming_sends > 0; send = next) {
    next = send->next_;
    if (send->state_.load() != State::matched) continue;
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
    --to.streaming_sends;
    complete(to.sends, *send);
    next = to.sends.first;  // the line may have lost more than one
  }
  return true;
}

bool Messages::may_announce(const Peer& to, std::int32_t tag) const noexcept {
  if (to.unmatched.size() < kMaxUnmatchedPerTag) return true;
  const auto same = std::count_if(to.unmatched.begin(), to.unmatched.end(),
                                  [&](const Unmatched& each) { return each.tag == tag; });
  return static_cast<std::size_t>(same) < kMaxUnmatchedPerTag;
}

FrameHeader Messages::announcement(Transfer& send, std::uint64_t id) const {
  FrameHeader header;
  header.type = FrameType::announce;
  header.tag = send.request_->tag;
  header.id = id;
  header.what = describe(*send.request_);
  if (has_envelope_only(send)) {
    header.type = FrameType::envelope;
    return header;
  }
  const std::size_t byte_count = send.byte_count();
  header.payload_bytes = byte_count <= eager_bytes_ ? static_cast<std::uint32_t>(byte_count) : 0;
  return header;
}

void Messages::send_announcements(Peer& to) {
  Transfer* next = nullptr;
  for (Transfer* send = to.sends.first; send != nullptr && to.queued_sends > 0; send = next) {
    next = send->next_;
    if (send->state_.load() != State::queued) continue;
    if (to.unmatched.size() >= kMaxUnmatched) return;
    if (!may_announce(to, send->request_->tag)) continue;
    const FrameHeader header = announcement(*send, to.next_id);
    if (!try_send(to, header, send->request_->input.data)) return;
    --to.queued_sends;
    send->id_ = to.next_id++;
    send->state_.store(State::waiting);
    to.unmatched.push_back({send->id_, send->request_->tag});
    if (send->request_->buffered && send->byte_count() <= eager_bytes_) {
      tell_sender(*send);
      end(to.sends, *send);
    }
  }
}

// ---- messages to oneself: no channel, the same order

void Messages::announce_to_self(Peer& self) {
  Transfer* next = nullptr;
  for (Transfer* send = self.sends.first; send != nullptr && self.queued_sends > 0; send = next) {
    next = send->next_;
    if (send->state_.load() != State::queued) continue;
    --self.queued_sends;
    send->state_.store(State::waiting);
    send->id_ = self.next_id++;
    const bool eager = send->byte_count() <= eager_bytes_;
    if (!send->request_->buffered || !eager || self.unexpected_count >= kMaxUnmatched) continue;
    keep(self, announcement(*send, send->id_),
         static_cast<const std::byte*>(send->request_->input.data));
    tell_sender(*send);
    end(self.sends, *send);
  }
}

void Messages::meet_self(Peer& self) {
  announce_to_self(self);
  if (self.sends.first == nullptr && self.first_unexpected == nullptr) return;
  for (Line* line : {&self.receives, &receives_from_any_}) {
    Transfer* next = nullptr;
    for (Transfer* receive = line->first; receive != nullptr; receive = next) {
      next = receive->next_;
      if (receive->state_.load() != State::waiting) continue;
      // The oldest of its tag first, from whichever line.
      Transfer* const oldest = find_receive(self, receive->request_->tag);
      if (oldest != nullptr && meet_oldest(self, *oldest))
        next = line->first;  // lines have changed
    }
  }
}

Transfer* Messages::find_self_send(Peer& self, std::int32_t tag) const noexcept {
  Transfer* send = self.sends.first;
  while (send != nullptr && (send->state_.load() != State::waiting || send->request_->tag != tag)) {
    send = send->next_;
  }
  return send;
}

/// Matches `receive` with the oldest message of its tag, kept or waiting.
bool Messages::meet_oldest(Peer& self, Transfer& receive) {
  const std::int32_t tag = receive.request_->tag;
  Unexpected* before = nullptr;
  Unexpected* entry = self.first_unexpected;
  while (entry != nullptr && entry->header.tag != tag) before = std::exchange(entry, entry->next);
  Transfer* const send = find_self_send(self, tag);
  if (send == nullptr && entry == nullptr) return false;
  const bool kept = send == nullptr || (entry != nullptr && entry->header.id < send->id_);
  const FrameHeader header = kept ? entry->header : announcement(*send, send->id_);
  if (!take_up(self, receive, header)) return false;
  kernels::copy(receive.data_,
                kept ? static_cast<const void*>(entry->payload) : send->request_->input.data,
                receive.byte_count());
  if (kept) {
    release(self, before, *entry);
  } else {
    tell_sender(*send);
    complete(self.sends, *send);
  }
  complete(self.receives, receive);
  return true;
}

// ---- the table

void Messages::keep(Peer& from, const FrameHeader& header, const std::byte* payload) {
  if (from.unexpected_count >= kMaxUnmatched || header.payload_bytes > kEagerBytes) {
    throw_broken(from.rank,
                 fmt::format("announced message {} of {} bytes after {} unmatched ones, which is "
                             "more than it may",
                             header.id, header.payload_bytes, from.unexpected_count));
  }
  if (free_ == nullptr) {
    table_.push_back(std::make_unique<Unexpected>());
    free_ = table_.back().get();
  }
  Unexpected* entry = std::exchange(free_, free_->next);
  entry->header = header;
  entry->order = next_order_++;
  entry->next = nullptr;
  if (header.payload_bytes > 0) std::memcpy(entry->payload, payload, header.payload_bytes);
  Unexpected*& end =
      from.first_unexpected == nullptr ? from.first_unexpected : from.last_unexpected->next;
  end = entry;
  from.last_unexpected = entry;
  ++from.unexpected_count;
}

void Messages::release(Peer& from, Unexpected* before, Unexpected& entry) noexcept {
  (before != nullptr ? before->next : from.first_unexpected) = entry.next;
  if (from.last_unexpected == &entry) from.last_unexpected = before;
  --from.unexpected_count;
  entry.next = std::exchange(free_, &entry);
}

// ---- ends

/// Ends `transfer`, and younger ones of its tag that waited for it, unless an older one is under
/// way.
void Messages::complete(Line& line, Transfer& transfer) {
  transfer.state_.store(State::complete);
  const std::int32_t tag = transfer.request_->tag;
  Transfer* next = nullptr;
  for (Transfer* each = line.first; each != nullptr; each = next) {
    next = each->next_;
    if (each->request_->tag != tag) continue;
    if (each->state_.load() != State::complete) return;
    end(line, *each);
  }
}

void Messages::end(Line& line, Transfer& transfer) noexcept {
  line.remove(transfer);
  if (&transfer != own_) others_ended_ = true;
  if (transfer.is_asynchronous()) pending_.fetch_sub(1);
  transfer.on_end();
}

}  // namespace tutti::native
