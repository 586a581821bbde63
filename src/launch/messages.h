// What a job tells a host, a host its job, and a keeper its host.
//
// The *job* decides and says; a *host* runs some of its ranks (local_ranks.h). They share no
// memory: *orders* go one way and *reports* come back, as frames in a stream of bytes, so that a
// host may as well be at the other end of a socket. The *keeper* of a host takes some of the orders
// and tells in *notes* what becomes of processes, one packet each.
//
// Ranks are those of the job. Who decodes takes bytes from outside: a message is decoded whole or
// not at all, and takes no more memory than a few times its bytes; which ranks there are is for its
// reader to check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "agent/outcome.h"
#include "base/config.h"
#include "launch/binding.h"
#include "launch/lines.h"

namespace tutti::launch {

// ---- Orders

/// Everything but the ranks themselves: finds the program, opens the door and the pipes. Comes
/// first, once; is answered by Prepared or Refused.
struct Prepare {
  std::vector<std::string> command;  ///< program and its arguments
  Environment environment;           ///< of the job; each rank gets it with its own variables
  std::vector<int> ranks;            ///< of this host, ascending
  std::vector<int> prefix_columns;   ///< by rank of this host: what stands before its lines
  int world_size = 0;
  int host_index = 0, host_count = 1;
  std::string folder;  ///< where ranks start; empty: where the host's process is
  std::string master_address;
  int master_port = 0;
  BindTo bind_to = BindTo::none;
  MapBy map_by = MapBy::slot;
  std::string run_id;     ///< of the job
  std::string role;       ///< of all ranks
  int restart_count = 0;  ///< how often the ranks have been started before
  int max_restarts = 0;
  int gpus_per_rank = 0;  ///< 0: all ranks see all

  static constexpr auto fields() {
    return std::tuple(&Prepare::command, &Prepare::environment, &Prepare::ranks,
                      &Prepare::prefix_columns, &Prepare::world_size, &Prepare::host_index,
                      &Prepare::host_count, &Prepare::folder, &Prepare::master_address,
                      &Prepare::master_port, &Prepare::bind_to, &Prepare::map_by, &Prepare::run_id,
                      &Prepare::role, &Prepare::restart_count, &Prepare::max_restarts,
                      &Prepare::gpus_per_rank);
  }
};

/// Starts the ranks.
struct Start {
  static constexpr auto fields() { return std::tuple(); }
};

/// SIGKILL for all is seen to: a keeper that does not obey is gone round.
struct Signal {
  int rank = -1;  ///< -1: all of the host
  int number = 0;

  static constexpr auto fields() { return std::tuple(&Signal::rank, &Signal::number); }
};

/// Whether what the ranks print stays in their pipes for now.
struct Hold {
  bool is_on = false;

  static constexpr auto fields() { return std::tuple(&Hold::is_on); }
};

/// Nobody reads it any more: these ranks learn it the usual way, by SIGPIPE.
struct CloseStream {
  Stream stream = Stream::out;
  std::vector<int> ranks;  ///< those of other hosts are no matter

  static constexpr auto fields() { return std::tuple(&CloseStream::stream, &CloseStream::ranks); }
};

/// All ranks have ended: nothing of the job may stay. Is answered by Done.
struct End {
  static constexpr auto fields() { return std::tuple(); }
};

using Order = std::variant<Prepare, Start, Signal, Hold, CloseStream, End>;

// ---- Notes, which a host hands on but for what it makes of them

/// The keeper is there.
struct KeeperIs {
  int pid = -1;

  static constexpr auto fields() { return std::tuple(&KeeperIs::pid); }
};

struct Started {
  int rank = 0;
  int pid = -1;

  static constexpr auto fields() { return std::tuple(&Started::rank, &Started::pid); }
};

/// Comes from the child itself, before its exit; or there is no child.
struct ExecFailed {
  int rank = 0;
  int error = 0;
  bool is_forked = true;

  static constexpr auto fields() {
    return std::tuple(&ExecFailed::rank, &ExecFailed::error, &ExecFailed::is_forked);
  }
};

struct Stopped {
  int rank = 0;
  int by_signal = 0;

