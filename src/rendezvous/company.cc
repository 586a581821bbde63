#include "rendezvous/company.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "net/poller.h"
#include "net/process_info.h"
#include "store/watch.h"

namespace tutti::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPeriod{100};
/// The larger the world, the rarer each rank looks, and at so many of the others: they look, too.
constexpr milliseconds kPeriodPerRank{1};
constexpr std::size_t kLookedAt = 8;

/// For a question beside the deadline, and for all of them behind it. A server that is stopped
/// answers nothing: then only a board shows who dies.
constexpr milliseconds kAside{1000};

/// For the cause of an error that may follow from it. A connection ends a little before the process
/// at its other end can be seen to have ended, and before a rank that gives up has said why: which
/// that rank does only after a patience of its own, if a call of the system has failed there.
constexpr std::chrono::seconds kPatience{1}, kPatienceWithPeers{2};
/// A server finds that a connection has ended within 5 s, by what its kernel asks.
constexpr std::chrono::seconds kOldWill{6};

/// How long to look for what another rank did that such an error may come of. One that says which
/// host somebody was lost on has been judged.
std::chrono::seconds patience_with(const Error& error) noexcept {
  const bool is_judged = !error.context().host.empty();
  if (error.code() == ErrorCode::kPeerLost && !is_judged) return kPatienceWithPeers;
  return error.code() == ErrorCode::kSystem ? kPatience : std::chrono::seconds(0);
}

}  // namespace

std::string encode_failure(const Error& failure) {
  const std::vector<int>& culprits = failure.context().culprits;
  return fmt::format("{} {} {}", static_cast<int>(failure.code()),
                     culprits.empty() ? "-" : fmt::format("{}", fmt::join(culprits, ",")),
                     failure.what());
}

Error decode_failure(const std::string& text, int rank) {
  const auto malformed = [&] {
    return Error(ErrorCode::kInternal, fmt::format("init: a failure '{}'", text.substr(0, 200)));
  };
  const char* const end = text.data() + text.size();
  int code = -1;
  const auto [after_code, problem] = std::from_chars(text.data(), end, code);
  if (problem != std::errc() || code < 0 || code >= kErrorCodeCount) {
    return malformed();
  }
  const std::size_t second = text.find(' ', static_cast<std::size_t>(after_code - text.data()) + 1);
  const bool has_words = second != std::string::npos && text.c_str()[second + 1] != '\0';
  if (after_code == end || !has_words) return malformed();
  ErrorContext context{.op = "init", .rank = rank};
  for (const char* at = after_code + 1; at < text.data() + second; ++at) {
    int culprit = -1;
    const auto [stop, bad] = std::from_chars(at, text.data() + second, culprit);
    if (bad != std::errc()) break;  // "-"
    context.culprits.push_back(culprit);
    at = stop;
  }
  return Error(static_cast<ErrorCode>(code), text.substr(second + 1), std::move(context));
}

Company::Company(std::shared_ptr<Store> store, std::string prefix, int round, Claim own,
                 CompanyOptions options)
    : store_(std::move(store)),
      prefix_(std::move(prefix)),
      round_(round),
      own_(std::move(own)),
      options_(std::move(options)),
      server_(options_.server_pid != 0 ? net::describe_process(options_.server_pid) : ""),
      period_(std::max(kPeriod, options_.world_size * kPeriodPerRank)),
      next_known_(static_cast<std::size_t>(options_.rank)) {}

Company::~Company() {
  if (!has_will_) return;
  try {
    options_.remote->take_back_will(aside());
  } catch (const Error&) {  // the store is gone, and nobody reads there any more
  }
}

std::chrono::nanoseconds Company::most_patience() const {
  static constexpr milliseconds kToTell{200};
  const Clock::time_point now = Clock::now();
  Deadline deadline = options_.deadline;
  const Clock::time_point end = deadline.end(now);
  if (end > now + kPatienceWithPeers) return kPatienceWithPeers;
  return std::max<std::chrono::nanoseconds>(end + kAside - kToTell - now, milliseconds(0));
}

