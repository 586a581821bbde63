#include "rendezvous/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "net/poller.h"
#include "rendezvous/init_method.h"
#include "rendezvous/place.h"
#include "rendezvous/round.h"
#include "rendezvous/served.h"
#include "store/client.h"
#include "store/watch.h"

namespace tutti::rendezvous {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

constexpr int kMostCuts = 3;

Meeting below_round(std::shared_ptr<Store> base, const MeetingOptions& options,
                    std::shared_ptr<Company> company, std::string place) {
  Meeting meeting;
  meeting.round = company->round();
  meeting.rank = company->rank();
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
  const RoundOptions round_options{.own = claim_of_this_process(identity.world_size),
                                   .place = place,
                                   .name = options.name,
                                   .first_line_after = options.first_line_after,
                                   .lack = options.lack,
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
                fmt::format("nobody listens at TUTTI_AGENT={}: the `tutti run` or the program that "
                            "started this process has ended, or is in another network namespace",
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

void check_size(const Identity& identity) {
  if (identity.world_size <= kMaxRanksOfHost) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("init (rank {}): a world of {} ranks ({}): a host holds at most {}",
                          identity.rank, identity.world_size, identity.source, kMaxRanksOfHost));
}

/// The program's store may be served to several hosts, too.
CompanyOptions company_in(const Identity& identity, Store& store) {
  CompanyOptions company = company_of(identity);
  auto* const remote = dynamic_cast<store::RemoteStore*>(&store);
  if (remote == nullptr || !remote->is_over_tcp()) return company;
  company.remote = remote;
  company.is_spread = true;
  return company;
}

/// The number of who comes without one: who serves the store is rank 0, the others follow in the
/// order of arrival. The same for the same claim.
int take_number(const RoundOptions& round, int world_size, const Served& served,
                Deadline& deadline) {
  if (served.server) return 0;
  const std::string key = round_prefix(round.name, 1) + "/numbers";
  const std::string own = round.own.nonce + '\n';
  served.store->append(key, own, store::timeout_of(deadline));
  const std::string all = served.store->get(key, store::timeout_of(deadline));
  std::set<std::string_view> before;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\n', at), all.size() - 1) + 1;
    const std::string_view nonce = std::string_view(all).substr(at, end - at);
    if (nonce == own) break;
    before.insert(nonce);
    at = end;
  }
  const auto number = static_cast<int>(before.size()) + 1;
  if (number < world_size) return number;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("init: {} processes have come to {} before this one, and its world has {} "
                  "ranks: start no more than that, or give each job a port of its own",
                  number, round.place, world_size));
}

/// From which other hosts that come to the place are spoken with.
std::string own_address(const Served& served) {
  for (const net::TcpAddress& address : served.tcp)
    if (const auto own = net::address_toward(address)) return own->host();
  return {};
}

/// Of all ranks of a round that is complete. One by one: a call has a bound on its keys.
std::map<std::string, std::string> claims_in(Store& store, const std::string& prefix, int size,
                                             Deadline& deadline) {
  std::map<std::string, std::string> claims;
  for (int rank = 0; rank < size; ++rank) {
    const std::string key = fmt::format("{}/rank/{}", prefix, rank);
    if (auto claim = store.try_get(key, store::timeout_of(deadline)))
      claims.emplace(key, *std::move(claim));
  }
  return claims;
}

/// Who meets at a store of rank 0, as one comes to it.
CompanyOptions company_at(const Identity& identity, Served& served) {
  CompanyOptions company = company_of(identity);
  company.is_spread = !served.tcp.empty();
  if (served.server) {
    if (served.posted) company.tend = [&served] { served.posted->look(); };
    company.linger = [&served](bool are_more_to_come) { served.linger(are_more_to_come); };
    return company;
  }
  company.server_pid = served.peer.pid;
  company.server = served.peer.address;
  if (!company.server.empty()) company.remote = served.remote;
  return company;
}

/// From a store over TCP: rank 0 may live, and know nothing of this rank yet. What a round has
/// failed with is no such end.
bool was_cut_off(const Served& served, const Error& error) {
  const store::RemoteStore* const remote = served.remote;
  const bool may_be_an_end = error.code() == ErrorCode::kPeerLost ||
                             error.code() == ErrorCode::kSystem ||
                             error.code() == ErrorCode::kUnauthenticated;
  return may_be_an_end && remote != nullptr && remote->is_over_tcp() && remote->has_ended() &&
         !remote->is_out_of_reach();
}

/// Joins the round at the store of rank 0. A rank that is cut off from a store that lives comes
/// there again: it may not have claimed its number yet, and then nobody would be told.
std::shared_ptr<Company> join_at(std::shared_ptr<Served>* served, Identity who, const Place& place,
                                 RoundOptions& options, Deadline& deadline) {
  for (int cuts = 0;; ++cuts) {
    try {
      if (who.is_rank_auto) who.rank = take_number(options, who.world_size, **served, deadline);
      options.company = company_at(who, **served);
      options.company.has_come_before = cuts > 0;
      return join_round((*served)->store, who, options, deadline);
    } catch (const Error& error) {
      if (cuts == kMostCuts || !was_cut_off(**served, error)) throw;
      auto again = come_again(served->get(), place.security, deadline);
      if (!again) throw;
      *served = std::make_shared<Served>(std::move(*again));
    }
    log(LogLevel::warn, fmt::format("the connection to the store where ranks meet ({}) had ended, "
                                    "and was made anew",
                                    options.place));
  }
}

Meeting meet_at_rank_0(const Identity& identity, const MeetingOptions& options,
                       const InitMethod& method, store::Hello hello, Deadline& deadline) {
  WaitingLines lines(options.first_line_after, Clock::now());
  const Place place = find_place(identity, options, method, deadline, lines);
  if (place.tcp.empty() && place.file.empty()) check_size(identity);
  hello.job = identity.is_rank_auto ? place.job ^ kInOrderOfArrival : place.job;
  hello.world = options.name.empty() ? 0 : hash_text(options.name);
  RoundOptions round_options{.own = claim_of_this_process(identity.world_size),
                             .place = place.description,
                             .name = options.name,
                             .is_open = place.is_open,
                             .is_once = true,
                             .first_line_after = options.first_line_after,
                             .mark = place.mark,
                             .advice = place.advice,
                             .lack = options.lack,
                             .company = {}};
  for (;;) {
    auto served =
        std::make_shared<Served>(find_store(identity, place, options, hello, deadline, lines));
    if (served->server && !served->tcp.empty() && options.served_over_tcp)
      options.served_over_tcp(place.description);
    std::shared_ptr<Company> company = join_at(&served, identity, place, round_options, deadline);
    if (!company) {  // we came between the completion of another world and the end of its listener
      if (net::pause(milliseconds(1), deadline) != net::PollResult::expired) continue;
      throw Error(ErrorCode::kTimeout, fmt::format("init (rank {}): {} still serves another world",
                                                   identity.rank, place.description));
    }
    // Before anybody can finish init: whoever comes to this place from now on begins a new world.
    if (served->server) {
      const bool may_have_strangers = !served->tcp.empty();  // a local socket is the user's own
      served->close_doors(may_have_strangers
                              ? claims_in(*served->store,
                                          round_prefix(options.name, company->round()),
                                          identity.world_size, deadline)
                              : std::map<std::string, std::string>());
    }
    Store* const store = served->store.get();
    std::string address = own_address(*served);
    Meeting meeting = below_round(std::shared_ptr<Store>(std::move(served), store), options,
                                  std::move(company), place.description);
    meeting.address = std::move(address);
    return meeting;
  }
}

Meeting meet_before(Deadline& deadline, const Identity& identity, const MeetingOptions& options) {
  const InitMethod method = parse_init_method(options.init_method);
  if (options.store != nullptr) {
    return meet_in_store(identity, options, options.store, "the program's store",
                         company_in(identity, *options.store), deadline);
  }
  const store::Hello hello{.rank = identity.rank, .world_size = identity.world_size};
  const bool is_env = method.kind == InitMethod::Kind::env;
  if (is_env && !identity.agent.empty()) {
    check_size(identity);
    return meet_at_agent(identity, options, hello, deadline);
  }
  if (identity.world_size == 1) {
    return meet_in_store(identity, options, make_memory_store(), "this process",
                         company_of(identity), deadline);
  }
  return meet_at_rank_0(identity, options, method, hello, deadline);
}

}  // namespace

Meeting meet(const Identity& identity, const MeetingOptions& options) {
  Deadline deadline = Deadline::after(options.timeout);
  deadline.start(Clock::now());
  Meeting meeting = meet_before(deadline, identity, options);
  meeting.deadline = deadline;
  return meeting;
}

}  // namespace tutti::rendezvous
