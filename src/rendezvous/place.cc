#include "rendezvous/place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/hash.h"
#include "base/log.h"
#include "net/poller.h"
#include "net/resolve.h"
#include "rendezvous/pmi.h"

namespace tutti::rendezvous {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

/// Where a name begins to exist with its host, the others' look-ups may come before it does.
constexpr std::chrono::seconds kNameTime{30};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

/// What the ranks were told.
struct Told {
  std::string host;
  int port = 0;
  std::string address_name;  ///< "MASTER_ADDR=10.0.0.1"
  std::string port_name;     ///< "MASTER_PORT"
};

Told told_by(const Identity& identity, const InitMethod& method) {
  if (method.kind == InitMethod::Kind::tcp) {
    return {method.host, method.port, fmt::format("the host of init_method, {}", method.host),
            "port in init_method"};
  }
  return {identity.master_addr, identity.master_port,
          fmt::format("MASTER_ADDR={}", identity.master_addr), "MASTER_PORT"};
}

/// As init_method takes it.
std::string tcp_text(const Told& told) {
  const bool is_v6 = told.host.find(':') != told.host.npos;
  return fmt::format("tcp://{}{}{}:{}", is_v6 ? "[" : "", told.host, is_v6 ? "]" : "", told.port);
}

/// An MPI and srun say how many of their ranks are on this host; by hand nobody does.
bool is_on_several_hosts(const Identity& identity) {
  const bool says_it = identity.launcher == Launcher::open_mpi ||
                       identity.launcher == Launcher::mpich || identity.launcher == Launcher::slurm;
  return says_it && !identity.is_one_host;
}

/// What to do where there is no MASTER_PORT.
std::string way_to_meet(const Identity& identity, const Told& told) {
  if (!told.host.empty()) {
    return fmt::format("Set one MASTER_PORT that is free at MASTER_ADDR={} for all ranks",
                       told.host);
  }
  if (!is_on_several_hosts(identity)) {
    return fmt::format(
        "Start the job with `tutti run -n {}`, or set MASTER_ADDR=127.0.0.1 and one free "
        "MASTER_PORT for all ranks",
        identity.world_size);
  }
  const std::string nodes = identity.nodes.empty() ? "" : fmt::format(" ({})", identity.nodes);
  return fmt::format(
      "They are on several hosts{}: set MASTER_ADDR to an address of rank 0's host that the "
      "others reach, and one MASTER_PORT that is free there, for all ranks",
      nodes);
}

void check_told(const Identity& identity, const Told& told) {
  if (told.port == 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("MASTER_PORT is not set: rank {} of {} ({}) does not know where to meet "
                    "the others. {}",
                    identity.rank, identity.world_size, identity.source,
                    way_to_meet(identity, told)));
  }
  if (identity.is_one_host || !told.host.empty()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("MASTER_ADDR is not set (rank {} of {}, {}): give 127.0.0.1 if all ranks "
                  "are on this host, else an address of rank 0's host that the others reach",
                  identity.rank, identity.world_size, identity.source));
}

std::string local_address(std::string_view kind, const MeetingOptions& options) {
  std::string address = fmt::format("@tutti-{}-{}", ::geteuid(), kind);
  if (!options.name.empty()) address += fmt::format("-{:016x}", hash_text(options.name));
  return address;
}

/// Looks the name up; all but rank 0, whose own name must be known to it, try again for a while.
std::vector<net::TcpAddress> look_up(const Identity& identity, const Told& told, Deadline& deadline,
                                     WaitingLines& lines) {
  Deadline patience = Deadline::after(kNameTime);
  patience.start(Clock::now());
  for (;;) {
    try {
      return net::resolve(told.host, told.port, deadline);
    } catch (const Error& error) {
      const auto why = [&] { return fmt::format("{}: {}", told.address_name, error.what()); };
      const bool is_over = identity.rank == 0 || error.code() == ErrorCode::kTimeout ||
                           patience.expired(Clock::now());
      if (is_over || net::pause(milliseconds(200), deadline) == net::PollResult::expired) {
        throw Error(error.code(), fmt::format("{}: {}", init_of(identity), why()));
      }
      lines.look(Clock::now(), why);
    }
  }
}

/// Adds the place's TCP side, unless all that the name means is this host.
void look_beyond(const Identity& identity, const Told& told, Deadline& deadline,
                 WaitingLines& lines, Place* place) {
  std::vector<std::string> own;
  for (net::TcpAddress& address : look_up(identity, told, deadline, lines)) {
    if (address.is_wildcard()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: {} is all addresses of a host: give the one at "
                              "which the other ranks reach rank 0, such as one of {}",
                              init_of(identity), told.address_name, net::addresses_of_this_host()));
    }
    if (address.is_loopback()) {
      own.push_back(address.host());
    } else {
      place->tcp.push_back(address);
    }
  }
  if (place->tcp.empty()) {
    place->advice = fmt::format(
        "{} means {} here (see /etc/hosts), which is this host alone: if ranks are on other hosts, "
        "give an address of the network.",
        told.address_name, fmt::join(own, ", "));
    return;
  }
  place->may_be_here = std::any_of(place->tcp.begin(), place->tcp.end(), net::is_of_this_host);
  place->description = told.port_name == "MASTER_PORT"
                           ? fmt::format("MASTER_ADDR={} MASTER_PORT={}", told.host, told.port)
                           : tcp_text(told);
  place->advice = fmt::format(
      "Ranks on other hosts must reach {}: does a firewall let the port through, and is {} an "
      "address of the network that all of them share?",
      place->tcp[0].text(), told.host);
}