milliseconds Company::aside() const {
  const Clock::time_point now = Clock::now();
  Deadline end = options_.deadline;
  if (!end.expired(now)) return kAside;
  const auto left = std::chrono::ceil<milliseconds>(end.end(now) + kAside - now);
  if (left > milliseconds(0)) return left;
  throw Error(ErrorCode::kTimeout, "init: no time is left to ask the store");
}

std::string Company::own_name() const {
  return options_.is_spread ? describe_with_host(own_) : describe(own_);
}

/// It counts only while this rank holds its number, and before anything else has failed.
void Company::leave_will(Deadline& deadline) {
  if (options_.remote == nullptr) return;
  const Error loss = lost(options_.rank, fmt::format("rank {} ({})", options_.rank, own_name()),
                          options_.remote->is_over_tcp()
                              ? ": its connection to the store where ranks meet has ended"
                              : ""),
              cut = out_of_reach({options_.rank});
  const store::Will will{.key = key(fmt::format("rank/{}", options_.rank)),
                         .value = encode(own_),
                         .absent = {key("failure"), key("verdict")},
                         .text = encode_failure(loss),
                         .silent_text = encode_failure(cut),
                         .changed_text = encode_failure(changed())};
  // The server may take a while to find that the connection before has ended, too.
  const Clock::time_point now = Clock::now();
  Deadline patience =
      Deadline::at(now + (options_.has_come_before
                              ? std::min<std::chrono::nanoseconds>(deadline.left(now), kOldWill)
                              : milliseconds(0)));
  for (;;) {
    try {
      options_.remote->leave_will(will, store::timeout_of(deadline));
      break;
    } catch (const Error& error) {
      const bool is_held = error.code() == ErrorCode::kInvalidArgument;
      if (!is_held || net::pause(milliseconds(20), patience) == net::PollResult::expired) throw;
    }
  }
  has_will_ = true;
}

std::string Company::key(std::string_view what) const {
  return fmt::format("{}/{}", prefix_, what);
}

void Company::enlist(Deadline& deadline) {
  leave_will(deadline);  // before anybody can read for what: it belongs to the first who leaves it
  store_->append(key("roster"), fmt::format("{} {}\n", options_.rank, encode(own_)),
                 store::timeout_of(deadline));
  read_roster(store::timeout_of(deadline));
  for (const Known& known : known_) {
    if (is_dead(known.claim, own_)) past_.insert(known.claim.nonce);
  }
}

void Company::read_roster(milliseconds timeout) {
  const std::string roster = store_->try_get(key("roster"), timeout).value_or("");
  for (std::size_t end = 0; roster_read_ < roster.size(); roster_read_ = end + 1) {
    end = std::min(roster.find('\n', roster_read_), roster.size());
    Known known;
    const char* const line = roster.data() + roster_read_;
    const auto [stop, problem] = std::from_chars(line, roster.data() + end, known.rank);
    if (problem != std::errc() || stop == roster.data() + end) continue;
    known.text.assign(stop + 1, roster.data() + end);
    std::optional<Claim> claim = decode_claim(known.text);
    if (!claim || known.rank == options_.rank) continue;
    known.claim = std::move(*claim);
    known_.push_back(std::move(known));
  }
}

std::string Company::name_of_rank(int rank, const std::string& how) const {
  const auto known = std::find_if(known_.rbegin(), known_.rend(),
                                  [&](const Known& other) { return other.rank == rank; });
  std::string facts =
      known != known_.rend()
          ? (options_.is_spread ? describe_with_host(known->claim) : describe(known->claim))
          : "";
  if (!how.empty()) facts += (facts.empty() ? "" : ", ") + how;
  return facts.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, facts);
}

