// send and recv of one rank in one group.
//
// A sender *announces* a message: what it is, with its bytes if they are few (*eager*). The
// receiver *matches* it with a receive or keeps it in a bounded table until there is one (which
// with which: matcher.h); a match goes back as a frame, and the *content* of a large message
// follows it. So the channels always drain: an announcement has its place in the table, a match is
// made only where its frame has room, and content has a posted buffer. That is why no tag ever
// blocks another, and why one channel per pair is enough.
//
// A sender may take back (*withdraw*) what nobody has matched. It *freezes* the pair for that: see
// Messages::freeze.
//
// A *buffered* send ends at once: when its message was announced with all its bytes, else when it
// was copied. It needs nothing of its receiver, nor that of it: who takes a message that has ended
// adds to a counter, and copies go out when there is room.
//
// Where the ends share no memory frames tell what counters do elsewhere, and what has no room is
// *owed*. Nobody waits for the peer to read while that waits for this rank: a frame is read whether
// or not anything can be sent, since what follows from it is owed at worst, or is a match, which is
// made only where its frame has room. So of two full streams each is read by its receiver's driver,
// and has room then; and a rank has a driver as long as its group stands.
//
// A message of another backend has an envelope only: both ends learn of their match, its content
// moves elsewhere.
//
// A *transfer* is one send or receive under way. Transfers of a peer, tag and direction stand in a
// *line* in submission order and end in that order, but for buffered sends. Whoever holds the
// driver token moves all transfers of the rank, not only its own.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/crowd.h"
#include "base/of_rank.h"
#include "group/side.h"
#include "native/channels.h"
#include "native/driver_token.h"
#include "native/matcher.h"
#include "native/operation.h"
#include "native/posted.h"
#include "native/tags.h"

namespace tutti::native {

class Messages;

/// One send or receive. On the stack of a blocking call; asynchronous ones derive from it.
class Transfer : public Operation, public Posted {
 public:
  /// With a `match` it is matched only; its content moves elsewhere, unless it is buffered or to
  /// oneself, and the request stays on the board.
  Transfer(Messages& messages, const Request& request, group::Match* match) noexcept
      : Posted(request.message.peer, request.message.tag),
        messages_(messages),
        request_(&request),
        match_(match),
        count_(request.count),
        data_(request.output.data) {}
  bool step() override;
  int awaited() const noexcept override { return peer; }
  bool matched() const noexcept override { return state.load() >= State::matched; }
  bool ended() const noexcept { return state.load() == State::ended; }
  /// Its peer was asked for it, and has not said yet whether it has matched it; has given it back.
  bool is_recalled() const noexcept { return recall_.load() == Recall::asked && !matched(); }
  bool was_returned() const noexcept { return recall_.load() == Recall::returned; }

 protected:
  /// Ended well. The last thing that is done to a transfer, which may be gone when this returns.
  virtual void on_end() noexcept { set_ended(); }
  /// Asynchronous ones: removed from their line because of a failure; the last thing as well.
  virtual void on_failure(const Error&) noexcept {}
  virtual bool is_asynchronous() const noexcept { return false; }
  void set_ended() noexcept { state.store(State::ended); }
  bool is_matched_only() const noexcept { return match_ != nullptr; }

 private:
  friend class Messages;
  enum class Recall : std::uint8_t { none, asked, returned };
  bool is_send() const noexcept { return request_->op == Op::send; }
  bool is_buffered() const noexcept { return request_->message.buffered; }
  virtual bool is_copy() const noexcept { return false; }
  std::size_t byte_count() const noexcept { return count_ * size_of(request_->dtype); }

