// Buffered sends: each ends at once, so what cannot be announced with all its bytes is copied.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <new>

#include "control/judge/clock.h"
#include "native/channel/tcp.h"
#include "native/messages.h"

namespace tutti::native {

namespace {

/// A request for which nobody waits, with bytes of its own.
struct OwnRequest {
  explicit OwnRequest(const Request& of) : request(of) {
    const std::size_t byte_count = of.count * size_of(of.dtype);
    bytes = std::make_unique_for_overwrite<std::byte[]>(byte_count);
    if (byte_count > 0) std::memcpy(bytes.get(), of.input.data, byte_count);
    request.input.data = bytes.get();
    request.keep_alive.reset();
    request.observer = nullptr;
  }
  Request request;
  std::unique_ptr<std::byte[]> bytes;
};

}  // namespace

/// The message of a buffered send, which takes the place of that in its line.
class Messages::Copy final : private OwnRequest, public Transfer {
 public:
  Copy(Messages& messages, const Transfer& send)
      : OwnRequest(*send.request_), Transfer(messages, OwnRequest::request, nullptr) {
    state.store(send.state.load());
    id_ = send.id_;
    line_ = send.line_;
  }

 private:
  void on_end() noexcept override { messages_.let_go(*this); }
  bool is_copy() const noexcept override { return true; }
};

/// Nobody has received what is left, or the group has failed.
Messages::~Messages() {
  for (Peer& to : peers_) {
    to.tags.each([&](Tag& tag) {
      while (tag.sends.first != nullptr) end(transfer_of(*tag.sends.first));
    });
  }
}

/// For what is kept here or in the peer's table. A copy has its room there from the start.
bool Messages::has_room(const Peer& to, std::size_t byte_count) noexcept {
  return to.announced_bytes + to.copied_bytes + byte_count <= kMaxUnmatchedBytes;
}

/// What is buffered behind a plain send must not take the room for its announcement.
bool Messages::has_room_for_buffered(const Peer& to, std::size_t byte_count) noexcept {
  return has_room(to, byte_count + kKeptBytes * to.plain_heads);
}

/// As far as there is room: the first ones, and that for which the calling thread waits.
void Messages::copy_buffered(Peer& to) {
  if (to.uncopied.first == nullptr) return;
  if (to.rank != membership_.rank()) read_taken(to);
  constexpr int kMostPassed = 64;
  int passed = 0;
  for (Posted *each = to.uncopied.first, *next = nullptr; each != nullptr; each = next) {
    next = each->in_stream.next;
    if (!copy(to, transfer_of(*each)) && ++passed == kMostPassed) break;
  }
  if (own_ != nullptr && own_->stream_ == &to.uncopied) copy(to, *own_);
}

/// False: there is no room.
bool Messages::copy(Peer& to, Transfer& send) {
  const bool is_own = to.rank == membership_.rank();
  if (send.recall_.load() != Transfer::Recall::none) return false;  // it may be returned
  // Of one that is announced its place in the table has been counted, but for the own one's.
  const bool is_queued = send.state.load() == State::queued;
  const std::size_t cost = send.byte_count() + (is_queued || is_own ? kKeptBytes : 0);
  if (!has_room_for_buffered(to, cost)) return false;
  Copy& made = make_copy(send);
  Tag& tag = tag_of(send);
  tag.sends.insert_after(&send, made);
  if (tag.first_queued == &send) queue_from(to, tag, &made);
  to.copied_bytes += cost;
  if (is_own && !is_queued) matcher_.replace(to.rank, send, made);
  if (!is_own) owe();
  if (!is_own && is_queued) set_held(to, to.held + 1);
  stand_out(send);
  tell_sender(send);
  end(send);
  return true;
}

Messages::Copy& Messages::make_copy(const Transfer& send) {
  try {
    return *new Copy(*this, send);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kSystem,
                fmt::format("no memory for a copy of a buffered message of {} bytes to rank {}; "
                            "receive it earlier, or send it unbuffered",
                            send.byte_count(), send.awaited()));
  }
}

