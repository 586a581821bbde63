#include "rendezvous/served.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "net/listen.h"
#include "net/poller.h"
#include "net/process_info.h"

namespace tutti::rendezvous {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

/// A notice that nobody answers for during such a time is of a job that has died; where its process
/// can be looked at, that is known at once.
constexpr std::chrono::seconds kUnanswered{5};
/// Who holds the port may be the same rank of the job before, about to end.
constexpr std::chrono::seconds kBusyTime{2};
/// Of coming again: a rank 0 that is stopped for a moment, or a lost packet.
constexpr std::chrono::seconds kUnheard{4};
/// Nobody listens any more. A host that is there says so at once.
constexpr milliseconds kTurnedAway{500}, kAtOnce{200};

/// Without a port of its range rank 0 takes another one: ranks of its host come without, and nobody
/// waits in vain for a rank 0 that gave up here.
net::Fd listen_by_file(const Place& place) {
  try {
    return net::listen_in_range(place.tcp.front(), place.ports);
  } catch (const Error& error) {
    if (place.ports.first == 0) throw;
    log(LogLevel::warn, fmt::format("rank 0 serves {} at a port outside of its range: {}",
                                    place.description, error.what()));
  }
  return net::listen_in_range(place.tcp.front(), {});
}

[[noreturn]] void refuse_place(const Identity& identity, const Place& place,
                               const net::ListenResult& result) {
  std::string remedy = "rank 0 must run where it points";
  if (result.own == net::Holding::for_good) {
    remedy = fmt::format(
        "it serves a store there (make_tcp_store). Give that store to all ranks "
        "(InitOptions::store), or another {}",
        place.mark);
  } else if (result.status == net::ListenResult::Status::taken) {
    remedy = identity.launcher == Launcher::torchrun
                 ? "torchrun itself listens at MASTER_PORT: give all ranks another place by "
                   "init_method tcp://HOST:PORT"
                 : fmt::format("give all ranks another {}", place.mark);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: {}: {}: {}", init_of(identity), place.given,
                          net::describe_failure(result), remedy));
}

net::Fd listen_at(const Identity& identity, const Place& place, Deadline& deadline) {
  if (!place.file.empty()) return listen_by_file(place);
  const auto look_at_own = [&](const net::TcpAddress& address) {
    return store::look_at_own(address, place.security, deadline);
  };
  net::ListenResult result = net::listen_at_one_of(place.tcp, kBusyTime, deadline, look_at_own);
  if (result.status == net::ListenResult::Status::listening) return std::move(result.socket);
  refuse_place(identity, place, result);
}

/// Some ranks of a job have numbers, and others are to be given theirs: two would have the same.
Error numbered_otherwise(bool is_server_auto, const std::string& place, const net::Peer& peer) {
  const auto numbers = [](bool is_auto) {
    return is_auto ? "is given its number in the order of arrival (rank=auto)"
                   : "has a number of its own";
  };
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("init: {}, which serves {}, {}, and {} {}: give all ranks rank=auto, or "
                           "each its own number",
                           net::describe_process(::getpid()), place, numbers(is_server_auto),
                           describe(peer), numbers(!is_server_auto)));
}

store::Admit admission(const Identity& identity, const Place& place, const store::Hello& own) {
  return [own, is_auto = identity.is_rank_auto, description = place.description, mark = place.mark](
             const store::Hello& other, const net::Peer& peer) -> std::optional<Error> {
    if ((own.job ^ other.job) == kInOrderOfArrival) {
      return numbered_otherwise(is_auto, description, peer);
    }
    if (other.job != own.job) {
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{} is taken by another job: its rank 0 is {}, and {} belongs to "
                      "another job. Give each job its own {}",
                      description, net::describe_process(::getpid()), describe(peer), mark));
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
  store::ServerOptions options{.listener = std::move(*listener),
                               .security = place.security,
                               .admit = admission(identity, place, hello)};
  Served served;
  if (!place.tcp.empty()) {
    options.tcp_listener = listen_at(identity, place, deadline);
    served.tcp = {net::TcpAddress::local(options.tcp_listener.get())};
  }
  served.server = std::make_unique<store::Server>(std::move(options));
  served.store = store::connect_store(place.address, hello, deadline).store;  // on this host
  return served;
}

Served served_by(store::Connected connected, const store::Hello& hello,
                 const std::vector<net::TcpAddress>& tcp) {
  return Served{.server = nullptr,
                .store = std::move(connected.store),
                .remote = connected.remote,
                .peer = std::move(connected.server),
                .server_name = std::move(connected.server_name),
                .hello = hello,
                .tcp = tcp};
}