  Messages& messages_;
  const Request* request_;
  PostedLine* line_ = nullptr;  // in which it stands, from when it was placed until it has ended
  group::Match* const match_;
  std::string held_back_;  // what kept it from being matched, once it was withdrawn
  std::size_t count_;      // of a receive of any count: once matched
  void* data_;             // of a receive: where it goes
  std::uint64_t id_ = 0;   // of the message, by its sender
  std::size_t moved_ = 0;
  bool carried_ = false;             // of a send: its bytes went with the announcement
  PostedStreams* stream_ = nullptr;  // where it stands: its content moves, or it is to be copied
  Deadline::Clock::time_point next_look_ = {};    // of an asynchronous one
  Deadline::Clock::time_point time_passed_ = {};  // when that was found
  control::WaitClock clock_;
  std::atomic<Recall> recall_{Recall::none};
  std::unique_ptr<Error> failure_;  // of an asynchronous one that is recalled: if it is returned
};

/// Threads   Any number; transfers of one (peer, tag, direction) by one at a time.
/// Cost      Allocates only to keep a message that comes before its receive, to copy one that is
///           buffered, and for tags that are new.
class Messages final : private Taker {
 public:
  static constexpr std::size_t kEagerBytes = kWholeBytes;
  /// Announced and not yet matched, per tag of a peer and, with kKeptBytes for each, per peer: what
  /// the peer's table must hold.
  static constexpr std::size_t kMaxUnmatchedPerTag = 64;
  static constexpr std::size_t kMaxUnmatchedBytes = Matcher::kMaxKeptBytes;
  static constexpr std::size_t kKeptBytes = Matcher::kKeptBytes;

  Messages(Channels& channels, control::Membership& membership);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Blocking send or recv; `match` as of Transfer.
  void run(const Request& request, group::Match* match = nullptr);

  /// Puts a transfer in line and moves what can move. It must stay where it is until it has ended
  /// or was withdrawn.
  void submit(Transfer& transfer);
  /// Those who wait for any of them.
  Crowd& crowd() noexcept { return crowd_; }
  const Waiter& waiter() const noexcept { return waiter_; }
  /// Moves whatever can move. `own`: the caller looks at this one itself and need not be woken.
  /// False: another thread does.
  bool drive(Transfer* own = nullptr) noexcept;
  /// Takes a transfer out of its line. False: it has ended, or (unless `by_force`) been matched or
  /// is just about to be; or it is recalled, and ends or is matched when its peer has answered.
  bool withdraw(Transfer& transfer, bool by_force);
  /// Withdraws an asynchronous one and ends it with `failure`; waits for the answer if its peer is
  /// asked. False: it has ended or been matched.
  bool cancel(Transfer& transfer, const Error& failure);
  /// Whether peers are still to get something for which nobody waits: word of what was withdrawn,
  /// copies of buffered messages.
  bool owes() const noexcept { return owed_.load() > 0; }
  /// Whether that has come to be so since this was last asked.
  bool has_come_to_owe() noexcept { return came_to_owe_.load() && came_to_owe_.exchange(false); }
  /// No send comes any more: tells those peers that would not see it otherwise.
  void set_closing() noexcept { closing_.store(true); }

  /// Asynchronous transfers under way.
  std::size_t pending() const noexcept { return pending_.load(); }
  /// The patience of all asynchronous transfers; of a blocking one.
  void ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) noexcept;
  Patience::Verdict ask(Transfer& transfer, Deadline::Clock::time_point now,
                        Deadline::Clock::time_point* next, control::ProgramWait& program) noexcept;
  /// Ends all asynchronous transfers with the cause of the group's failure.
  void fail_pending() noexcept;

