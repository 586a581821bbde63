#include "rendezvous/served.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "net/listen.h"
#include "net/poller.h"
#include "net/process_info.h"

namespace tutti::rendezvous {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

/// Who holds the port may be the same rank of the job before, about to end.
constexpr std::chrono::seconds kBusyTime{2};

net::Fd listen_at(const Identity& identity, const Place& place, Deadline& deadline) {
  net::ListenResult result = net::listen_at_one_of(place.tcp, kBusyTime, deadline);
  if (result.status == net::ListenResult::Status::listening) return std::move(result.socket);
  std::string remedy = "rank 0 must run where it points";
  if (result.status == net::ListenResult::Status::taken) {
    remedy = identity.launcher == Launcher::torchrun
                 ? "torchrun itself listens at MASTER_PORT: give all ranks another place by "
                   "init_method tcp://HOST:PORT"
                 : fmt::format("give all ranks another {}", place.port_name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: {}: {}: {}", init_of(identity), place.given,
                          net::describe_failure(result), remedy));
}

store::Admit admission(const Place& place, const store::Hello& own) {
  return [own, description = place.description](const store::Hello& other,
                                                const net::Peer& peer) -> std::optional<Error> {
    if (other.job != own.job) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{} is taken by another job: its rank 0 is {}, and {} belongs to "
                               "another job. Give each job its own MASTER_PORT",
                               description, net::describe_process(::getpid()), describe(peer)));
    }
    if (other.world == own.world) return std::nullopt;
    return Error(ErrorCode::kSystem,  // comes again
                 fmt::format("a world of another name is meeting at {}", description));
  };
}

/// Rank 0 serves the store and is its own client; empty if the address is taken.
std::optional<Served> serve(const Identity& identity, const Place& place, const store::Hello& hello,
                            Deadline& deadline) {
  std::optional<net::Fd> listener = net::try_listen(place.address);
  if (!listener) return std::nullopt;
  store::ServerOptions options{.listener = std::move(*listener), .admit = admission(place, hello)};
  if (!place.tcp.empty()) options.tcp_listener = listen_at(identity, place, deadline);
  Served served;
  served.server = std::make_unique<store::Server>(std::move(options));
  served.store = store::connect_store(place.address, hello, deadline).store;  // on this host
  return served;
}

/// Who serves it, at the local socket or over TCP; empty: nobody now, and *why says what was met.
std::optional<store::Connected> come(const Place& place, const store::Hello& hello,
                                     Deadline& deadline, std::string* why) {
  try {
    if (place.may_be_here) {
      if (auto connected = store::try_connect_store(place.address, hello, deadline)) {
        return connected;
      }
      *why = fmt::format("nobody serves {}", place.description);
    }
    if (place.tcp.empty()) return std::nullopt;
    return store::try_connect_tcp_store(place.tcp, hello, deadline, why);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;
    *why = error.what();
    return std::nullopt;
  }
}

[[noreturn]] void throw_nobody(const Identity& identity, const Place& place,
                               const std::string& missing) {
  ErrorContext context;
  context.op = "init";
  context.rank = identity.rank;
  context.culprits = {0};
  const std::string remedy =
      place.tcp.empty() ? "Was it started, with this MASTER_PORT?"
                        : fmt::format(
                              "Was it started, with this address and port? One that was "
                              "given 127.0.0.1 or another address of its host alone serves "
                              "nobody on other hosts.");
  throw Error(ErrorCode::kTimeout,
              fmt::format("{}: {}. {}{}{}", init_of(identity), missing, remedy,
                          place.advice.empty() ? "" : " ", place.advice),
              context);
}

}  // namespace

void Served::linger() const {
  Deadline patience = Deadline::after(std::chrono::seconds(1));
  while (server->client_count() > 1 &&
         net::pause(milliseconds(1), patience) == net::PollResult::ready) {
  }
}

Served find_store(const Identity& identity, const Place& place, const store::Hello& hello,
                  Deadline& deadline, WaitingLines& lines) {
  milliseconds backoff(1);
  for (std::string why;;) {
    // Of ranks without a number whoever is first on the host of the address serves.
    if (identity.is_rank_auto ? place.may_be_here : identity.rank == 0) {
      if (std::optional<Served> served = serve(identity, place, hello, deadline)) {
        return std::move(*served);
      }
    }
    if (auto connected = come(place, hello, deadline, &why)) {
      return {nullptr, std::move(connected->store), connected->remote,
              std::move(connected->server)};
    }
    const auto missing = [&] {
      return fmt::format("rank 0 of {} is missing ({})", identity.world_size, why);
    };
    if (net::pause(backoff, deadline) == net::PollResult::expired) {
      throw_nobody(identity, place, missing());
    }
    lines.look(Clock::now(), missing);
    backoff = std::min(backoff * 2, milliseconds(50));
  }
}

}  // namespace tutti::rendezvous