/// Who serves it, at the local socket or over TCP; empty: nobody now, and *why says what was met.
std::optional<Served> come(const Place& place, const store::Hello& hello, Deadline& deadline,
                           std::string* why) {
  try {
    if (place.may_be_here) {
      if (auto connected = store::try_connect_store(place.address, hello, deadline)) {
        return served_by(std::move(*connected), hello, place.tcp);
      }
      *why = fmt::format("nobody serves {}", place.description);
    }
    if (place.tcp.empty()) return std::nullopt;
    auto connected = store::try_connect_tcp_store(place.tcp, hello, place.security, deadline, why);
    if (connected) return served_by(std::move(*connected), hello, place.tcp);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;
    *why = error.what();
  }
  return std::nullopt;
}

/// Rank 0 cannot serve at an address of another host.
bool is_elsewhere(const Identity& identity, const Place& place) {
  return identity.rank == 0 && !identity.is_rank_auto && !place.tcp.empty() && !place.may_be_here;
}

/// Another process may have this number, and be where the address points: then both are named, to
/// the others as well, which wait for the rank that this one should have been.
std::optional<Served> come_as_second(const Identity& identity, const Place& place,
                                     const store::Hello& hello, Deadline& deadline) {
  const Clock::time_point now = Clock::now();
  Deadline patience =
      Deadline::at(now + std::min<std::chrono::nanoseconds>(deadline.left(now), kBusyTime));
  try {
    do {
      std::string why;
      if (auto served = come(place, hello, patience, &why)) return served;
    } while (net::pause(milliseconds(20), patience) == net::PollResult::ready);
  } catch (const Error&) {  // what answers there is no store of this job
  }
  refuse_place(identity, place, {.address = place.tcp.front()});
}

/// Serves at a place that all ranks know, or comes there.
std::optional<Served> try_place(const Identity& identity, const Place& place,
                                const store::Hello& hello, Deadline& deadline, std::string* why) {
  if (is_elsewhere(identity, place)) return come_as_second(identity, place, hello, deadline);
  // Of ranks without a number whoever is first on the host of the address serves.
  if (identity.is_rank_auto ? place.may_be_here : identity.rank == 0) {
    if (std::optional<Served> served = serve(identity, place, hello, deadline)) return served;
  }
  return come(place, hello, deadline, why);
}

/// Comes to where a notice says; rank 0 posts its own where there is none of a living job.
class ByNotice {
 public:
  ByNotice(const Identity& identity, const Place& place, const MeetingOptions& options,
           const store::Hello& hello)
      : identity_(identity),
        place_(place),
        options_(options),
        hello_(hello),
        file_(place.file, options.name),
        own_(claim_of_this_process(identity.world_size)) {}

  std::optional<Served> try_once(Deadline& deadline, std::string* why) try {
    const std::string text = file_.read();
    if (text != last_) first_seen_ = Clock::now();
    last_ = text;
    const std::optional<Notice> seen = decode_notice(text);
    *why = fmt::format("it has left no notice in {}", file_.path());
    if (seen) {
      if (std::optional<Served> served = come_to(*seen, deadline, why)) return served;
    }
    const bool is_free =
        !seen || is_dead(seen->claim, own_) || Clock::now() - first_seen_ >= kUnanswered;
    if (identity_.rank != 0 || !is_free) return std::nullopt;
    return post(text, deadline);
  } catch (const Error& error) {  // somebody has the file locked
    if (error.code() != ErrorCode::kTimeout) throw;
    *why = error.what();
    return std::nullopt;
  }

 private:
  /// Nobody is let in who has the notice of another job.
  store::Hello hello_of(const Notice& notice) const {
    store::Hello hello = hello_;
    hello.world = hash_combine(hello.world, hash_text(notice.claim.nonce));
    return hello;
  }

  std::optional<Served> come_to(const Notice& notice, Deadline& deadline, std::string* why) const {
    std::string met;
    try {
      if (auto served =
              come(place_of(place_, notice, options_), hello_of(notice), deadline, &met)) {
        return served;
      }
    } catch (const Error& error) {  // another program has the port by now
      if (error.code() != ErrorCode::kUnauthenticated) throw;
      met = error.what();
    }
    *why = fmt::format("the notice in {} is of {}, who does not answer: {}", file_.path(),
                       describe_with_host(notice.claim), met);
    return std::nullopt;
  }

