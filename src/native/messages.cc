#include "native/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
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

/// Runs a part of the pump; what it throws is the end of the group.
template <class Part>
void guarded(control::Membership& membership, Part&& part) noexcept {
  try {
    part();
  } catch (const Error& error) {
    membership.fail({error.code(), error.what(), error.context().culprits, {}});
  } catch (const std::exception& error) {
    membership.fail({ErrorCode::kSystem,
                     fmt::format("rank {}, moving messages: {}", membership.rank(), error.what()),
                     {membership.rank()},
                     {}});
  }
}

}  // namespace

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
  for (int rank = 0; rank < membership.group_size(); ++rank) peer(rank).rank = rank;
}

Messages::~Messages() {
  for (Peer& each : peers_) {
    each.tags.each([&](Tag& tag) {
      while (tag.first_kept != nullptr) release(each, tag, nullptr, *tag.first_kept);
    });
  }
}

void Messages::run(const Request& request) {
  Transfer transfer(*this, request);
  membership_.enter(request);
  submit(transfer);
  StepPatience patience(membership_, request, transfer);
  for (;;) {
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
          membership_.throw_gave_up(request, transfer.held_back_);
        }
        break;
    }
  }
}

void Messages::submit(Transfer& transfer) {
  if (transfer.is_asynchronous()) pending_.fetch_add(1);
  if (token_.try_take()) {
    own_ = &transfer;
    take_in();
    place(transfer);
    pump();
    return give_token();
  }
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.append(transfer);
    inbox_full_.store(true);
  }
  drive(&transfer);
}

void Messages::drive(const Transfer* own) noexcept {
  if (!token_.try_take()) return;
  own_ = own;
  take_in();
  pump();
  give_token();
}

/// The holder never blocks, so this is short.
void Messages::take_token(const Transfer* own) noexcept {
  while (!token_.try_take()) std::this_thread::yield();
  own_ = own;
}

void Messages::give_token() noexcept {
  own_ = nullptr;
  const bool wake = std::exchange(others_ended_, false);
  const bool refused = token_.give();
  if (wake) crowd_.wake_done();
  if (wake || refused) membership_.notify(membership_.rank());
}

// ---- taking back

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
         transfer.state_.load() == State::waiting;
}

/// The pair is frozen.
void Messages::take_back_announced(Peer& to, Transfer& send) {
  Tag& tag = tag_of(send);
  --tag.announced;
  to.announced_bytes -= kKeptBytes + (send.carried_ ? send.byte_count() : 0);
  ++to.withdrawals;
  to.withdrawn.push_back({send.id_, tag.tag});
  untold_.fetch_add(1);
  forget(send);
  if (tag.first_queued != nullptr) make_ready(to, tag);
}

/// A pair is *frozen* while its sender takes messages back: the receiver matches none of them.
/// Each end writes a word of its own and then reads the other's, so that at least one of them sees
/// the other and lets go: the sender adds to `withdrawn` and looks whether the receiver is
/// `matching`; the receiver says that it is matching and looks whether it has read as many
/// withdrawals as there are (`claim`). Neither waits. Once frozen, every match that was made has
/// been told, and is read here. False: a match is being made; try again.
bool Messages::freeze(Peer& to) {
  channels_.own_words(to.rank).withdrawn.store(to.withdrawals + 1);
  if (channels_.words_of(to.rank).matching.load() != 0) {
    thaw(to);
    return false;
  }
  guarded(membership_, [&] { read_frames(to); });
  return true;
}

void Messages::thaw(Peer& to) noexcept {
  channels_.own_words(to.rank).withdrawn.store(to.withdrawals);
  guarded(membership_, [&] { tell_withdrawals(to); });
  membership_.notify(to.rank);  // which may have something to match
}

bool Messages::tell_withdrawals(Peer& to) {
  FrameHeader header;
  header.type = FrameType::withdraw;
  for (; to.told_withdrawals < to.withdrawn.size(); ++to.told_withdrawals) {
    header.id = to.withdrawn[to.told_withdrawals].id;
    header.tag = to.withdrawn[to.told_withdrawals].tag;
    if (!try_send(to, header, nullptr)) return false;
    untold_.fetch_sub(1);
  }
  to.withdrawn.clear();
  to.told_withdrawals = 0;
  return true;
}

