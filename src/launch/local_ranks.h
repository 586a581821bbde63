// The ranks of a job on this host: their processes, their pipes, their board and their door.
//
// It obeys orders and tells reports (messages.h), both as bytes, and decides nothing about the job:
// who is to blame, how long somebody may take and what people read is the job's part. It sees to it
// that nothing of the job stays on the host, whoever has to be gone round.
//
// It has no thread and never blocks: its owner polls what it *watches* and lets it *step* when one
// of these is ready or its next event has come.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/door.h"
#include "launch/error_file.h"
#include "launch/keeper.h"
#include "launch/messages.h"
#include "launch/placement.h"
#include "net/frame.h"
#include "net/poller.h"
#include "net/port_holder.h"

namespace tutti::launch {

/// How the ranks of a host would be started.
struct RankPlan {
  std::string path;  ///< of the program
  Placement placement;
  std::vector<ThreadDefaults> thread_defaults;  ///< by local rank
};
/// "rank 0 -> host a -> cores 0-1 (shared by 2 ranks) -> GPUs 0,1".
std::string describe(const Place& place);
/// Throws Error(kInvalidArgument): the program cannot be started.
RankPlan plan_ranks(const Prepare& order);

class LocalRanks {
 public:
  using Clock = Deadline::Clock;

  /// `input`: what the first of the ranks reads. Make it, and give it the order Prepare, while the
  /// process has one thread.
  LocalRanks(const Inherited& inherited, net::Fd input);
  /// Of ranks that could not be started nothing stays, either. Waits for it for 10 s at most.
  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  /// Takes bytes of orders.
  ///
  /// Errors  kInternal: they are none.
  void obey(std::string_view orders);
  /// The bytes of all reports since it was last asked.
  std::string take_reports() { return std::exchange(reports_, {}); }
  /// What the store behind the door takes; after Prepared, once.
  store::ServerOptions open_door() { return door_->open(); }

  /// Appends what to poll, always the same number.
  void watch(std::vector<net::Watch>& watches) const;
  /// The answers to those it has appended, in their order.
  void step(std::span<const net::Watch> watched);
  /// When to step at the latest. A rank that enters its world rings nowhere: each step looks.
  Clock::time_point next_event() const;

 private:
  struct Rank {
    int number = 0;                                               ///< in the job
    bool has_joined = false, has_met = false, has_ended = false;  ///< as told
    net::Fd pipes[2];                                             ///< by Stream
    ErrorFile error_file;
  };
  /// From the order End on.
  enum class Ending { none, lingers, awaits_guard, done };

  void take(const Order& order);
  void prepare(const Prepare& order);
  std::vector<RankCommand> commands(const Prepare& order, const RankPlan& plan,
                                    std::vector<net::Fd>& rank_ends);
  void take_master_port(int wanted);
  void signal(const Signal& order);
  void close_stream(const CloseStream& order);
  void to_keeper(const Order& order) noexcept;

  void read_notes();
  void take_note(const Note& note);
  void rank_ended(int number, int wait_status);
  void keeper_is_gone();
  void look_at_guard();
  void await_guard();
  bool is_all_gone();
  void guard_is_gone(int left_behind);
  void look_at_door();
  bool read_pipe(Rank& rank, Stream stream);
  void act_on_time(Clock::time_point now);
  void go_on_ending(Clock::time_point now);
  void drain(Clock::time_point until);
  bool is_any_open() const;
  Rank* find(int number) noexcept;
  void tell(const Report& report) { reports_ += encode(report); }

  const Inherited inherited_;
  net::Fd input_;
  net::FrameDecoder orders_{kMaxOrderBytes};
  std::string reports_;
  std::string program_;  ///< as it was given
  std::string path_;     ///< where it was found
  std::vector<Rank> ranks_;
  std::optional<agent::Door> door_;
  bool has_first_ = false;  ///< somebody has joined, as told
  net::HeldPort master_port_;
  net::Fd children_;  ///< hears of what becomes of the guard
  Keeper keeper_;
  bool keeper_lives_ = false, guard_lives_ = false;
  bool adopts_ = false;  ///< what guard and keeper leave becomes ours
  pid_t keeper_pid_ = -1;
  bool is_held_ = false;
  Ending ending_ = Ending::none;
  bool awaits_guard_ = false;
  int left_behind_ = 0;
  Clock::time_point linger_until_ = Clock::time_point::max();
  Clock::time_point takeover_at_ = Clock::time_point::max();  ///< from a keeper that does not kill
  Clock::time_point alone_until_ = Clock::time_point::max();  ///< a keeper whose guard has ended
  Clock::time_point guard_until_ = Clock::time_point::max();
};

}  // namespace tutti::launch
