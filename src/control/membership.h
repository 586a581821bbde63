// One rank's place in one group: its line on the board, its peers' lines, its abort word, its
// cause.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/self.h"
#include "base/wait.h"
#include "control/judge/look.h"
#include "control/program_wait.h"
#include "control/progress.h"
#include "tutti/request.h"

namespace tutti::control {

/// How the text begins of a group that was not made since its parent failed.
inline constexpr std::string_view kParentFailed = "its parent failed meanwhile";

/// Everything that lets an operation wait, be watched, fail and be blamed. Made by the Host for
/// each group; the group, its backend and its Works use it.
///
/// Threads  All functions may be called from any thread; enter and leave of collectives by one at a
///          time. Those that make a group, close it or end it may block: meet, close, the
///          destructor, and, with other hosts, fail until they have agreed on the cause.
class Membership {
 public:
  struct State;
  explicit Membership(std::shared_ptr<State> state) noexcept;  ///< Host::make_membership
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  int rank() const noexcept;
  /// The same, as headings of errors name it.
  Self self() const noexcept;
  int group_size() const noexcept;
  GroupId id() const noexcept;
  /// The host on which `member` is, among those of the world; whether that is this one.
  int host_of(int member) const noexcept;
  bool is_here(int member) const noexcept;
  /// This host's name.
  const std::string& host() const noexcept;
  /// "rank 3 (on host-b)", with what else is known.
  std::string person(int member) const;
  /// Whether the log has declared it lost.
  bool is_lost(int member) const noexcept;
  /// What this rank does in the group, as the others can read it: "is in recv from rank 1 at ...".
  std::string doing() const;

  /// Waits until all members have made this group; the first thing to do with it. `parent`: the
  /// group that was asked for it, or null; where that has not failed before, this one fails when it
  /// does.
  /// Errors  kPeerLost, kClosed: a member died or left before it came, or has closed `parent`.
  ///         kTimeout: who did not come. kSystem: this rank has no room for a group more.
  ///         kCollectiveMismatch: a member asked the same group for another one that awaits this
  ///         rank, so that neither can go on. What `parent` fails with.
  void meet(const Membership* parent, const Where& where, Deadline deadline);

  /// For all who make a group, whatever the backend: fails it after `error`, an error of this rank,
  /// and returns what counts. An own error waits for a death or a failure under way elsewhere, of
  /// which it may be a consequence; `parent` as in meet.
  Error blame(const Error& error, const Membership* parent);

  /// Publishes the operation on the own line (under 20 ns; no system call).
  void enter(const Request& request) noexcept;
  /// A collective was called that will be entered when its turn comes.
  void queue(const Request& request) noexcept;
  /// Marks an operation as ended. Call it for those that succeeded only: a failed one stays on the
  /// board as what the rank was in.
  void leave(const Request& request) noexcept;
  /// Bytes moved: restarts the stall clock. One relaxed store.
  void progressed() noexcept;

  /// For waits in this group: the abort word, the own doorbell, the policy.
  const Waiter& waiter() const noexcept;
  /// Whether `member` (-1: any other) entered its latest operation on this core.
  bool is_on_core(int core, int member) const noexcept;
  /// How many cores the ranks of the host may keep busy together; the same on all of them.
  int cores() const noexcept;
  /// Deadlines, "who is awaited" lines and asking on the board for a disagreement: the slow path of
  /// one operation's wait for `awaited` (a rank of the group, or -1: all). give_up: the deadline of
  /// a message passed before anything matched; throw_gave_up then says so, and the group stays
  /// usable. `program`: if the program's thread waits for it, and has just looked at all that has
  /// come; else null. `facts`: of `now`, where many operations are looked at together; else null.
  Patience::Verdict ask(const Request& request, int awaited, WaitClock& clock,
                        Deadline::Clock::time_point now, Deadline::Clock::time_point* next,
                        ProgramWait* program = nullptr, const GroupFacts* facts = nullptr);
  GroupFacts read_facts() const;
  /// For an operation whose time has passed since `since`: whether it is known what `peer` (-1:
  /// any) has done by then, or will not be soon; else asks, for another look in 20 ms.
  /// throw_gave_up waits for that itself, unless it is told since when that is known.
  bool has_word_of(int peer, Deadline::Clock::time_point since, Deadline::Clock::time_point now);
  [[noreturn]] void throw_gave_up(
      const Request& request, const std::string& detail = {},
      std::optional<Deadline::Clock::time_point> known_since = std::nullopt) const;
  /// Of a call site, for a peer to read: index into the own table of them, and its text in that of
  /// `member` ("" if it is not known).
  std::uint8_t site(const Where& where) noexcept;
  std::string site_of(int member, std::uint8_t site) const;
  /// Rings the doorbell of `rank` of the group / of all others, after a seq_cst store.
  void notify(int rank) noexcept;
  void notify_all() noexcept;