 private:
  class Copy;
  using State = Posted::State;
  /// What goes to one peer with one tag.
  struct Tag {
    std::int32_t tag = 0;
    PostedLine sends;
    Posted* first_queued = nullptr;  ///< of `sends`: it and all behind it are to be announced
    std::size_t announced = 0;       ///< and unmatched
    bool ready = false;              ///< in the peer's list of tags with something to announce
    Tag* next_ready = nullptr;
    Tag* next = nullptr;
    bool idle() const noexcept { return sends.first == nullptr && announced == 0 && !ready; }
  };
  /// What the peer is to be told of one message.
  struct Note {
    FrameType type;
    std::uint64_t id;
    std::int32_t tag;
  };
  /// What it is told of all, over a connection.
  enum Summary : std::uint8_t { kTaken, kAsks, kRead, kLast };
  static constexpr std::array kSummaries = {FrameType::taken, FrameType::asks, FrameType::read,
                                            FrameType::last};
  struct Peer {
    int rank = 0;
    TcpConnection* connection = nullptr;  ///< null: it shares memory
    TagTable<Tag> tags;
    Tag *first_ready = nullptr, *last_ready = nullptr;  // have something to announce and may
    std::size_t plain_heads = 0;       // tags where what is to be announced next is not buffered
    PostedStreams sending, receiving;  // State::matched
    PostedStreams uncopied;            // buffered sends that have not ended
    std::uint64_t next_id = 1;
    std::size_t announced_bytes = 0;  // by us, unmatched
    std::size_t copied_bytes = 0;  // that it gets later: copies of ours, what they will take there
    std::uint64_t held = 0;        // of those copies, not announced
    std::uint64_t taken = 0;       // bytes of its buffered messages that have ended
    std::uint64_t taken_read = 0;  // of ours
    std::uint64_t taken_told = 0;
    std::array<bool, kSummaries.size()> owes = {};  // what is to be told
    bool told_last = false, read_last = false;
    bool has_asked = false;                   // how many frames were read, and was not told
    Deadline::Clock::time_point wanted = {};  // since when its connection is
    std::vector<Note> notes;                  // to be told to the peer; the first ones are told
    std::size_t told_notes = 0;
    std::uint64_t withdrawals = 0;       // that we have made
    std::uint64_t withdrawals_read = 0;  // of theirs
    bool has_begun = false;              // a small frame, of which a part is out:
    FrameHeader begun_header;
    std::vector<std::byte> begun;
  };

  class TransferPatience;
  void must_be_matched(Transfer& send);
  void leave(const Transfer& transfer) noexcept;
  static Transfer& transfer_of(Posted& posted) noexcept { return static_cast<Transfer&>(posted); }
  static Transfer* transfer_of(Posted* posted) noexcept { return static_cast<Transfer*>(posted); }
  void take_token(Transfer* own = nullptr) noexcept;
  void give_token() noexcept;
  void take_in() noexcept;
  void place(Transfer& transfer) noexcept;
  PostedLine& place_send(Transfer& send);
  static void queue_from(Peer& peer, Tag& tag, Posted* first) noexcept;
  void pump() noexcept;
  void advance(Peer& peer);
  void read_frames(Peer& peer);
  void on_announce(Peer& peer, const Frame& frame);
  void on_match(Peer& peer, const FrameHeader& header);
  bool on_content(Peer& peer, const Frame& frame);
  void on_withdraw(Peer& peer, const FrameHeader& header);
  void on_word(Peer& peer, const FrameHeader& header);
  void on_recall(Peer& peer, const FrameHeader& header);
  void on_returned(Peer& peer, const FrameHeader& header);
  bool send_content(Peer& peer);
  void send_announcements(Peer& peer);
  enum class Room : std::uint8_t { is_there, none_here, none_there };
  Room announce(Peer& peer, Tag& tag);
  static void make_ready(Peer& peer, Tag& tag) noexcept;
  static void push_ready(Peer& peer, Tag& tag) noexcept;
  static Tag& pop_ready(Peer& peer) noexcept;
  bool try_send(Peer& peer, const FrameHeader& header, const void* payload);
  bool send_rest(Peer& peer);
  void moved(const Peer& peer) noexcept;
  FrameHeader announcement(const Peer& peer, const Transfer& send, std::uint64_t id) const;

