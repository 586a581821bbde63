#include "rendezvous/round.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <vector>

#include "base/log.h"
#include "base/rank_list.h"
#include "store/session.h"
#include "store/watch.h"

namespace tutti::rendezvous {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;
using store::timeout_of;

constexpr const char* kOk = "ok";
constexpr std::size_t kMostReasons = 8;  // why ranks are missing, in one text
constexpr milliseconds kSlice{100};      // of the wait for the verdict, between two looks

void check_verdict(const std::string& verdict, int rank) {
  if (verdict != kOk) throw decode_failure(verdict, rank);
}

class Round {
 public:
  Round(Store& store, const Identity& identity, const RoundOptions& options, Deadline& deadline,
        Company& company)
      : store_(store),
        identity_(identity),
        options_(options),
        deadline_(deadline),
        company_(company),
        prefix_(round_prefix(options.name, company.round())),
        own_(company.own()),
        own_text_(encode(own_)) {}

  enum class Entry : std::uint8_t { in, over };
  /// Claims the rank; throws if somebody else has it.
  Entry enter();
  void await_verdict(WaitingLines& lines);

 private:
  std::string key(std::string_view what) const { return fmt::format("{}/{}", prefix_, what); }
  std::string rank_key(int rank) const { return fmt::format("{}/rank/{}", prefix_, rank); }
  std::optional<Claim> claim_of(int rank) {
    const std::optional<std::string> text = store_.try_get(rank_key(rank), timeout_of(deadline_));
    return text ? decode_claim(*text) : std::nullopt;
  }
  bool is_here(const std::optional<Claim>& claim) const;
  void note_twice(const Claim& other);
  [[noreturn]] void refuse_twice(const Claim& other);
  void compare_sizes();
  void judge();
  std::optional<Error> find_mixture();
  std::vector<int> missing();
  std::string describe_missing(const std::vector<int>& ranks);
  struct Waiting {
    std::string text;           ///< what for
    std::vector<int> missing;   ///< ranks that have not come
    std::vector<int> culprits;  ///< these, or who does not answer
  };
  Waiting waiting();
  [[noreturn]] void throw_timeout();

  Store& store_;
  const Identity& identity_;
  const RoundOptions& options_;
  Deadline& deadline_;
  Company& company_;
  const std::string prefix_;
  const Claim& own_;
  const std::string own_text_;
};

Round::Entry Round::enter() {
  const std::string own_key = rank_key(identity_.rank);
  company_.enlist(deadline_);
  // Who serves the store is rank 0, and about to say so: another one must not be before it.
  const bool is_second_rank_0 = identity_.rank == 0 && !options_.company.server.empty();
  if (is_second_rank_0) store_.get(own_key, timeout_of(deadline_));
  std::string expected;  // what we want to replace: nothing, or the claim of a dead process
  for (;;) {
    const std::string now = store_.compare_set(own_key, expected, own_text_, timeout_of(deadline_));
    if (now == own_text_) break;
    if (const auto verdict = store_.try_get(key("verdict"), timeout_of(deadline_))) {
      if (options_.is_once) check_verdict(*verdict, identity_.rank);
      return Entry::over;
    }
    const std::optional<Claim> other = decode_claim(now);
    if (other && !is_dead(*other, own_)) refuse_twice(*other);
    expected = now;
  }
  company_.has_claimed();
  if (options_.lack != nullptr) throw *options_.lack;
  compare_sizes();
  judge();
  return Entry::in;
}

/// By who gave the number that two processes have.
std::string advice_when_twice(const Identity& identity, const std::string& mark) {
  if (identity.launched_rank >= 0 && identity.is_renumbered &&
      identity.launcher != Launcher::by_hand) {
    return fmt::format(
        "The program gives itself this number (rank {} of {}) where {} has started it as rank {}: "
        "leave rank and world_size out, or give each process its own rank",
        identity.rank, identity.world_size, name_of(identity.launcher), identity.launched_rank);
  }
  if (!identity.agent.empty()) {
    return fmt::format(
        "{} has given each process that it started its own rank: one of the two "
        "was started by a rank and has inherited RANK, which it must not use",
        name_of(identity.launcher));
  }
  return fmt::format(
      "Another job? Then give each its own {}. The same job? Then give each process its own RANK",
      mark);
}

/// For the others, who may wait for the rank that it should have been, or have met and gone.
void Round::note_twice(const Claim& other) try {
  if (options_.is_open) store_.append(key("intruders"), own_text_ + '\n', timeout_of(deadline_));
  store_.set(key("twice"),
             fmt::format("{} calls itself rank {}, as {} does", company_.own_name(), identity_.rank,
                         company_.name_of(other)),
             timeout_of(deadline_));
} catch (const Error&) {  // what is wrong is known without them
}

void Round::refuse_twice(const Claim& other) {
  note_twice(other);
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("rank {} is already present at {}: {} is meeting there with world size {}, and "
                  "we are {} with world size {}. {}",
                  identity_.rank, options_.place, company_.name_of(other), other.world_size,
                  company_.own_name(), identity_.world_size,
                  advice_when_twice(identity_, options_.mark)));
}