  /// Lets the rank's progress thread step `driver`; see progress.h.
  void add_driver(Driver& driver);
  void remove_driver(Driver& driver) noexcept;
  void wake_driver() noexcept;

  /// Whose programs this rank awaits in an operation of which nothing is known but what the members
  /// show; see judge/deadlock. Nothing: nobody's, or it has a time of its own.
  std::optional<WaitPart> awaits(const Request& request, bool needs_all) const;
  /// The program calls the world: the calling thread does. Whether its waits are to be shown: no
  /// other one has.
  bool note_caller() const noexcept;
  /// For ProgramWait.
  bool show_wait(Deadline::Clock::time_point since, const std::vector<WaitPart>& parts,
                 Deadline::Clock::time_point now) const;
  void take_back_wait() const noexcept;
  /// `has_sent`: whether a rank of another host has yet to read something that this one has sent in
  /// the group, or would send; asks for that. Called by any thread, once a wait has lasted; empty:
  /// no more.
  void watch_sent(std::function<bool()> has_sent);
  bool is_in_world_of(const Membership& other) const noexcept;

  /// Nonzero once the group has failed.
  const std::atomic<std::uint64_t>& abort_word() const noexcept;
  /// Stores the cause if it is the first, tells all members, wakes everybody; the control thread
  /// writes the log line and runs the callbacks.
  void fail(Cause cause) noexcept;
  /// In a handler: the group fails with what was thrown. The culprit is this rank unless that names
  /// others: its system has refused something.
  void fail_with_thrown() noexcept;
  /// A peer was seen in an operation with this seq and another chain: builds the message with both
  /// sides from the board and fails the group. `seen`: what was read, if the board may have moved
  /// on.
  void fail_mismatch(const Request& own, int peer, const Description* seen) noexcept;
  /// In this v-variant `from` sends another number of elements to `to` than that has a count for:
  /// the culprits are both.
  void fail_counts(const Request& request, int from, std::uint64_t sent, int to,
                   std::uint64_t awaited) noexcept;
  /// The backend has given up an operation in which nothing moves: fails the group with kTimeout
  /// and names who has not ended it.
  void fail_stalled(const Request& request) noexcept;
  std::optional<Cause> cause() const;
  /// The last failure of a group of its world that the program of this rank has got and is no
  /// culprit of, with those of its culprits that are members here.
  std::optional<Cause> last_told() const;
  /// Whether `group`, which this rank has not begun to make, has failed since its members and those
  /// of one of `asked` each awaited the other.
  bool was_disputed(GroupId group, std::span<const GroupId> asked) const noexcept;
  /// It has failed, and the program of this rank has not got that yet.
  bool is_untold() const noexcept;
  /// The cause as an Error that names this operation, or the group alone.
  Error error(const Request* request) const;
  /// The same of a call of `close`.
  Error close_error(const Where& where) const;
  /// The group has failed, and this rank asks it for no other one any more.
  void give_up() noexcept;
  /// Throws the cause, as `error` does.
  [[noreturn]] void throw_cause(const Request& request) const;
  /// Called once with the cause, by the control thread; soon, if the group has failed already. The
  /// callback must not block.
  void on_failure(std::function<void(const Error&)> callback);
  /// Goodbye {last seq, chain}, then waits for the others' until the deadline and compares. Throws
  /// the cause of a failed group; kCollectiveMismatch; kTimeout naming who has not left.
  /// `where`: the program's call; without a line it is the destructor.
  void close(std::uint64_t last_seq, std::uint64_t chain, Deadline deadline,
             const Where& where = {});

 private:
  std::shared_ptr<State> state_;
};

}  // namespace tutti::control