Place place_by_port(const Identity& identity, const MeetingOptions& options, const Told& told,
                    Deadline& deadline, WaitingLines& lines) {
  check_told(identity, told);
  Place place;
  place.address = local_address(std::to_string(told.port), options);
  place.description = told.port_name == "MASTER_PORT"
                          ? fmt::format("MASTER_PORT {} ({})", told.port, place.address)
                          : fmt::format("{} ({})", tcp_text(told), place.address);
  place.given = told.address_name;
  place.mark = told.port_name;
  place.is_open = identity.job.empty();
  place.job = identity.job.empty() ? 0 : hash_text(identity.job);
  if (identity.is_one_host) return place;
  if (is_loopback(told.host)) {
    place.advice = fmt::format(
        "{} is this host alone: if ranks are on other hosts, give all of them an address of rank "
        "0's host.",
        told.address_name);
    return place;
  }
  look_beyond(identity, told, deadline, lines, &place);
  if (place.tcp.empty()) return place;
  if (identity.launcher == Launcher::open_mpi) {  // its names of the job differ between hosts
    place.is_open = true;
    place.job = 0;
  }
  if (options.before_tcp) place.security = options.before_tcp(place.description);
  return place;
}

/// Where rank 0 serves a job of a file. Why a choice cannot be followed is told to all once they
/// have met, by the backend that follows it: nobody waits in vain for a rank 0 that gave up here.
std::optional<net::TcpAddress> address_by_file(const net::AddressChoice& choice) {
  const std::vector<net::TcpAddress> own = net::own_addresses();
  const auto usual = own.empty() ? std::nullopt : std::optional(own.front());
  try {
    return choice.of(usual);
  } catch (const Error& error) {
    log(LogLevel::info,
        fmt::format("rank 0 meets the others at its usual address: {}", error.what()));
    return usual;
  }
}

Place place_by_file(const Identity& identity, const MeetingOptions& options,
                    const InitMethod& method) {
  Place place;
  place.file = method.path;
  place.description = fmt::format("file://{}", method.path);
  place.given = fmt::format("init_method {}", place.description);
  place.mark = "path in init_method";
  // Open MPI's names of the job differ between hosts.
  const bool is_named = !identity.job.empty() && identity.launcher != Launcher::open_mpi;
  place.is_open = !is_named;
  place.job = is_named ? hash_text(identity.job) : 0;
  if (identity.is_one_host) return place;
  if (identity.rank == 0) {
    if (const auto address = address_by_file(options.address)) place.tcp.push_back(*address);
  }
  place.ports = options.ports;
  place.advice = fmt::format(
      "Do all hosts see one file at {} (of a file system that they share), and does a firewall let "
      "them reach rank 0's host?",
      method.path);
  if (options.before_tcp) place.security = options.before_tcp(place.description);
  return place;
}

/// The place of a job that its launcher tells from all others of this host.
Place place_of_job(std::uint64_t job, std::string_view kind, const Identity& identity,
                   const MeetingOptions& options) {
  Place place;
  place.address = local_address(fmt::format("{}-{:016x}", kind, job), options);
  place.description = fmt::format("{}'s job ({})", name_of(identity.launcher), place.address);
  place.job = job;
  return place;
}

}  // namespace

Place place_of(const Place& in_file, const Notice& notice, const MeetingOptions& options) {
  Place place = in_file;
  place.address = local_address("file-" + notice.claim.nonce, options);
  place.tcp.clear();
  if (notice.tcp) place.tcp.push_back(*notice.tcp);
  return place;
}

Place find_place(const Identity& identity, const MeetingOptions& options, const InitMethod& method,
                 Deadline& deadline, WaitingLines& lines) {
  if (method.kind == InitMethod::Kind::file) return place_by_file(identity, options, method);
  const Told told = told_by(identity, method);
  if (method.kind == InitMethod::Kind::tcp || !identity.is_one_host) {
    return place_by_port(identity, options, told, deadline, lines);
  }
  if (identity.launcher == Launcher::open_mpi && !identity.job.empty()) {
    return place_of_job(hash_text(identity.job), "ompi", identity, options);
  }
  if (identity.launcher == Launcher::slurm && !identity.job.empty()) {
    return place_of_job(hash_text(identity.job), "slurm", identity, options);
  }
  if (identity.launcher == Launcher::mpich && identity.pmi_fd >= 0) {
    try {
      return place_of_job(hash_text(pmi_job(identity.pmi_fd)), "pmi", identity, options);
    } catch (const Error&) {  // a wrapper has closed it: then a port will do, if there is one
      if (identity.master_port == 0) throw;
    }
  }
  return place_by_port(identity, options, told, deadline, lines);
}

}  // namespace tutti::rendezvous