  static constexpr auto fields() { return std::tuple(&Stopped::rank, &Stopped::by_signal); }
};

struct Continued {
  int rank = 0;

  static constexpr auto fields() { return std::tuple(&Continued::rank); }
};

struct Exited {
  int rank = 0;
  int wait_status = 0;

  static constexpr auto fields() { return std::tuple(&Exited::rank, &Exited::wait_status); }
};

/// Comes from the guard: there is no process for the keeper. Nothing follows.
struct NoKeeper {
  int error = 0;

  static constexpr auto fields() { return std::tuple(&NoKeeper::error); }
};

using Note = std::variant<KeeperIs, Started, ExecFailed, Stopped, Continued, Exited, NoKeeper>;

// ---- Reports

struct Prepared {
  std::string host;
  std::string openmp_notice;        ///< what the ranks get for OpenMP; empty: nothing
  std::vector<std::string> places;  ///< by rank of the host: "rank 0 -> host a -> cores 0-1"

  static constexpr auto fields() {
    return std::tuple(&Prepared::host, &Prepared::openmp_notice, &Prepared::places);
  }
};

/// Also after Prepared: no rank has been started.
struct Refused {
  ErrorCode code = ErrorCode::kInternal;
  std::string text;

  static constexpr auto fields() { return std::tuple(&Refused::code, &Refused::text); }
};

/// A rank of a world of all ranks of the job has come to its store.
struct Joined {
  int rank = 0;
  bool has_openmp = false;  ///< asked of the first of a host alone: one program runs on it

  static constexpr auto fields() { return std::tuple(&Joined::rank, &Joined::has_openmp); }
};

/// Its world is complete.
struct Met {
  int rank = 0;

  static constexpr auto fields() { return std::tuple(&Met::rank); }
};

struct Printed {
  int rank = 0;
  Stream stream = Stream::out;
  std::string bytes;

  static constexpr auto fields() {
    return std::tuple(&Printed::rank, &Printed::stream, &Printed::bytes);
  }
};

/// The end of a stream.
struct PrintedAll {
  int rank = 0;
  Stream stream = Stream::out;

  static constexpr auto fields() { return std::tuple(&PrintedAll::rank, &PrintedAll::stream); }
};

/// A line for people.
struct Complaint {
  std::optional<int> about = {};  ///< a rank; else the host
  std::string text;

  static constexpr auto fields() { return std::tuple(&Complaint::about, &Complaint::text); }
};

/// What is known of its end where it was; whether it is the job's doing the host does not know.
struct Ended {
  agent::RankExit exit;

  static constexpr auto fields() { return std::tuple(&Ended::exit); }
};

/// Or its guard, which ends it. Its ranks have died with it; their ends follow.
struct KeeperDied {
  int pid = -1;
  int guard = -1;

  static constexpr auto fields() { return std::tuple(&KeeperDied::pid, &KeeperDied::guard); }
};

/// Nothing more comes.
struct Done {
  int left_behind = 0;  ///< a guard that does not end, below which processes may live; 0: none

  static constexpr auto fields() { return std::tuple(&Done::left_behind); }
};

using Report = std::variant<KeeperIs, Started, Stopped, Continued, Prepared, Refused, Joined, Met,
                            Printed, PrintedAll, Complaint, Ended, KeeperDied, Done>;

// ---- Bytes

/// More than a system lets a process have as arguments and environment together.
inline constexpr std::size_t kMaxOrderBytes = std::size_t{8} << 20;
inline constexpr std::size_t kMaxReportBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxNoteBytes = 64;

/// The rank that a report is about, if it is about one.
std::optional<int> rank_in(const Report& report);

/// A frame (net/frame.h).
std::string encode(const Order& order);
std::string encode(const Note& note);
std::string encode(const Report& report);

/// The message of a frame that came whole; nothing: it is none.
std::optional<Order> decode_order(std::uint32_t type, std::string_view body);
std::optional<Note> decode_note(std::uint32_t type, std::string_view body);
std::optional<Report> decode_report(std::uint32_t type, std::string_view body);

}  // namespace tutti::launch