  void copy_buffered(Peer& peer);
  bool copy(Peer& peer, Transfer& send);
  Copy& make_copy(const Transfer& send);
  static bool has_room(const Peer& peer, std::size_t byte_count) noexcept;
  static bool has_room_for_buffered(const Peer& peer, std::size_t byte_count) noexcept;
  void let_go(Copy& copy) noexcept;
  void owe() noexcept;
  void set_held(Peer& peer, std::uint64_t held) noexcept;
  void read_taken(Peer& peer);
  void count_taken(Peer& peer, std::uint64_t taken);
  void tell_summaries(Peer& peer);
  void tell_all_summaries();
  bool tell(Peer& peer, Summary summary, std::uint64_t count);
  bool more_comes(const Transfer& transfer) noexcept;
  bool is_in_flight(const Transfer& transfer, Deadline::Clock::time_point now);
  void read_clock(Transfer& transfer, Deadline::Clock::time_point now);
  static void stand_in(PostedStreams& stream, Transfer& transfer) noexcept;
  static void stand_out(Transfer& transfer) noexcept;

  bool freeze(Peer& peer);
  void thaw(Peer& peer) noexcept;
  bool tell_notes(Peer& peer);
  void note(Peer& peer, FrameType type, std::uint64_t id, std::int32_t tag);
  void recall(Peer& peer, Transfer& transfer, std::unique_ptr<Error> failure);
  bool await_answer(Transfer& transfer);
  static void give_back_place(Peer& peer, Tag& tag, const Transfer& send) noexcept;
  bool take_back(Transfer& transfer, const Error* failure);
  bool is_announced(const Transfer& transfer) const noexcept;
  void take_back_announced(Peer& peer, Transfer& send);
  void forget(Transfer& transfer) noexcept;
  bool has_to_send(const Peer& peer) const noexcept;
  void look_at_all(Deadline::Clock::time_point now, Deadline::Clock::time_point* next);
  Error gave_up(const Transfer& transfer) const;
  bool give_up_announced(Peer& peer, Deadline::Clock::time_point now);
  void fail(Transfer& transfer, const Error& failure) noexcept;
  template <class Part>
  void guarded(Part&& part) noexcept {
    try {
      part();
    } catch (...) {
      membership_.fail_with_thrown();
    }
  }
  std::string held_back(const Transfer& transfer);

  Tag& tag_of(const Transfer& send) noexcept;
  bool has_envelope_only(const Transfer& send) const noexcept;
  bool take(int from, Posted& posted, const Offer& offer) override;
  bool claim(Peer& peer, const FrameHeader& header);
  bool agree(const Peer& peer, const Transfer& receive, const FrameHeader& header);
  bool take_up(Peer& peer, Transfer& receive, const FrameHeader& header);
  bool make_room(Transfer& receive, std::size_t count);
  void tell_sender(const Transfer& send) const noexcept;
  void announce_to_self(Peer& self);
  void take_own(Transfer& receive, const Offer& offer);

  void complete(Transfer& transfer);
  /// The first ones of a line, as far as all is moved.
  void end_completed(PostedLine& line) noexcept;
  void end(Transfer& transfer) noexcept;
  template <class Visit>
  static void visit_sends(const PostedLine& line, Visit&& visit);
  template <class Visit>
  void visit_pending(Visit&& visit);

  Peer& peer(int rank) noexcept { return of_rank(peers_, rank); }

  Channels& channels_;
  control::Membership& membership_;
  const Waiter waiter_;
  const std::size_t eager_bytes_;
  std::atomic<std::size_t> pending_{0};
  std::atomic<std::size_t> owed_{0};
  std::atomic<bool> came_to_owe_{false};
  std::atomic<bool> closing_{false};

  Crowd crowd_;

  std::mutex inbox_mutex_;
  PostedLine inbox_;  // inbox_mutex_
  std::atomic<bool> inbox_full_{false};

  DriverToken token_;  // guards everything below
  std::vector<Peer> peers_;
  Matcher matcher_;
  PostedLine unplaced_;      // there was no memory: the group has failed
  Transfer* own_ = nullptr;  // see drive
  bool others_ended_ = false;
  bool has_summaries_ = false;  // for some peer, since it was last told
};

}  // namespace tutti::native
