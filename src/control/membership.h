// One rank's place in one group: its line on the board, its peers' lines, its abort word, its cause.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "base/wait.h"
#include "control/board.h"
#include "tutti/backend.h"

namespace tutti::control {

/// Everything that lets an operation wait, be watched, fail and be blamed. Made by the World for each
/// group; the group, its backend and its Works use it. Thread-safe unless said otherwise.
class Membership {
 public:
  ~Membership();

  int rank() const noexcept;
  int group_size() const noexcept;
  GroupId id() const noexcept;

  /// Publishes the operation on the own line (under 20 ns; no system call).
  void enter(const Request& request) noexcept;
  /// Marks a collective as completed.
  void leave(const Request& request) noexcept;

  /// For waits in this group: the abort word, the own doorbell, the policy.
  const Waiter& waiter() const noexcept;
  /// Deadlines, "who is awaited" lines and asking on the board for a disagreement: the slow path of
  /// one operation's wait for `awaited` (a rank of the group, or -1: all).
  Patience::Verdict ask(const Request& request, int awaited, Deadline::Clock::time_point now,
                        Deadline::Clock::time_point* next);
  /// Rings the doorbell of `rank` of the group / of all others, after a seq_cst store.
  void notify(int rank) noexcept;
  void notify_all() noexcept;

  /// Nonzero once the group has failed.
  const std::atomic<std::uint64_t>& abort_word() const noexcept;
  /// Stores the cause if it is the first, tells all members, wakes everybody, runs the callbacks.
  void fail(Cause cause) noexcept;
  /// A peer was seen in an operation with this seq and another chain: builds the message with both
  /// sides from the board and fails the group.
  void fail_mismatch(const Request& own, int peer, const Description* seen) noexcept;
  std::optional<Cause> cause() const;
  /// Throws the cause as an Error that names this operation.
  [[noreturn]] void throw_cause(const Request& request) const;
  void on_failure(std::function<void(const Error&)> callback);
  /// Goodbye {last seq, chain}, then waits for the others' until the deadline and compares.
  void close(std::uint64_t last_seq, std::uint64_t chain, Deadline deadline);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The Patience of one wait of one operation; lives on the stack.
class OpPatience final : public Patience {
 public:
  OpPatience(Membership& membership, const Request& request, int awaited) noexcept
      : membership_(membership), request_(request), awaited_(awaited) {}
  Verdict ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) override {
    return membership_.ask(request_, awaited_, now, next);
  }

 private:
  Membership& membership_;
  const Request& request_;
  int awaited_;
};

}  // namespace tutti::control