Error Company::lost(int rank, const std::string& who, std::string_view by_connection) const {
  return Error(ErrorCode::kPeerLost,
               fmt::format("init: {} was lost before the world of {} ranks was complete{}. See why "
                           "{} ended, then start the job again",
                           who, options_.world_size, by_connection,
                           by_connection.empty() ? "it" : "the rank or the connection"),
               {.culprits = {rank}});
}

/// A frame on our connection.
Error Company::changed() const {
  const std::string whose =
      fmt::format("the connection of rank {} ({}) to the store", options_.rank, own_name());
  return Error(ErrorCode::kUnauthenticated, store::changed_error(whose).what(),
               {.culprits = {options_.rank}});
}

Error Company::of_connection(const Error& error) const {
  const bool is_of_it = !options_.server.empty() && error.context().op == "store";
  if (is_of_it && error.code() == ErrorCode::kUnauthenticated) return changed();
  if (!is_of_it || error.code() != ErrorCode::kSystem) return error;
  return Error(
      ErrorCode::kSystem,
      fmt::format("rank {} ({}) has lost its connection to the store where ranks meet, at {}. See "
                  "what has ended it, then start the job again",
                  options_.rank, own_name(), options_.server),
      {.culprits = {options_.rank}});
}

/// In the words of this rank, for whoever reads it.
Error Company::out_of_reach(std::vector<int> culprits) const {
  const std::string other = options_.server.empty()
                                ? "the host of the store where ranks meet"
                                : fmt::format("rank 0's host at {}", options_.server);
  return Error(
      ErrorCode::kPeerLost,
      fmt::format("init: {}, where rank {} ({}) runs, and {} do not reach each other (nothing was "
                  "acknowledged for 2 s): the network or one of the two hosts is down. Start the "
                  "job again when it is up",
                  own_.host, options_.rank, describe(own_), other),
      {.culprits = std::move(culprits)});
}

std::string Company::describe_silence() const {
  return fmt::format(
      "the store does not answer (at {}): the process that serves it is stopped or "
      "overloaded{}",
      options_.place, options_.server.empty() ? "" : ", or its host cannot be reached");
}

std::vector<int> Company::servers() const {
  if (options_.server_pid == 0 && options_.server.empty()) return {};
  return {0};
}

/// What a store says of itself is none of those who call init.
Error Company::in_words_of_init(const Error& error) const {
  if (error.code() == ErrorCode::kUnauthenticated && error.context().op == "store") {
    return changed();
  }
  if (error.code() != ErrorCode::kTimeout || error.context().op != "store") return error;
  return Error(ErrorCode::kTimeout, fmt::format("init: {}", describe_silence()),
               {.op = "init", .rank = options_.rank, .culprits = servers()});
}

std::optional<Error> Company::find_end_of_store(const Error& error) {
  if (options_.remote != nullptr && options_.remote->is_out_of_reach()) {
    return out_of_reach(options_.server.empty() ? std::vector<int>{} : std::vector<int>{0});
  }
  if (error.code() == ErrorCode::kTimeout) return std::nullopt;
  if (error.code() == ErrorCode::kPeerLost && !error.context().culprits.empty()) return error;
  if (!options_.server.empty() && error.code() == ErrorCode::kSystem) {
    Error error_of_store = lost(0, name_of_rank(0, fmt::format("at {}", options_.server)),
                                ": our connection to its store has ended");
    if (has_met_) return error_of_store;
    // Who comes when the world is complete is turned out, and hears no more than that.
    return Error(
        error_of_store.code(),
        fmt::format("{}. Or that world is complete, and nobody joins it any more: then this "
                    "process has the number of a rank that is there",
                    error_of_store.what()),
        error_of_store.context());
  }
  if (options_.server_pid == 0 || options_.server_pid == own_.pid) return std::nullopt;
  if (!net::has_ended(options_.server_pid, 0)) return std::nullopt;
  return lost(0, fmt::format("rank 0 ({})", server_));
}