void Messages::let_go(Copy& copy) noexcept {
  Peer& to = peer(copy.awaited());
  if (to.rank == membership_.rank()) {
    to.copied_bytes -= kKeptBytes + copy.byte_count();
  } else {
    if (!copy.carried_) to.copied_bytes -= copy.byte_count();
    owed_.fetch_sub(1);
  }
  delete &copy;
}

void Messages::owe() noexcept {
  if (owed_.fetch_add(1) == 0) came_to_owe_.store(true);
}

/// What this rank has sent is there before this says that nothing more comes.
void Messages::set_held(Peer& to, std::uint64_t held) noexcept {
  to.held = held;
  if (to.rank == membership_.rank() || to.connection != nullptr) return;
  channels_.own_words(to.rank).held->store(held);
}

/// Buffered messages that have been matched since take no room any more.
void Messages::read_taken(Peer& to) {
  if (to.connection == nullptr) count_taken(to, channels_.words_of(to.rank).taken->load());
}

void Messages::count_taken(Peer& to, std::uint64_t taken) {
  if (taken - to.taken_read > to.announced_bytes) {
    throw_broken(to.rank, "matched buffered messages that were not announced");
  }
  to.announced_bytes -= taken - to.taken_read;
  to.taken_read = taken;
}

/// Whether something may come to this receive although its sender may have left by now: what lies
/// here until there is room to tell the sender of the match, or what the sender has held so far.
bool Messages::more_comes(const Transfer& transfer) noexcept {
  if (transfer.is_send()) return false;
  if (matcher_.keeps_for(transfer)) return true;
  const int from = transfer.awaited();
  for (const Peer& each : peers_) {
    if (each.rank == membership_.rank() || (from != kAnyRank && from != each.rank)) continue;
    if (each.connection != nullptr) continue;  // see is_in_flight
    if (channels_.words_of(each.rank).held->load() > 0) return true;
  }
  return false;
}

/// Whether something may come to this transfer over a connection that was sent before its peer
/// left: that is told on other ways, and may be told sooner. A connection that is not there is
/// asked for: then it comes, and the last frame, unless there is nobody who would give it. All of
/// them are asked for at once.
bool Messages::is_in_flight(const Transfer& transfer, Deadline::Clock::time_point now) {
  const int from = transfer.awaited();
  bool is_in_flight = false;
  for (Peer& each : peers_) {
    TcpConnection* const connection = each.connection;
    if (connection == nullptr || (from != kAnyRank && from != each.rank)) continue;
    if (each.read_last || connection->end()) continue;
    const bool is_there = connection->socket_to_send() >= 0;
    if (each.wanted == Deadline::Clock::time_point{}) each.wanted = now;
    if (is_there || now < each.wanted + control::kAnswerComes) is_in_flight = true;
  }
  return is_in_flight;
}

/// What the peer is told of all messages is told once for many.
void Messages::tell_all_summaries() {
  has_summaries_ = false;
  for (Peer& each : peers_)
    if (each.connection != nullptr) tell_summaries(each);
}

void Messages::tell_summaries(Peer& to) {
  TcpConnection& connection = *to.connection;
  if (to.taken != to.taken_told && tell(to, kTaken, to.taken)) to.taken_told = to.taken;
  if (connection.has_to_ask() && tell(to, kAsks, 0)) connection.has_asked();
  if (to.has_asked) to.has_asked = !tell(to, kRead, connection.received());
  if (to.told_last || !closing_.load() || to.held > 0 || !connection.is_open()) return;
  to.told_last = tell(to, kLast, 0);
}

/// What has no room is owed.
bool Messages::tell(Peer& to, Summary summary, std::uint64_t count) {
  FrameHeader header;
  header.type = kSummaries[summary];
  header.what.count = count;
  const bool told = to.connection->end() || try_send(to, header, nullptr);
  if (told == to.owes[summary]) {
    to.owes[summary] = !told;
    told ? static_cast<void>(owed_.fetch_sub(1)) : owe();
  }
  return told;
}

void Messages::stand_in(PostedStreams& stream, Transfer& transfer) noexcept {
  stream.append(transfer);
  transfer.stream_ = &stream;
}

void Messages::stand_out(Transfer& transfer) noexcept {
  if (transfer.stream_ != nullptr) transfer.stream_->remove(transfer);
  transfer.stream_ = nullptr;
}

}  // namespace tutti::native