  /// Empty: another rank 0 was faster.
  std::optional<Served> post(const std::string& before, Deadline& deadline) const {
    Notice own{own_, std::nullopt};
    if (!place_.tcp.empty()) own.tcp = place_.tcp.front();
    std::optional<Served> served =
        serve(identity_, place_of(place_, own, options_), hello_of(own), deadline);
    if (!served) return std::nullopt;
    if (!served->tcp.empty()) own.tcp = served->tcp.front();
    const std::string text = encode(own);
    if (file_.replace(before, text) != text) return std::nullopt;
    served->posted = std::make_unique<Posted>(file_, text);
    return served;
  }

  const Identity& identity_;
  const Place& place_;
  const MeetingOptions& options_;
  const store::Hello hello_;
  const NoticeFile file_;
  const Claim own_;
  std::string last_;  // notice
  Clock::time_point first_seen_ = {};
};

[[noreturn]] void throw_nobody(const Identity& identity, const Place& place,
                               const std::string& name, const std::string& missing) {
  ErrorContext context;
  context.op = "init";
  context.rank = identity.rank;
  context.culprits = {0};
  const std::string remedy =
      place.tcp.empty() ? ""
                        : " One that was given 127.0.0.1 or another address of its host alone "
                          "serves nobody on other hosts. If it has ended already, its own output "
                          "says why.";
  throw Error(
      ErrorCode::kTimeout,
      fmt::format("{}: {}. Was it started, with this {}{}?{} If its world is complete "
                  "already, nobody joins it any more: a rank cannot be started again "
                  "alone.{}{}",
                  init_of(identity), missing, place.tcp.empty() ? place.mark : "address and port",
                  name.empty() ? "" : fmt::format(" and this name (\"{}\")", name), remedy,
                  place.advice.empty() ? "" : " ", place.advice),
      context);
}

}  // namespace

void Served::linger(bool are_more_to_come) const {
  Deadline patience = Deadline::after(std::chrono::seconds(are_more_to_come ? 2 : 1));
  while ((are_more_to_come || server->client_count() > 1) &&
         net::pause(milliseconds(1), patience) == net::PollResult::ready) {
  }
}

void Served::close_doors(std::map<std::string, std::string> claims) {
  if (posted) posted->take_down();
  server->stop_listening(std::move(claims));
}

std::optional<Served> come_again(Served* cut, const net::Security& security,
                                 Deadline& deadline) try {
  cut->store.reset();  // before it is served anew: what was left with the old connection is void
  cut->remote = nullptr;
  const Clock::time_point first = Clock::now();
  Deadline patience =
      Deadline::at(first + std::min<std::chrono::nanoseconds>(deadline.left(first), kUnheard));
  std::optional<Clock::time_point> turned_away;
  for (Clock::time_point now = first; !patience.expired(now); now = Clock::now()) {
    std::string why;
    auto connected = store::try_connect_tcp_store(cut->tcp, cut->hello, security, patience, &why);
    if (connected) {
      if (connected->server_name != cut->server_name) return std::nullopt;
      return served_by(std::move(*connected), cut->hello, cut->tcp);
    }
    const bool has_answered = Clock::now() - now < kAtOnce;
    if (!has_answered) {
      turned_away.reset();
    } else if (!turned_away) {
      turned_away = now;
    } else if (now - *turned_away >= kTurnedAway) {
      return std::nullopt;
    }
    net::pause(milliseconds(20), patience);
  }
  return std::nullopt;
} catch (const Error&) {  // another job's server refuses us
  return std::nullopt;
}

Served find_store(const Identity& identity, const Place& place, const MeetingOptions& options,
                  const store::Hello& hello, Deadline& deadline, WaitingLines& lines) {
  std::optional<ByNotice> by_notice;
  if (!place.file.empty()) by_notice.emplace(identity, place, options, hello);
  milliseconds backoff(1);
  for (std::string why;;) {
    std::optional<Served> served = by_notice ? by_notice->try_once(deadline, &why)
                                             : try_place(identity, place, hello, deadline, &why);
    if (served) return std::move(*served);
    const auto missing = [&] {
      return fmt::format("rank 0 of {} is missing ({})", identity.world_size, why);
    };
    if (net::pause(backoff, deadline) == net::PollResult::expired) {
      throw_nobody(identity, place, options.name, missing());
    }
    lines.look(Clock::now(), missing);
    backoff = std::min(backoff * 2, milliseconds(50));
  }
}

}  // namespace tutti::rendezvous
