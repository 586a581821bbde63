// The other hosts of a world, over TCP.
//
// Every rank has a *door*, where those of other hosts call it. The relay of a host calls every rank
// on every other host and keeps a *line* to each: on it go its reports and its votes, and back come
// questions. So each rank hears the relays of all other hosts, and whoever becomes the relay next
// finds the doors of all others. A beat goes on each line every 500 ms, and the kernel of the other
// host acknowledges it, whatever the process does: hearing.h.
//
// Votes go to all ranks of a host, of which one is its relay. The others keep what came last, so
// that the next relay need not ask for what an earlier one has not got to: who sent it may have
// left.
//
// A rank is *gone* when its line has ended and nobody listens at its door. A host is dead, or has
// left, when all its ranks are gone and all that came from it has been read, a note at the own door
// as well (door_notes.h); it is *cut* when it has acknowledged nothing for a while of what goes to
// those left.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/roster.h"
#include "control/board/board.h"
#include "control/hosts/connection.h"
#include "control/hosts/data_calls.h"
#include "control/hosts/door.h"
#include "control/hosts/door_notes.h"
#include "control/hosts/door_plate.h"
#include "control/hosts/hearing.h"
#include "control/hosts/other_hosts.h"
#include "control/hosts/peer_sockets.h"
#include "control/hosts/reporter.h"
#include "control/hosts/view.h"
#include "net/tcp.h"

namespace tutti::control {

struct RemoteOptions {
  net::Fd memory;  ///< of the board of this host
  Roster roster;
  WorldRank rank{0};
  net::Fd listener;               ///< the own door
  std::vector<DoorPlate> plates;  ///< by rank of the world
  DoorKeys keys;                  ///< that follow from those
};

class RemoteHosts final : public OtherHosts, public PeerSockets, private RelayLinks {
 public:
  /// Throws kSystem.
  explicit RemoteHosts(RemoteOptions options);
  ~RemoteHosts() override;

  /// Returns once the relay of this host has told the others what this rank has shown so far, or
  /// soon. Any thread.
  void await_told() noexcept;
  /// After this rank has left the board in order. Returns once the relay of this host has told the
  /// others. Where it does not soon, and as the last of its host, this rank tells them, and returns
  /// when the kernels of their hosts have it, whatever their processes do: those that cannot be
  /// reached within that time part from this host.
  /// `lost`: by the log; to their hosts nothing is said.
  void leave(const std::set<WorldRank>& lost) noexcept;

  /// Of this host, where the own door is.
  std::string address() const { return plates_[rank_.index()].address.host(); }

  // OtherHosts
  MemberFacts facts_of(GroupId group, WorldRank rank) const override;
  std::optional<LineState> state_of(GroupId group, WorldRank rank) const noexcept override;
  bool shows_failure(GroupId group, WorldRank rank) const noexcept override;
  bool has_left(WorldRank rank) const noexcept override;
  std::vector<GroupId> said_goodbye_to(WorldRank rank) const override;
  std::map<GroupId, FailureFacts> failures_of(WorldRank rank) const override;
  void ask(GroupId group, WorldRank rank) noexcept override;
  WaitFacts wait_of(WorldRank rank) const override;
  void ask_wait(WorldRank rank) noexcept override;
  void notify(WorldRank rank) noexcept override;
  RelayLinks& links() noexcept override { return *this; }

  // PeerSockets
  void expect(GroupId group) override { data_.expect(group); }
  void forget(GroupId group) noexcept override { data_.forget(group); }
  net::Secured try_take(GroupId group, WorldRank peer, std::uint8_t lane) override;
  bool has_come(GroupId group, WorldRank peer, std::uint8_t lane) override;
  bool has_ended(WorldRank peer) override;
  net::Events& events() noexcept override { return events_; }

 private:
  using milliseconds = std::chrono::milliseconds;
  /// What a rank that leaves says, or one without words that looks who is there.
  struct Note {
    std::unique_ptr<Connection> connection;
    Clock::time_point heard = {};  ///< when it last said something
  };
  /// The first beat on a line of which it is not known yet that the other kernel has it.
  struct OpenBeat {
    Clock::time_point sent;
    std::uint64_t end = 0;  ///< of its bytes on the line
  };
  /// A rank of another host.
  struct Far {
    // Of this rank as the relay of its host:
    std::unique_ptr<Call> call = {};
    int unanswered = 0;  ///< calls, one after the other
    std::unique_ptr<Connection> line = {};
    std::uint64_t line_id = 0;  ///< 0: there is none
    std::optional<OpenBeat> beat = {};
    Clock::time_point next_call = {};
    Clock::time_point refused_since = {};  ///< since when nobody is at its door
    bool is_gone = false;
    Hearing hearing = Hearing();
    bool is_distrusted = false;  ///< and that was said
    // Of that one as the relay of its:
    std::unique_ptr<Connection> from = {};
    std::list<Note> notes = {};
    // Of any rank: whether somebody is at its door.
    std::unique_ptr<Call> probe = {};
  };
  /// What came from another host's relay and waits for this host's.
  struct Inbox {
    std::deque<std::pair<int, std::string>> frames;
    std::vector<std::optional<VoteFrame>> kept;  ///< by host, while this rank is not the relay
    bool is_relay = false;
  };

