// Starting ranks from inside a program.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "tutti/types.h"

namespace tutti {

/// What a spawned rank is made of.
enum class Start : std::uint8_t {
  automatic,  ///< fork where this process has one thread and no CUDA, else exec
  /// A copy of this process, from the call on: cheap, and the function may use all that the program
  /// has made. Refused where this process has more threads than one, as after an OpenMP region or
  /// while it has a world: the copy would lack them, with whatever they had locked. Refused where
  /// it uses CUDA, which does not work in a copy.
  fork,
  /// A new process of this program with the same arguments. Its main runs as here, up to this call:
  /// the same line of the source, with a function of the same type, as often called. There it runs
  /// the function and exits; calls of spawn before that do nothing in it. A program that does not
  /// come there again, because it asks a user or the time, cannot start ranks so. A callback of
  /// on_terminate that main has set on the way does not hear in a rank: the function sets its own.
  exec,
  thread,  ///< of this process; cannot be killed
};

TUTTI_API std::string_view name_of(Start start) noexcept;  ///< "exec"

struct SpawnOptions {
  Start start = Start::automatic;
  /// What ranks have from SIGTERM on, when one of them has failed, until SIGKILL.
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
  /// For a rank by exec to come to the call.
  std::chrono::nanoseconds start_timeout = std::chrono::minutes(5);
};

/// The ranks that a call of spawn has started.
///
/// Lifetime  The destructor ends what still runs, as end() does, and returns when it is gone: at
///           the latest after the grace and 10 s. A failure that nobody joined is logged.
/// Threads   One thread at a time. A copy of the process made by fork owns nothing: what it does
///           with the object does nothing.
class TUTTI_API Spawned {
 public:
  Spawned() noexcept;
  Spawned(Spawned&& other) noexcept;
  Spawned& operator=(Spawned&& other) noexcept;
  ~Spawned();

  /// Returns once all ranks have ended well. Where one fails, the others get SIGTERM, and SIGKILL
  /// after the grace; once all are gone it throws what the first one failed with. Ranks that still
  /// run after `timeout` (empty: for ever) are ended and named.
  ///
  /// Errors  Of the function: its own code and text, with the rank in context().culprits.
  ///         kPeerLost: a rank threw something else, returned another number than 0, ended with an
  ///         exit code or by a signal; its text says which. kTimeout: who still ran, and in what.
  ///         kInvalidArgument: a rank by exec ended by itself before the call. kAborted: end()
  ///         was called. kSystem: a rank could not be started. Another call throws the same.
  void join(Timeout timeout = {});
  /// The same, and false where some still run after `timeout`: nothing happens to them.
  bool join_for(std::chrono::nanoseconds timeout);
  /// Ends the ranks: SIGTERM, and SIGKILL after the grace; for threads their groups are aborted.
  /// Returns at once: join() waits for them, and throws.
  void end();

  int world_size() const noexcept;
  Start start() const noexcept;  ///< fork, exec or thread
  /// Of the process that is that rank; 0: it is not started yet. Threads have this process's.
  pid_t pid(int rank) const;
  /// Empty while it runs. As a shell shows it: 128 + signal; of a thread 1 where it has failed.
  std::optional<int> exit_code(int rank) const;

  class Impl;
  explicit Spawned(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

namespace detail {

using RankFunction = std::function<int(int rank)>;
/// Two functions of other types differ in it, also two lambdas in a line.
template <class Function>
std::string_view type_name() noexcept {
#if defined(__cpp_rtti)
  return typeid(Function).name();
#else
  return __PRETTY_FUNCTION__;
#endif
}
TUTTI_API Spawned spawn_ranks(int world_size, RankFunction function, const SpawnOptions& options,
                              const Where& where, std::string_view type);

}  // namespace detail

/// Starts `world_size` ranks on this host and returns; `function(rank)` runs in each of them. There
/// `init_process_group()` without options makes them a world.
///
///     auto ranks = tutti::spawn(4, [](int rank) {
///       auto world = tutti::init_process_group();
///       float x = rank;
///       world.all_reduce(x);
///     });
///     ranks.join();   // throws what the first rank to fail has failed with
///
/// `function` may return nothing or an int: another one than 0 is a failure, and the exit code.
/// Only failures come back; exit(0) inside the function is none. Processes find RANK, WORLD_SIZE,
/// LOCAL_RANK and LOCAL_WORLD_SIZE, and an empty stdin; what a launcher around this process had set
/// is gone. Several spawns, one after the other or at once, never meet.
///
/// Whatever ends this process ends its ranks, and what they have started: nothing is left. A helper
/// of a rank ends with the last rank. Only where both of the small processes below are killed at
/// once, helpers that took sessions of their own stay, though no rank.
///
/// Signals   SIGTERM or SIGINT to this process, where it has not said what they do and its ranks
///           are processes, ends the ranks as end() does, and then this process by the same signal:
///           a rank has the grace to save in, told by an on_terminate that the function calls. A
///           second SIGINT ends all at once. A program with an on_terminate or a handler of its own
///           calls end() itself. Ctrl-Z stops this process alone, and its ranks go on.
/// Cost      A process by fork takes a few ms, one by exec what the program needs to come here.
///           Two small processes beside them see to it that none is left. They are copies of this
///           one: until the ranks have ended, memory that it had and writes to is taken twice.
/// Threads   By fork: this process has one thread. Until they have been joined the ranks take two
///           threads of it. Those that are threads call one and the same `function` at once.
/// Errors    kInvalidArgument: fewer ranks than 1, or more than the 256 of a host; a call inside a
///           rank, whoever started it; fork where that is refused. kSystem: no memory, processes or
///           descriptors are left.
template <class Function>
  requires std::invocable<Function&, int>
[[nodiscard]] Spawned spawn(int world_size, Function function, const SpawnOptions& options = {},
                            Where where = Where::current()) {
  using Result = std::invoke_result_t<Function&, int>;
  static_assert(std::copy_constructible<Function>,
                "tutti: the function of a rank is copied: hold what can only be moved in a "
                "std::shared_ptr");
  static_assert(std::is_void_v<Result> || std::is_same_v<Result, int>,
                "tutti: what a rank returns does not come back: return nothing, or an exit code");
  if constexpr (!std::copy_constructible<Function>) {
    return Spawned();  // refused above
  } else if constexpr (std::is_void_v<Result>) {
    return detail::spawn_ranks(
        world_size,
        [function = std::move(function)](int rank) mutable {
          function(rank);
          return 0;
        },
        options, where, detail::type_name<Function>());
  } else {
    return detail::spawn_ranks(world_size, std::move(function), options, where,
                               detail::type_name<Function>());
  }
}

/// Not as mp.spawn: further arguments are bound in a lambda.
template <class Function, class... Arguments>
  requires(!std::invocable<Function&, int>)
Spawned spawn(int, Function, const Arguments&...) {
  static_assert(sizeof(Function) == 0,
                "tutti: the function of a rank takes its rank alone: bind other arguments in a "
                "lambda, spawn(n, [=](int rank) { train(rank, epochs); })");
  return Spawned();
}

}  // namespace tutti