void Round::compare_sizes() {
  const std::string mine =
      fmt::format("{} rank {} ({})", identity_.world_size, identity_.rank, company_.own_name());
  const std::string first = store_.compare_set(key("size"), "", mine, timeout_of(deadline_));
  int size_there = 0, rank_there = -1;
  std::sscanf(first.c_str(), "%d rank %d", &size_there, &rank_there);
  if (size_there == identity_.world_size) return;
  const Error error(
      ErrorCode::kInvalidArgument,
      fmt::format("ranks disagree about the size of the world: {} says {}, rank {} ({}) says {} "
                  "(at {}). Give all ranks the same WORLD_SIZE",
                  first.substr(first.find(' ') + 1), size_there, identity_.rank,
                  company_.own_name(), identity_.world_size, options_.place),
      {.culprits = {std::min(rank_there, identity_.rank), std::max(rank_there, identity_.rank)}});
  throw company_.fail(error);
}

/// The place of one that had died before we came is free; of later deaths look() knows. A rank that
/// says another size is about to end the round.
bool Round::is_here(const std::optional<Claim>& claim) const {
  return claim && claim->world_size == identity_.world_size && !company_.is_past(*claim);
}

/// Sets the verdict if all ranks are here. Whoever claims last finds them so, and perhaps another.
void Round::judge() {
  for (int rank = identity_.world_size; rank-- > 0;)
    if (!is_here(claim_of(rank))) return;
  if (const std::optional<Error> mixture = find_mixture()) throw company_.fail(*mixture);
  store_.compare_set(key("verdict"), "", kOk, timeout_of(deadline_));
}

/// When a second process claimed a rank, a second job is here: are we sure that all who were let in
/// are of the first?
std::optional<Error> Round::find_mixture() {
  const std::string texts = store_.try_get(key("intruders"), timeout_of(deadline_)).value_or("");
  const std::optional<Claim> host = claim_of(0);
  const auto name = options_.company.is_spread ? describe_with_host : describe;
  for (std::size_t begin = 0; begin < texts.size();) {
    const std::size_t end = std::min(texts.find('\n', begin), texts.size());
    const std::optional<Claim> intruder = decode_claim(texts.substr(begin, end - begin));
    begin = end + 1;
    for (int rank = 1; rank < identity_.world_size && intruder && host; ++rank) {
      const std::optional<Claim> claim = claim_of(rank);
      if (!claim || (is_kin(*claim, *host) && !is_kin(*claim, *intruder))) continue;
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("two jobs are meeting at {}: beside rank 0 ({}) there is {}, and nothing "
                      "tells to which of them rank {} ({}) belongs. Give each job its own {} and "
                      "start them again",
                      options_.place, name(*host), name(*intruder), rank, name(*claim),
                      options_.mark));
    }
  }
  return std::nullopt;
}

std::vector<int> Round::missing() {
  std::vector<int> ranks;
  for (int rank = 0; rank < identity_.world_size; ++rank) {
    const std::optional<Claim> claim =
        decode_claim(store_.try_get(rank_key(rank), company_.aside()).value_or(""));
    if (!is_here(claim)) ranks.push_back(rank);
  }
  return ranks;
}

std::string Round::describe_missing(const std::vector<int>& ranks) {
  if (ranks.empty()) {  // the judge has them all, too, or has gone since
    return fmt::format(
        "all {} ranks have come (at {}), and the one that came last, which is to tell the others, "
        "has not done so: it is stopped, or its host is cut off",
        identity_.world_size, options_.place);
  }
  std::string text = fmt::format("{} of {} ranks missing: {} (at {})", ranks.size(),
                                 identity_.world_size, format_ranks(ranks), options_.place);
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostReasons); ++i) {
    if (const auto why = store_.try_get(store::turned_away_key(ranks[i]), company_.aside()))
      text += fmt::format("; a process was turned away there: {}", *why);
  }
  if (const auto twice = store_.try_get(key("twice"), company_.aside()))
    text += fmt::format("; a process was turned away: {}", *twice);
  return text;
}