std::optional<Error> Company::find_failure() try {
  const std::string text = store_->try_get(key("failure"), aside()).value_or("");
  if (text.empty()) return std::nullopt;
  return decode_failure(text, options_.rank);
} catch (const Error& error) {
  return find_end_of_store(error);
}

bool Company::holds_its_rank(const Known& known) {
  const std::string now =
      store_->try_get(key(fmt::format("rank/{}", known.rank)), aside()).value_or("");
  return now == known.text;
}

std::optional<Error> Company::find_death() try {
  if (options_.ended) {
    for (const Ended& ended : options_.ended()) {
      if (ended.rank != options_.rank) return lost(ended.rank, name_of_rank(ended.rank, ended.how));
    }
  }
  read_roster(aside());
  for (std::size_t i = 0; i < std::min(kLookedAt, known_.size()); ++i) {
    const Known& known = known_[next_known_++ % known_.size()];
    if (is_past(known.claim) || !is_dead(known.claim, own_)) continue;
    if (holds_its_rank(known)) return lost(known.rank, name_of_rank(known.rank, ""));
    past_.insert(known.claim.nonce);  // it was refused, or has ended before its claim
  }
  return std::nullopt;
} catch (const Error& error) {
  return find_end_of_store(error);
}

/// As many as any of them says that they are.
bool Company::are_all_here() try {
  read_roster(aside());
  std::set<int> ranks = {options_.rank};
  int world_size = options_.world_size;
  for (const Known& known : known_) {
    ranks.insert(known.rank);
    world_size = std::max(world_size, known.claim.world_size);
  }
  return static_cast<int>(ranks.size()) >= world_size;
} catch (const Error&) {  // nobody can ask there any more
  return true;
}

void Company::look() {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + period_;
  if (options_.tend) options_.tend();
  if (const std::optional<Error> failure = find_failure()) throw *failure;
  if (const std::optional<Error> death = find_death()) throw fail(*death);
}

Error Company::fail(const Error& failure) {
  try {
    const std::string first =
        store_->compare_set(key("failure"), "", encode_failure(failure), aside());
    store_->compare_set(key("verdict"), "", first, aside());  // wakes those who wait for it
    return decode_failure(first, options_.rank);
  } catch (const Error& error) {
    // The agent has told everybody itself; or the store is gone, and with it all who could be told.
    return find_end_of_store(error).value_or(failure);
  }
}

Error Company::blame(const Error& error) {
  const Error own = in_words_of_init(error);
  std::optional<Error> first;
  Deadline patience =
      Deadline::after(std::min<std::chrono::nanoseconds>(patience_with(error), most_patience()));
  milliseconds pause{10};
  const bool has_cause = error.code() == ErrorCode::kPeerLost ||
                         error.code() == ErrorCode::kSystem || error.code() == ErrorCode::kTimeout;
  while (has_cause) {
    first = find_failure();
    if (!first) first = find_death();
    if (first || net::pause(pause, patience) == net::PollResult::expired) break;
    pause = std::min(2 * pause, kPeriod);
  }
  if (!has_claim_) return first.value_or(own);
  if (first) {
    first = fail(*first);
  } else if (!own.context().culprits.empty()) {
    fail(own);
  } else {
    // Who runs out of time is not the one who is late.
    std::vector<int> culprits;
    if (error.code() != ErrorCode::kTimeout) culprits.push_back(options_.rank);
    fail(Error(error.code(),
               fmt::format("init: rank {} ({}) could not join the world: {}", options_.rank,
                           own_name(), own.what()),
               {.culprits = std::move(culprits)}));
  }
  // A death is told at once, and time that is over is over for those on their way, too.
  const bool is_urgent =
      error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kTimeout;
  if (options_.linger) options_.linger(!is_urgent && !are_all_here());
  return first.value_or(own);
}

}  // namespace tutti::rendezvous
