// What Host and Membership share; nobody else includes this.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "control/board/board.h"
#include "control/board/log.h"
#include "control/board/own_line.h"
#include "control/board/owner.h"
#include "control/boards_met.h"
#include "control/callers.h"
#include "control/group_members.h"
#include "control/host.h"
#include "control/judge/deadlock.h"
#include "control/membership.h"
#include "control/process.h"
#include "control/relay.h"

namespace tutti::control {

/// For a forked child: the threads of `state` are not there, so it is left as it is, for good. A
/// count that is never given back, and no allocation.
template <class T>
void leak_in_child(std::shared_ptr<T>& state) noexcept {
  alignas(std::shared_ptr<T>) std::byte place[sizeof(std::shared_ptr<T>)];
  new (place) std::shared_ptr<T>(std::move(state));
}

/// How many verdicts a rank remembers that concern groups it may make yet.
inline constexpr std::size_t kRemembered = 1024;

/// How often a rank that waits looks for deadlocks.
inline constexpr std::chrono::milliseconds kDeadlockLook{50};

struct Host::State final : Watched {
  State(std::shared_ptr<Process> process_in, BoardsMet met, const HostOptions& options);

  // Watched, on the control thread.
  void tick(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) noexcept override;
  Doorbell& control_bell() noexcept override { return own.control_bell(); }
  const void* board() const noexcept override { return shared.data(); }
  SlotIndex slot_index() const noexcept override { return own.index(); }
  void sleep_at(SlotIndex slot) noexcept override { own.sleeps_at(slot); }

  void look_for_deaths(Deadline::Clock::time_point now);
  void decide(Deadline::Clock::time_point now, Deadline::Clock::time_point* next);
  void speak_with_hosts(Deadline::Clock::time_point now,
                        Deadline::Clock::time_point* next) noexcept;
  void rouse_others() noexcept;
  bool is_lost(WorldRank of) const noexcept;
  std::vector<std::shared_ptr<Membership::State>> all_memberships() const;

  // ---- verdicts.cc
  /// Applies those entries of the log that are new. Any thread.
  void apply_log() noexcept;
  /// Enters what `verdict()` returns into the log and applies it. It is asked whenever all entries
  /// so far are applied; nothing: they have settled it. False: they have.
  /// With other hosts: it becomes a wish of this rank, and false is returned.
  bool enter(const std::function<std::optional<Verdict>()>& verdict);
  /// The same for a verdict on more groups than an entry holds: one after the other, if it stands
  /// before the first. False: that is settled already.
  bool enter_parts(const Verdict& verdict, const std::function<bool()>& stands);
  /// On the control thread: shows the relay of the host what this rank wishes.
  void show_wish();
  struct Wish {
    Verdict verdict;
    bool is_own;              ///< it concerns this rank
    Clock::time_point until;  ///< else, once it is shown
  };
  bool is_settled(const Wish& wish) const;     // log_mutex
  bool was_chosen(const Verdict& wish) const;  // log_mutex
  /// On the control thread: what the relay says while other hosts hold up the next entry.
  void hear_while_held_up();
  /// On the control thread: a failure that a rank of this host has wished for long counts for its
  /// ranks before it is entered.
  void settle_what_is_held_up(Deadline::Clock::time_point now, Deadline::Clock::time_point* next);
  /// From now on `membership` is told of verdicts; those that it has missed it is told at once.
  void tell_from_now_on(const std::shared_ptr<Membership::State>& membership);
  /// Of a group that this rank has not begun to make.
  bool has_failed(GroupId group) noexcept;
  /// Whether it has failed since its ranks and those of one of `asked` each awaited the other.
  bool was_disputed(GroupId group, std::span<const GroupId> asked) noexcept;
  void wish(const Verdict& verdict);      // log_mutex
  void apply_new_entries();               // log_mutex; what finds no memory is applied later on
  void apply(const Verdict& verdict);     // log_mutex
  void remember(const Verdict& verdict);  // log_mutex
  void apply_loss(const std::vector<WorldRank>& culprits, const std::string& why);  // log_mutex
  void catch_up();                                                                  // log_mutex