Round::Waiting Round::waiting() try {
  const std::vector<int> ranks = missing();
  return {describe_missing(ranks), ranks, ranks};
} catch (const Error& error) {
  if (error.code() != ErrorCode::kTimeout) throw;
  return {company_.describe_silence(), {}, company_.servers()};
}

void Round::throw_timeout() {
  ErrorContext context;
  context.op = "init";
  context.rank = identity_.rank;
  const Waiting now = waiting();
  context.culprits = now.culprits;
  const std::string name =
      options_.name.empty() ? "" : fmt::format(", this name (\"{}\")", options_.name);
  const std::string check =
      now.missing.empty()
          ? ""
          : fmt::format(" Were they started, with this WORLD_SIZE{} and this meeting point?{}{}",
                        name, options_.advice.empty() ? "" : " ", options_.advice);
  throw Error(ErrorCode::kTimeout,
              fmt::format("init: {}.{} A longer timeout is given by InitOptions::timeout or "
                          "TUTTI_TIMEOUT",
                          now.text, check),
              context);
}

void Round::await_verdict(WaitingLines& lines) {
  std::string verdict;
  for (;;) {
    try {
      verdict = store_.get(key("verdict"), std::min(kSlice, timeout_of(deadline_)));
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
    }
    company_.look();
    const Clock::time_point now = Clock::now();
    if (deadline_.expired(now)) throw_timeout();
    lines.look(now, [&] { return waiting().text; });
  }
  check_verdict(verdict, identity_.rank);
}

/// Up to which round all are over for a rank: it is claimed there, and the verdict is known. As
/// neither changes any more, nobody who has this rank needs to look there. A rank that did not come
/// to a round that has failed is not past it: it is to be told.
std::string over_key(const RoundOptions& options, int rank) {
  return fmt::format("world/{}/over/{}", options.name, rank);
}

int first_open_round(Store& store, const Identity& identity, const RoundOptions& options,
                     Deadline& deadline) {
  const std::string over =
      store.try_get(over_key(options, identity.rank), timeout_of(deadline)).value_or("");
  int number = 0;
  std::from_chars(over.data(), over.data() + over.size(), number);
  return number + 1;
}

/// Without it the next world of this rank takes a few more looks.
void note_over(Store& store, const Identity& identity, const RoundOptions& options, int number,
               Deadline& deadline) try {
  store.set(over_key(options, identity.rank), std::to_string(number), timeout_of(deadline));
} catch (const Error&) {  // what was met counts all the same
}

}  // namespace

std::string round_prefix(const std::string& name, int round) {
  return fmt::format("world/{}/{}", name, round);
}

std::shared_ptr<Company> join_round(const std::shared_ptr<Store>& store, const Identity& identity,
                                    const RoundOptions& options, Deadline& deadline) {
  WaitingLines lines(options.first_line_after, Clock::now());
  CompanyOptions company_options = options.company;
  company_options.place = options.place;
  company_options.deadline = deadline;
  const auto company_in = [&](int number) {
    return std::make_shared<Company>(store, round_prefix(options.name, number), number, options.own,
                                     company_options);
  };
  int number = 1;
  try {
    if (!options.is_once) number = first_open_round(*store, identity, options, deadline);
  } catch (const Error& error) {
    throw company_in(number)->blame(error);
  }
  for (;; ++number) {
    std::shared_ptr<Company> company = company_in(number);
    try {
      Round round(*store, identity, options, deadline, *company);
      if (round.enter() == Round::Entry::in) {
        round.await_verdict(lines);
        company->has_met();
        if (!options.is_once) note_over(*store, identity, options, number, deadline);
        return company;
      }
    } catch (const Error& error) {
      throw company->blame(error);
    }
    if (options.is_once) return nullptr;
    note_over(*store, identity, options, number, deadline);
  }
}

void WaitingLines::write(Clock::time_point now, const std::string& what) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begin_);
  log(LogLevel::warn, fmt::format("waiting {} s: {}", seconds.count(), what));
  next_ = begin_ + 2 * (now - begin_);
}

}  // namespace tutti::rendezvous
