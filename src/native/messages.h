// send and recv of one rank in one group.
//
// A sender *announces* a message: what it is, with its bytes if they are few (*eager*). The
// receiver *matches* it with the oldest receive posted for (peer, tag), or keeps it in a bounded
// table until there is one; a match goes back as a frame, and the *content* of a large message
// follows it. So the channels always drain: an announcement has its place in the table, a match is
// local news, and content has a posted buffer. That is why no tag ever blocks another, and why one
// channel per pair is enough.
//
// A receive from any rank belongs to no peer until it is matched. A message that *stands for* one
// of another backend has an envelope only: both ends learn of their match, its content moves
// elsewhere.
//
// A *transfer* is one send or receive under way. Transfers of a peer and direction stand in a
// *line* in submission order; those of one tag end in that order. Whoever holds the driver token
// moves all transfers of the rank, not only its own.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/crowd.h"
#include "native/channels.h"
#include "native/driver_token.h"
#include "native/operation.h"

namespace tutti::native {

class Messages;

/// One send or receive. On the stack of a blocking call; asynchronous ones derive from it.
class Transfer : public Operation {
 public:
  Transfer(Messages& messages, const Request& request) noexcept
      : messages_(messages),
        request_(&request),
        peer_(request.root_or_peer),
        count_(request.count),
        data_(request.output.data) {}
  bool step() override;
  int awaited() const noexcept override { return peer_; }
  bool matched() const noexcept override { return state_.load() >= State::matched; }
  bool ended() const noexcept { return state_.load() == State::ended; }

 protected:
  /// Ended well. The last thing that is done to a transfer, which may be gone when this returns.
  virtual void on_end() noexcept { set_ended(); }
  /// Asynchronous ones: removed from their line because of a failure; the last thing as well.
  virtual void on_failure(const Error&) noexcept {}
  virtual bool is_asynchronous() const noexcept { return false; }
  void set_ended() noexcept { state_.store(State::ended); }

 private:
  friend class Messages;
  enum class State : int {
    queued,    ///< a send that was not announced yet
    waiting,   ///< announced, or posted
    matched,   ///< content is moving
    complete,  ///< all is moved, but an older transfer of the tag is under way
    ended,
  };
  bool is_send() const noexcept { return request_->op == Op::send; }
  std::size_t byte_count() const noexcept { return count_ * size_of(request_->dtype); }

  Messages& messages_;
  const Request* request_;
  std::atomic<int> peer_;    // kAnyRank until matched
  std::size_t count_;        // of a receive of any count: once matched
  void* data_;               // of a receive: where it goes
  std::uint64_t order_ = 0;  // among all of the rank, by submission
  std::atomic<State> state_{State::queued};
  std::uint64_t id_ = 0;  // of the message, by its sender
  std::size_t moved_ = 0;
  Transfer* previous_ = nullptr;  // in its line
  Transfer* next_ = nullptr;
  control::WaitClock clock_;  // of an asynchronous one
};

/// Threads   Any number; transfers of one (peer, tag, direction) by one at a time.
/// Cost      Blocking calls allocate nothing, but for the table's entries at first use.
class Messages {
 public:
  static constexpr std::size_t kEagerBytes = 4096;
  /// Announced and not yet matched, per peer and per tag of a peer: what the peer's table must
  /// hold.
  static constexpr std::size_t kMaxUnmatched = 1024;
  static constexpr std::size_t kMaxUnmatchedPerTag = 64;

  Messages(Channels& channels, control::Membership& membership);

  /// Blocking send or recv.
  void run(const Request& request);

  /// Puts a transfer in line and moves what can move. It must stay where it is until it has ended
  /// or was withdrawn.
  void submit(Transfer& transfer);
  /// Those who wait for any of them.
  Crowd& crowd() noexcept { return crowd_; }
  /// Moves whatever can move. `own`: the caller looks at this one itself and need not be woken.
  void drive(const Transfer* own = nullptr);
  /// Takes a transfer out of its line. False: it has ended, or (unless `by_force`) been matched.
  bool withdraw(Transfer& transfer, bool by_force);

  /// Up to here the bytes travel with the announcement.
  std::size_t eager_bytes() const noexcept { return eager_bytes_; }
  /// Asynchronous transfers under way.
  std::size_t pending() const noexcept { return pending_.load(); }
  /// The patience of all asynchronous transfers.
  void ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) noexcept;
  /// Ends all asynchronous transfers with the cause of the group's failure.
  void fail_pending() noexcept;