  // ---- deadlocks.cc
  /// Shows the others that the calling thread, and so the program, waits. False: it may not be the
  /// only one, or for whom it waits cannot be said.
  bool show_wait(Deadline::Clock::time_point since, const std::vector<WaitPart>& parts,
                 Deadline::Clock::time_point now);
  void take_back_wait() noexcept;
  void look_for_deadlocks(Deadline::Clock::time_point now);  // control thread
  /// What entries of the log have ended: members that waited there, or whose handlers of that
  /// failure run, may go on, and may not have shown it yet.
  struct EndedGroups {
    bool all = false;  ///< a loss, or it is not known which
    std::set<GroupId> ids = {};
  };
  bool concerns(const EndedGroups& groups, const DeadlockClock& clock) const noexcept;
  /// How many of its groups have failed.
  std::size_t count_failed(const Verdict& verdict) const;  // log_mutex
  bool has_sent() const;
  bool may_ask(Deadline::Clock::time_point since, Deadline::Clock::time_point now) const noexcept;
  enum class Asks : std::uint8_t { no, yes };
  /// By rank. Control thread; so are the next three.
  std::vector<WaitFacts> wait_facts(Asks asks) const;
  void add_elsewhere(std::vector<WaitFacts>& facts, Asks asks) const;
  WaitFacts wait_elsewhere(WorldRank of, Asks asks) const;
  Asks asks_elsewhere(Deadline::Clock::time_point now);
  /// wording.cc: "rank 0 waits in recv(...) at ring.cc:9 for rank 1, which waits in ...".
  std::string words_of(const Knot& knot, const std::vector<WaitFacts>& facts) const;

  /// Until all ranks of the world have taken their marks, then sets `cores` and `policy`; throws
  /// who is missing or lost.
  void wait_for_all(Deadline& deadline, const std::function<void()>& look);
  struct ClosedLine {
    OwnLine line;
    GroupId group;
    std::vector<WorldRank> world_ranks;
    int rank;
    std::set<int> have_come;  ///< members that were seen there, if it could not be made
  };
  /// A line for a new group, if need be that of a closed one; nothing if all are in use.
  std::optional<OwnLine> open_line(GroupId group, GroupId asked_of,
                                   const std::vector<WorldRank>& members);  // mutex
  /// The same; nothing as well if there is no memory.
  std::optional<OwnLine> try_open_line(const MembershipOptions& options) noexcept;  // mutex
  bool is_needed(const ClosedLine& closed) const;                                   // mutex
  /// "rank 2 (world rank 5, pid 77 on host, killed by SIGKILL)"; `shown_as`: as the reader counts.
  std::string person(WorldRank of, int shown_as) const;

  const std::shared_ptr<Process> process;
  const Board shared;
  const Roster roster;
  const std::unique_ptr<RemoteHosts> remote;  ///< of this state
  OtherHosts* const others;                   ///< null: there is one host
  PeerSockets* const sockets;                 ///< the same
  const WorldRank rank;
  const std::uint64_t number;  ///< among all worlds that ranks of this process have joined
  const std::chrono::nanoseconds first_line_after;
  const Deadlock deadlock;
  const std::chrono::nanoseconds deadlock_after;
  const Cores own_cores;  ///< of the thread that joined
  int cores = 1;          ///< that the ranks may keep busy together; the same on all of them
  WaitPolicy policy;      ///< by the own cores at first, by those of all once they have come
  SlotOwner own;
  Callers callers;
  ProgressThread progress;

  /// What `own` shows of the program's wait.
  struct ShownParts {
    std::vector<WaitPart> parts;
    std::uint64_t activity = 0;               ///< of the rank, in all groups
    std::uint64_t visits = 0;                 ///< of the progress thread, at the last look
    Deadline::Clock::time_point looked = {};  ///< when the last one that counts began
  };
  std::mutex shown_mutex;
  std::optional<ShownParts> shown_wait;  // shown_mutex

  /// Nonzero once any rank was declared lost: ends the wait for the others while joining.
  std::atomic<std::uint64_t> loss_word{0};

