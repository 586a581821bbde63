#include "rendezvous/meeting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "net/poller.h"
#include "net/process_info.h"
#include "rendezvous/pmi.h"
#include "rendezvous/round.h"
#include "store/client.h"
#include "store/server.h"

namespace tutti::rendezvous {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

/// A store that keeps alive what it is served by.
struct Served {
  std::unique_ptr<store::Server> server;  // ends after the client below
  std::shared_ptr<Store> store;
  int server_pid = 0;

  /// Returns once the others have gone, or have had a second to read why we go.
  void linger() const {
    Deadline patience = Deadline::after(std::chrono::seconds(1));
    while (server->client_count() > 1 &&
           net::pause(milliseconds(1), patience) == net::PollResult::ready) {
    }
  }
};

/// The local address of a job whose rank 0 serves the store.
struct Place {
  std::string address;
  std::string description;
  bool is_open = false;  // nothing but a port tells two jobs of this user apart
  std::uint64_t job = 0;
};

/// An MPI says how many of its ranks are on this host; by hand nobody does.
bool is_on_several_hosts(const Identity& identity) {
  const bool is_mpi =
      identity.launcher == Launcher::open_mpi || identity.launcher == Launcher::mpich;
  return is_mpi && !identity.is_one_host;
}

Place place_by_port(const Identity& identity, const MeetingOptions& options) {
  if (identity.master_port == 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("MASTER_PORT is not set: rank {} of {} ({}) does not know where to meet "
                    "the others. {}",
                    identity.rank, identity.world_size, identity.source,
                    is_on_several_hosts(identity)
                        ? "They are on several hosts, which are not in this version: start all of "
                          "them on one"
                        : fmt::format("Start the job with `tutti run -n {}`, or set MASTER_ADDR="
                                      "127.0.0.1 and one free MASTER_PORT for all ranks",
                                      identity.world_size)));
  }
  if (!identity.is_one_host && identity.master_addr.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("MASTER_ADDR is not set (rank {} of {}, {}): give 127.0.0.1 if all ranks "
                    "are on this host",
                    identity.rank, identity.world_size, identity.source));
  }
  if (!identity.is_one_host && !is_loopback(identity.master_addr)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("MASTER_ADDR={} may be another host, and several hosts are not in this "
                            "version. If all ranks are on this host, set MASTER_ADDR=127.0.0.1, or "
                            "LOCAL_WORLD_SIZE={} on every rank",
                            identity.master_addr, identity.world_size));
  }
  Place place;
  place.address = fmt::format("@tutti-{}-{}", ::geteuid(), identity.master_port);
  if (!options.name.empty()) place.address += fmt::format("-{:016x}", hash_text(options.name));
  place.description = fmt::format("MASTER_PORT {} ({})", identity.master_port, place.address);
  place.is_open = identity.job.empty();
  place.job = identity.job.empty() ? 0 : hash_text(identity.job);
  return place;
}

/// The place of a job that its launcher tells from all others of this host.
Place place_of_job(std::uint64_t job, std::string_view kind, const Identity& identity,
                   const MeetingOptions& options) {
  Place place;
  place.address = fmt::format("@tutti-{}-{}-{:016x}", ::geteuid(), kind, job);
  if (!options.name.empty()) place.address += fmt::format("-{:016x}", hash_text(options.name));
  place.description = fmt::format("{}'s job ({})", name_of(identity.launcher), place.address);
  place.job = job;
  return place;
}

/// Where a launcher's own job is the place, else by port.
Place find_place(const Identity& identity, const MeetingOptions& options) {
  if (identity.is_one_host && identity.launcher == Launcher::open_mpi && !identity.job.empty()) {
    return place_of_job(hash_text(identity.job), "ompi", identity, options);
  }
  if (identity.is_one_host && identity.launcher == Launcher::mpich && identity.pmi_fd >= 0) {
    try {
      return place_of_job(hash_text(pmi_job(identity.pmi_fd)), "pmi", identity, options);
    } catch (const Error&) {  // a wrapper has closed it: then a port will do, if there is one
      if (identity.master_port == 0) throw;
    }
  }
  return place_by_port(identity, options);
}

/// Rank 0 serves the store and is its own client; empty if the address is taken.
std::optional<Served> serve(const Place& place, const store::Hello& hello, Deadline deadline) {
  std::optional<net::Fd> listener = net::try_listen(place.address);
  if (!listener) return std::nullopt;
  const auto admit = [job = place.job, description = place.description](
                         const store::Hello& other, const net::Peer& peer) -> std::optional<Error> {
    if (other.job == job) return std::nullopt;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} is taken by another job: its rank 0 is {}, and {} belongs to "
                             "another job. Give each job its own MASTER_PORT",
                             description, net::describe_process(::getpid()),
                             net::describe_process(peer.pid)));
  };
  Served served;
  served.server = std::make_unique<store::Server>(
      store::ServerOptions{.listener = std::move(*listener), .admit = admit});
  served.store = store::connect_store(place.address, hello, deadline).store;
  return served;
}