/// Takes a transfer that has not ended out of everything that points to it.
void Messages::forget(Transfer& transfer) noexcept {
  Tag& tag = tag_of(transfer);
  if (tag.first_queued == &transfer) tag.first_queued = transfer.in_tag_.next;
  (transfer.is_send() ? tag.sends : tag.receives).remove(transfer);
  if (!transfer.in_stream_line_) return;
  Peer& other = peer(transfer.awaited());
  (transfer.is_send() ? other.sending : other.receiving).remove(transfer);
}

/// Why a message that is not matched may be waiting for others; empty where it is not.
std::string Messages::held_back(const Transfer& transfer) {
  if (transfer.awaited() == kAnyRank || transfer.awaited() == membership_.rank()) return {};
  const Peer& other = peer(transfer.awaited());
  constexpr std::size_t kAlmostAll = kMaxUnmatchedBytes - kKeptBytes - kEagerBytes;
  if (!transfer.is_send()) {
    if (other.kept_bytes < kAlmostAll) return {};
    return fmt::format(
        "messages of rank {} with other tags take {} bytes here, which is the most that may wait "
        "for their recv: receive those first",
        other.rank, kMaxUnmatchedBytes);
  }
  if (transfer.state_.load() != State::queued) return {};
  if (other.announced_bytes >= kAlmostAll) {
    return fmt::format(
        "it was held back: messages of rank {} to rank {} take {} bytes there, which is the most "
        "that may wait for their recv",
        membership_.rank(), other.rank, kMaxUnmatchedBytes);
  }
  const Tag* const tag = other.tags.find(transfer.request_->tag);
  if (tag == nullptr || tag->announced < kMaxUnmatchedPerTag) return {};
  return fmt::format("{} messages before it wait for a recv with this tag", tag->announced);
}

// ---- asynchronous transfers

template <class Visit>
void Messages::visit_tag(const Tag& tag, Visit&& visit) {
  for (const Line* line : {&tag.sends, &tag.receives}) {
    Transfer* next = nullptr;
    for (Transfer* transfer = line->first; transfer != nullptr; transfer = next) {
      next = transfer->in_tag_.next;
      if (transfer->is_asynchronous()) visit(*transfer);
    }
  }
}

template <class Visit>
void Messages::visit_pending(Visit&& visit) {
  for (const Peer& each : peers_) each.tags.each([&](const Tag& tag) { visit_tag(tag, visit); });
  any_.each([&](const Tag& tag) { visit_tag(tag, visit); });
}

void Messages::ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) noexcept {
  if (!token_.try_take()) {
    *next = std::min(*next, now + std::chrono::milliseconds(1));
    return;
  }
  take_in();
  std::vector<int> to_freeze;
  visit_pending([&](Transfer& transfer) {
    if (now < transfer.next_look_) {
      *next = std::min(*next, transfer.next_look_);
      return;
    }
    auto wanted = Deadline::Clock::time_point::max();
    transfer.clock_.matched = transfer.matched();
    const Patience::Verdict verdict =
        membership_.ask(*transfer.request_, transfer.awaited(), transfer.clock_, now, &wanted);
    transfer.next_look_ = wanted;
    *next = std::min(*next, wanted);
    if (verdict == Patience::Verdict::keep_waiting || transfer.matched()) return;
    if (is_announced(transfer)) {
      to_freeze.push_back(transfer.awaited());
      return;
    }
    transfer.held_back_ = held_back(transfer);
    forget(transfer);
    give_up(transfer);
  });
  std::sort(to_freeze.begin(), to_freeze.end());
  to_freeze.erase(std::unique(to_freeze.begin(), to_freeze.end()), to_freeze.end());
  for (const int rank : to_freeze) {
    if (!give_up_announced(peer(rank), now)) {
      *next = std::min(*next, now + std::chrono::milliseconds(1));
    }
  }
  // With thousands under way looking takes long: it must not be all that is done.
  *next = std::max(*next, now + 10 * (Deadline::Clock::now() - now));
  give_token();
}

bool Messages::give_up_announced(Peer& to, Deadline::Clock::time_point now) noexcept {
  if (!freeze(to)) return false;
  to.tags.each([&](const Tag& tag) {
    visit_tag(tag, [&](Transfer& transfer) {
      if (!is_announced(transfer) || !transfer.clock_.arrive.expired(now)) return;
      take_back_announced(to, transfer);
      give_up(transfer);
    });
  });
  thaw(to);
  return true;
}