  std::mutex log_mutex;                         ///< before `mutex`, where both are taken
  BoardLog log;                                 // log_mutex
  std::uint64_t next_entry = 1;                 // log_mutex
  bool has_to_catch_up = false;                 // log_mutex; with what it has missed
  std::deque<Verdict> remembered;               // log_mutex; losses, and failures of other groups
  EndedGroups ended_groups;                     // log_mutex; since the last look for deadlocks
  std::atomic<bool> has_missed_entries{false};  ///< since then the lines are looked at as well
  std::list<Wish> wishes;                       // log_mutex; each is told until it is settled
  std::set<GroupId> ahead_of_log;  // log_mutex; groups that have failed here, and have no entry yet
  /// A wish of a rank of this host: which, and in how many looks it was there.
  struct SeenWish {
    std::uint64_t number = 0;
    int looks = 0;
    Deadline::Clock::time_point next_look = {};
  };
  std::map<SlotIndex, SeenWish> seen_wishes;  // control thread

  mutable std::mutex mutex;
  std::vector<std::shared_ptr<Membership::State>> memberships;  // mutex
  std::set<WorldRank> lost;                                     // mutex

  /// Kept until no member can want to read them; the oldest first.
  std::vector<ClosedLine> closed_lines;  // mutex

  // Control thread only.
  std::optional<Relay> relay;  ///< with other hosts
  std::optional<Verdict> shown_wish;
  std::set<SlotIndex> ended;      ///< by mark, whether lost or after their last goodbye
  std::set<WorldRank> undecided;  ///< those of them that are a loss, and not yet in the log
  Deadline::Clock::time_point first_death = {};
  Deadline::Clock::time_point next_deadlock_look = {};
  Deadline::Clock::time_point next_wait_questions = {};
  DeadlockClock deadlock_clock;
};

struct Membership::State : std::enable_shared_from_this<Membership::State> {
  /// `line`: nothing if there is none; then the rank has not come to the group yet.
  State(std::shared_ptr<Host::State> host, MembershipOptions options, std::optional<OwnLine> line);
  /// Whether a failure of `parent` is one of this group, which is being made: not where that was
  /// asked for it after it had failed, of the survivors.
  bool ends_with(const State* parent) const noexcept {
    return parent != nullptr && asked_of == parent->id;
  }
  ~State();
  class Meeting;
  class Room;
  class Blame;
  class Farewell;

  int size() const noexcept { return members.size(); }
  /// Members that are seen to have a line, while the group is being made.
  std::set<int> have_come() const;
  /// Of its line; any thread.
  std::uint64_t activity();

  // ---- failing.cc
  /// Enters the cause into the log, unless the group has failed by then: the first verdict counts,
  /// on all members. `with`: other groups that fail of it.
  void fail(Cause cause, const std::vector<GroupId>& with = {}) noexcept;
  /// The same for a judge's finding; `request`: the operation it is about, or null.
  void fail(const Finding& finding, const Request* request) noexcept;
  void enter(const Cause& cause, const std::vector<GroupId>& with);
  /// The verdict on this group is in the log.
  void fail_by(const Verdict& verdict);
  /// What the group has failed with, for the threads of this rank and on the own line. The first
  /// cause counts.
  void settle(Cause cause);
  /// Takes over what others have found. False: the group has not failed.
  bool adopt_failure() noexcept;
  /// The same for who has applied the log; log_mutex.
  bool adopt_missed();
  /// The same from a member whose line says so; log_mutex.
  bool adopt_from_lines();
  /// A group that is being made ends with the one that was asked for it.
  void adopt_parent(State& parent);
  /// Whether the group has failed, here or elsewhere.
  bool has_failed() noexcept;
  /// On the control thread, after a verdict. Who had said goodbye to this group is no loss for it.
  /// `why`: see Verdict::text.
  void peers_lost(const std::set<WorldRank>& lost, const std::string& why);
  void members_lost(const GroupFacts& facts, const std::vector<int>& lost, const std::string& why);
  /// With other hosts: until what this rank has found, or another cause, has been entered.
  void await_cause() noexcept;
  void await_told() noexcept;
  /// Of members on other hosts: until it is known what they do now, for kAnswersSoon at most. What
  /// is to be said of those who have not answered; who has not done so before is not waited for.
  std::string ask_what_they_do(
      const std::vector<int>& about,
      std::chrono::nanoseconds most = std::chrono::nanoseconds::max()) noexcept;
  static constexpr std::chrono::seconds kAnswersSoon{1};
  /// Of a member on another host: when the question was put that it has answered last.
  Clock::time_point known_as_of(int member) const noexcept;
  /// Whether it has been asked in vain, and has said nothing since.
  bool is_silent(int member) const noexcept;
  void note_silent(int member, Clock::time_point since);
  void announce();
  Error make_error(const Request* request) const;
  /// The same of a call of `close`.
  Error close_error(const Where& where) const;
  /// `who`: how the message begins.
  Error error_in(ErrorContext context, const std::string& who) const;
  /// deadlocks.cc: what the program awaits in `request`, which waits for `peer` if it is a message.
  std::optional<WaitPart> awaits(const Request& request, int peer, bool needs_all,
                                 const GroupFacts& facts) const;
  void set_awaited(WaitPart& part, AwaitedMembers awaited, const GroupFacts& facts) const;
  void keep_first_elsewhere(AwaitedMembers& awaited) const;