  // RelayLinks, on the control thread
  void open() override;
  void close() noexcept override;
  std::vector<HostFacts> facts() const override;
  std::optional<std::pair<int, std::string>> receive() override;
  void send(int host, std::string frame) override;
  void await_sent() noexcept override;
  void report() override;
  void part_from(const HostSet& hosts) override;

  // ---- on the own thread
  void run() noexcept;
  void put(const Question& question);
  void sweep(Clock::time_point now);
  Clock::time_point last_heard(int host, Clock::time_point now);
  void beat(WorldRank rank, Clock::time_point now);
  void listen_for(Far& other);
  std::unique_ptr<Call> begin_call(const Hello& hello, milliseconds silence,
                                   Call::OnOutcome on_outcome);
  bool lacks_line(const Far& other) const noexcept;
  bool has_refused(const Far& other) const noexcept;
  void call(WorldRank rank);
  void on_outcome(WorldRank rank, Call::Outcome outcome);
  void on_line_end(WorldRank rank, int error_number);
  std::optional<net::Key> key_for(const Hello& hello);
  Answer on_hello(const Hello& hello);
  void on_guest(const Hello& hello, net::Secured socket);
  void on_relay_end(WorldRank rank);
  void hear_note(WorldRank rank, net::Secured socket);
  void drop_note(Far& other, std::list<Note>::iterator note);
  void probe(WorldRank rank);
  void mark_gone(Far& other);
  void hear_relay(WorldRank rank, const net::Frame& frame);
  void hear_report(WorldRank rank, const net::Frame& frame);
  void hear_question(WorldRank rank, const net::Frame& frame);
  void take_vote(int host, const std::string& bytes);
  void keep_vote(int host, const std::string& bytes);
  void ask_again(int host);
  std::vector<net::Frame> all_reports() const;
  void tell_news();
  void show_told() noexcept;
  bool has_parted(WorldRank rank) const noexcept { return parted_.contains(roster_.host_of(rank)); }
  void end_lines();
  void leave_note(const std::set<WorldRank>& lost);
  void drop(std::unique_ptr<Connection> connection);
  void update_facts();
  HostFacts facts_of_host(int host, Clock::time_point now);

  Far& far(WorldRank rank) noexcept { return far_[rank.index()]; }
  /// As until_done, but ends with this thread: for what nobody says again.
  template <class Part>
  void persist(Part&& part) noexcept;
  template <class Visit>
  void visit_far(Visit&& visit);
  void rouse() noexcept;
  void rouse_relay() noexcept;
  bool is_last_of_host() const noexcept;
  bool are_told_soon() const noexcept;
  bool has_another_told() const noexcept;

  const Board board_;
  const Roster roster_;
  const WorldRank rank_;
  const SlotIndex slot_;
  const std::vector<DoorPlate> plates_;
  net::Events events_;
  View view_;
  std::atomic<std::uint64_t> told_news_{0};
  std::uint64_t reported_news_ = 0, marks_set_ = 0;  // on the control thread

  mutable std::mutex mutex_;
  net::Condition changed_;
  Inbox inbox_;                     // mutex_
  std::vector<HostFacts> facts_;    // mutex_; by host
  std::set<WorldRank> ended_;       // mutex_; nobody was at their doors
  bool has_told_all_ = false;       // mutex_
  std::uint64_t marks_passed_ = 0;  // mutex_; see await_sent

  // On the own thread.
  DoorKeys keys_;
  bool is_relay_ = false, is_leaving_ = false, has_left_note_ = false;
  bool owes_news_ = false;  // to all lines
  HostSet parted_;
  Reporter reporter_;
  std::vector<Far> far_;       ///< by rank of the world
  std::vector<int> relay_of_;  ///< by host: the rank that called last as its relay, or -1
  std::uint64_t last_line_id_ = 0;
  Clock::time_point next_beat_ = {}, next_sweep_ = {};
  Shortage shortage_;
  DataCalls data_;
  DoorNotes notes_;
  Door door_;

  std::atomic<bool> stops_{false};
  std::thread thread_;
};

}  // namespace tutti::control