/// Serves or connects, trying until somebody listens. What a dying server leaves us with (kSystem)
/// is as good as nobody.
Served find_store(const Identity& identity, const Place& place, const store::Hello& hello,
                  Deadline& deadline, WaitingLines& lines) {
  milliseconds backoff(1);
  for (;;) {
    if (identity.rank == 0) {
      if (std::optional<Served> served = serve(place, hello, deadline)) return std::move(*served);
    }
    try {
      if (auto connected = store::try_connect_store(place.address, hello, deadline)) {
        return {nullptr, connected->store, connected->server.pid};
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kSystem) throw;
    }
    const auto missing = [&] {
      return fmt::format("rank 0 of {} is missing (nobody serves {})", identity.world_size,
                         place.description);
    };
    if (net::pause(backoff, deadline) == net::PollResult::expired) {
      ErrorContext context;
      context.op = "init";
      context.rank = identity.rank;
      context.culprits = {0};
      throw Error(ErrorCode::kTimeout,
                  fmt::format("init (rank {}): {}. Was it started, with this MASTER_PORT?",
                              identity.rank, missing()),
                  context);
    }
    lines.look(Clock::now(), missing);
    backoff = std::min(backoff * 2, milliseconds(50));
  }
}

Meeting below_round(std::shared_ptr<Store> base, const MeetingOptions& options,
                    std::shared_ptr<Company> company, std::string place) {
  Meeting meeting;
  meeting.round = company->round();
  meeting.store = make_prefix_store(std::move(base), round_prefix(options.name, meeting.round));
  meeting.company = std::move(company);
  meeting.place = std::move(place);
  return meeting;
}

CompanyOptions company_of(const Identity& identity) {
  return {.rank = identity.rank, .world_size = identity.world_size};
}

Meeting meet_in_store(const Identity& identity, const MeetingOptions& options,
                      std::shared_ptr<Store> base, std::string place, CompanyOptions company,
                      Deadline& deadline) {
  const RoundOptions round_options{.place = place,
                                   .name = options.name,
                                   .first_line_after = options.first_line_after,
                                   .company = std::move(company)};
  std::shared_ptr<Company> met = join_round(base, identity, round_options, deadline);
  return below_round(std::move(base), options, std::move(met), std::move(place));
}

Meeting meet_at_agent(const Identity& identity, const MeetingOptions& options,
                      const store::Hello& hello, Deadline& deadline) {
  const std::string place = fmt::format("the agent at {}", identity.agent);
  std::optional<store::Connected> connected =
      store::try_connect_store(identity.agent, hello, deadline);
  if (!connected) {
    throw Error(ErrorCode::kSystem,
                fmt::format("nobody listens at TUTTI_AGENT={}: the `tutti run` that started this "
                            "process has ended, or is in another network namespace",
                            identity.agent));
  }
  // The agent itself says who is missing in the first world; later ones are ours to report.
  MeetingOptions patient = options;
  patient.first_line_after =
      std::max<std::chrono::nanoseconds>(options.first_line_after, std::chrono::minutes(1));
  CompanyOptions company = company_of(identity);
  const auto board = std::make_shared<net::Fd>(std::move(connected->descriptor));
  if (options.ended) company.ended = [board, ended = options.ended] { return ended(*board); };
  Meeting meeting = meet_in_store(identity, patient, connected->store, place, company, deadline);
  meeting.board = board;
  return meeting;
}

Meeting meet_at_rank_0(const Identity& identity, const MeetingOptions& options, const Place& place,
                       store::Hello hello, Deadline& deadline) {
  hello.job = place.job;
  WaitingLines lines(options.first_line_after, Clock::now());
  RoundOptions round_options{.place = place.description,
                             .name = options.name,
                             .is_open = place.is_open,
                             .is_once = true,
                             .first_line_after = options.first_line_after,
                             .company = company_of(identity)};
  for (;;) {
    auto served = std::make_shared<Served>(find_store(identity, place, hello, deadline, lines));
    round_options.company.linger = nullptr;  // of the store that a pass before had served
    if (served->server) {
      round_options.company.linger = [served = served.get()] { served->linger(); };
    }
    round_options.company.server_pid = served->server ? 0 : served->server_pid;
    std::shared_ptr<Company> company = join_round(served->store, identity, round_options, deadline);
    if (!company) {  // we came between the completion of another world and the end of its listener
      if (net::pause(milliseconds(1), deadline) != net::PollResult::expired) continue;
      throw Error(ErrorCode::kTimeout, fmt::format("init (rank {}): {} still serves another world",
                                                   identity.rank, place.description));
    }
    // Before anybody can finish init: whoever comes to this place from now on begins a new world.
    if (served->server) served->server->stop_listening();
    Store* const store = served->store.get();
    return below_round(std::shared_ptr<Store>(std::move(served), store), options,
                       std::move(company), place.description);
  }
}

}  // namespace

Meeting meet(const Identity& identity, const MeetingOptions& options) {
  Deadline deadline = Deadline::after(options.timeout);
  deadline.start(Clock::now());
  if (options.init_method != "env://" && !options.init_method.empty()) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("init_method '{}' is not in this version: use env:// (RANK, WORLD_SIZE, "
                    "MASTER_ADDR, MASTER_PORT), or give InitOptions::store",
                    options.init_method));
  }
  if (options.store != nullptr) {
    return meet_in_store(identity, options, options.store, "the program's store",
                         company_of(identity), deadline);
  }
  if (identity.world_size > kMaxRanksOfHost) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format(
            "init (rank {}): a world of {} ranks ({}): a host holds at most {}, and several hosts "
            "are not in this version",
            identity.rank, identity.world_size, identity.source, kMaxRanksOfHost));
  }
  const store::Hello hello{.rank = identity.rank, .world_size = identity.world_size};
  if (!identity.agent.empty()) return meet_at_agent(identity, options, hello, deadline);
  if (identity.world_size == 1) {
    return meet_in_store(identity, options, make_memory_store(), "this process",
                         company_of(identity), deadline);
  }
  const Place place = find_place(identity, options);
  return meet_at_rank_0(identity, options, place, hello, deadline);
}

}  // namespace tutti::rendezvous