/// Ends what is in no line any more.
void Messages::give_up(Transfer& transfer) noexcept {
  try {
    membership_.throw_gave_up(*transfer.request_, transfer.held_back_);
  } catch (const Error& error) {
    fail(transfer, error);
  }
}

void Messages::fail(Transfer& transfer, const Error& failure) noexcept {
  pending_.fetch_sub(1);
  others_ended_ = true;
  transfer.on_failure(failure);
}

void Messages::fail_pending() noexcept {
  take_token();
  take_in();
  visit_pending([&](Transfer& transfer) {
    forget(transfer);
    fail(transfer, membership_.error(transfer.request_));
  });
  give_token();
}

// ---- the pump, with the token held

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
  const std::int32_t tag = transfer.request_->tag;
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
    unsettled_any_.push_back(tag.tag);
  } else if (tag.first_kept != nullptr || transfer.awaited() == membership_.rank()) {
    unsettle(peer(transfer.awaited()), tag);
  }
}

void Messages::pump() noexcept {
  guarded(membership_, [&] {
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

/// Receives from any rank take what came first.
void Messages::settle_any() {
  for (const std::int32_t number : unsettled_any_) {
    for (bool matched = true; matched;) {
      Peer* from = nullptr;
      Tag* oldest = nullptr;
      for (Peer& each : peers_) {
        Tag* const tag = each.tags.find(number);
        if (tag == nullptr) continue;
        if (each.rank == membership_.rank()) unsettle(each, *tag);
        if (tag->first_kept == nullptr || each.rank == membership_.rank()) continue;
        if (oldest != nullptr && oldest->first_kept->order < tag->first_kept->order) continue;
        from = &each;
        oldest = tag;
      }
      matched = oldest != nullptr && match_oldest(*from, *oldest);
      if (oldest != nullptr && !matched) unsettle(*from, *oldest);
    }
  }
  unsettled_any_.clear();
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
  if (request.make_room != nullptr && !make_room(receive, header.what.count)) return false;
  if (receive.awaited() == kAnyRank) {
    tag_of(receive).receives.remove(receive);
    receive.peer_.store(from.rank);
    Line& line = from.tags.find(header.tag)->receives;
    Transfer* after = line.last;
    while (after != nullptr && after->order_ > receive.order_) after = after->in_tag_.previous;
    line.insert_after(after, receive);
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
  const Request& shown = request.called();
  const auto at = [](const std::string& site) { return site.empty() ? site : " at " + site; };
  const auto dtype = static_cast<DType>(
      std::min<std::uint8_t>(header.what.dtype, static_cast<std::uint8_t>(kDTypeCount - 1)));
  membership_.fail(
      {ErrorCode::kCollectiveMismatch,
       fmt::format("rank {} sent {} x {} with tag {} to rank {}{}, which receives {} x {}{}; make "
                   "both ends agree in dtype and count",
                   from.rank, name_of(dtype), header.what.count, header.tag, membership_.rank(),
                   at(membership_.site_of(from.rank, header.what.site)), name_of(request.dtype),
                   request.make_room != nullptr ? "any count" : std::to_string(request.count),
                   at(name_of(shown.where))),
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

/// Where many are unmatched, their bytes stay here until they are asked for.
FrameHeader Messages::announcement(const Peer& to, const Transfer& send, std::uint64_t id) const {
  const Request& request = *send.request_;
  FrameHeader header;
  header.type = has_envelope_only(send) ? FrameType::envelope : FrameType::announce;
  header.tag = request.tag;
  header.id = id;
  header.what = describe(request);
  header.what.site = membership_.site(request.called().where);
  const bool carries = send.byte_count() <= eager_bytes_ &&
                       (request.buffered || to.announced_bytes < kMaxUnmatchedBytes / 2);
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
  if (send.request_->buffered && send.carried_) {
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
      const bool eager = send->request_->buffered && send->byte_count() <= eager_bytes_;
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

// ---- ends

/// Ends `transfer`, and younger ones of its tag that waited for it, unless an older one is under
/// way.
void Messages::complete(Line& line, Transfer& transfer) {
  transfer.state_.store(State::complete);
  while (line.first != nullptr && line.first->state_.load() == State::complete) {
    end(line, *line.first);
  }
}

void Messages::end(Line& line, Transfer& transfer) noexcept {
  line.remove(transfer);
  if (&transfer != own_) others_ended_ = true;
  if (transfer.is_asynchronous()) pending_.fetch_sub(1);
  transfer.on_end();
}

}  // namespace tutti::native