  // ---- wording.cc
  std::string words_of(const Finding& finding, const Request* request) const;
  std::string doing(int member) const;
  /// The same of one on another host, whose board this one cannot read.
  std::string doing_elsewhere(int member) const;
  static const KnownCall* called_by_all(const LineFacts& own);
  /// "rank 1 (pid 77 on host), which is in ...; rank 2 ...": about members that are awaited.
  std::string doings(const std::vector<int>& awaited, std::string_view link) const {
    return doings(awaited, link, link);
  }
  std::string doings(const std::vector<int>& awaited, std::string_view link,
                     std::string_view link_elsewhere) const;
  /// The same about members that may be in no group with this rank.
  std::string doings_anywhere(const std::vector<int>& awaited) const;
  /// What a member has called, with the texts of its host for it.
  KnownCall with_texts(int member, const KnownCall& known) const;
  /// "all_to_allv #3 at sort.cc:9": a member's part in an operation of this rank.
  std::string call_of(int member, const Request& request) const;
  std::string person(int member) const;
  /// "; rank 1 (on host-b) has not answered for 1 s: what is said of it may be old".
  std::string old_news(const std::vector<int>& silent, std::chrono::nanoseconds lasting) const;
  /// Where the first of them is; "" if there is none.
  std::string host_of_first(const std::vector<int>& culprits) const;
  /// The cause's text for those who count in ranks of the world.
  std::string for_the_world(const Cause& cause) const;
  /// " of group world/0-2"; "" of a world.
  std::string of_group() const;
  ErrorContext context_of(const Request& request) const;
  /// How a message about an operation of this rank begins.
  std::string heading_of(const Request& request) const;
  /// "rank 0's send(f32 x 3, to 1, tag 0) at ring.cc:9": the operation of this rank, for all to
  /// read.
  std::string own(const Request& request) const;
  /// The same without whose it is.
  std::string in_words(const Request& request) const;

  const std::shared_ptr<Host::State> host;
  const GroupId id;
  const GroupId asked_of;  ///< 0: a world
  const std::string name;
  const std::string call;     ///< that asked for it; "" for a world
  const std::uint64_t times;  ///< see MembershipOptions
  const int rank;
  const GroupMembers members;
  bool is_given_up = false;  ///< by the others, before this rank began to make it
  std::optional<PrivateLine> no_place;
  OwnLine line;  ///< mutex, while there may be none
  WaitAccount account;
  Waiter waiter;
  std::atomic<std::uint64_t> abort_word{kRunning};
  std::atomic_flag message_busy = ATOMIC_FLAG_INIT;  ///< taken by the thread that shows a message
  std::uint64_t messages = 0;                        ///< by the holder of message_busy

  mutable std::mutex mutex;
  std::map<int, Clock::time_point> asked_in_vain;            // mutex; by member: since when
  std::optional<Cause> first_cause;                          // mutex
  std::vector<std::function<void(const Error&)>> callbacks;  // mutex
  bool announced = false;                                    // mutex
  std::function<bool()> has_sent;                            // mutex; see Membership::watch_sent
  ArriveClock arrive;                                        // mutex
};

}  // namespace tutti::control