 private:
  using State = Transfer::State;
  struct Line {
    Transfer* first = nullptr;
    Transfer* last = nullptr;
    void append(Transfer& transfer) noexcept;
    /// By order_; where they come in order this is append.
    void insert(Transfer& transfer) noexcept;
    void remove(Transfer& transfer) noexcept;
  };
  /// A message that arrived before its receive; an entry of the table.
  struct Unexpected {
    FrameHeader header;
    std::uint64_t order = 0;  // of arrival, among those of all peers
    Unexpected* next = nullptr;
    std::byte payload[kEagerBytes];
  };
  struct Unmatched {
    std::uint64_t id;
    std::int32_t tag;
  };
  struct Match {
    std::uint64_t id;
    Transfer* filled;  // the receive that ends when the match is told; null: content will follow
  };
  struct Peer {
    int rank = 0;
    Line sends, receives;
    std::size_t queued_sends = 0;     // State::queued in `sends`
    std::size_t streaming_sends = 0;  // State::matched in `sends`
    Unexpected* first_unexpected = nullptr;
    Unexpected* last_unexpected = nullptr;
    std::size_t unexpected_count = 0;
    std::uint64_t next_id = 1;
    std::vector<Unmatched> unmatched;  // announced by us
    std::vector<Match> matches;        // to be told to the peer; the first ones are told
    std::size_t told_matches = 0;
  };

  void forget(Transfer& transfer) noexcept;
  void take_token() noexcept;
  void give_token() noexcept;
  void take_in();
  void place(Transfer& transfer);
  void pump(const Transfer* own) noexcept;
  void read_frames(Peer& peer);
  void on_announce(Peer& peer, const Frame& frame);
  void on_match(Peer& peer, std::uint64_t id);
  void on_content(Peer& peer, const Frame& frame);
  bool tell_matches(Peer& peer);
  bool send_content(Peer& peer);
  void send_announcements(Peer& peer);
  bool may_announce(const Peer& peer, std::int32_t tag) const noexcept;
  bool try_send(Peer& peer, const FrameHeader& header, const void* payload);
  FrameHeader announcement(Transfer& send, std::uint64_t id) const;

  Line& line_of(Transfer& transfer) noexcept;
  bool has_envelope_only(const Transfer& send) const noexcept;
  Transfer* find_receive(Peer& from, std::int32_t tag) const noexcept;
  void post(Transfer& receive);
  void match(Peer& peer, Transfer& receive, const FrameHeader& header, const std::byte* payload);
  bool agree(const Peer& peer, const Transfer& receive, const FrameHeader& header);
  bool take_up(Peer& peer, Transfer& receive, const FrameHeader& header);
  bool make_room(Transfer& receive, std::size_t count);
  void tell_sender(const Transfer& send) const noexcept;
  void announce_to_self(Peer& self);
  Transfer* find_self_send(Peer& self, std::int32_t tag) const noexcept;
  void meet_self(Peer& self);
  bool meet_oldest(Peer& self, Transfer& receive);
  void keep(Peer& peer, const FrameHeader& header, const std::byte* payload);
  void release(Peer& peer, Unexpected* before, Unexpected& entry) noexcept;

  void complete(Line& line, Transfer& transfer);
  void end(Line& line, Transfer& transfer) noexcept;
  template <class Visit>
  void visit_pending(Visit&& visit);

  Peer& peer(int rank) noexcept { return peers_[static_cast<std::size_t>(rank)]; }

  Channels& channels_;
  control::Membership& membership_;
  const std::size_t eager_bytes_;
  std::atomic<std::size_t> pending_{0};

  Crowd crowd_;

  std::mutex inbox_mutex_;
  Line inbox_;  // inbox_mutex_
  std::atomic<bool> inbox_full_{false};

  DriverToken token_;  // guards everything below
  std::vector<Peer> peers_;
  Line receives_from_any_;
  std::uint64_t next_order_ = 1;
  const Transfer* own_ = nullptr;  // see drive
  bool others_ended_ = false;
  std::vector<std::unique_ptr<Unexpected>> table_;  // every entry there ever was
  Unexpected* free_ = nullptr;
};

}  // namespace tutti::native
