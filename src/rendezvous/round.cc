#include "rendezvous/round.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "base/rank_list.h"
#include "net/frame.h"
#include "net/process_info.h"

namespace tutti::rendezvous {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

constexpr const char* kOk = "ok";
constexpr milliseconds kAside{
    1000};  // for questions beside the deadline: who is missing, who must know

milliseconds left(Deadline& deadline) {
  return std::min<milliseconds>(std::chrono::ceil<milliseconds>(deadline.left(Clock::now())),
                                std::chrono::hours(24));
}

/// Whether the process that made the claim has ended. No: it lives, or cannot be seen from here.
bool is_dead(const Claim& claim, const std::string& where) {
  if (claim.where != where) return false;
  const std::optional<net::ProcessStat> stat = net::stat_of(claim.pid);
  return !stat || stat->start_time != claim.start_time || stat->state == 'Z' || stat->state == 'X';
}

/// Started together: by the same parent, or as one job of a shell.
bool is_kin(const Claim& a, const Claim& b) {
  if (a.pid == b.pid || a.group == b.group) return true;
  return a.parent == b.parent && a.parent > 1;
}

/// Throws what a verdict other than ok says: "<code> <text>".
void check_verdict(const std::string& verdict) {
  if (verdict == kOk) return;
  const char* end = verdict.data() + verdict.size();
  int code = -1;
  const auto [stop, problem] = std::from_chars(verdict.data(), end, code);
  if (problem != std::errc() || code < 0 || code > static_cast<int>(ErrorCode::kInternal) ||
      stop == end) {
    throw Error(ErrorCode::kInternal, fmt::format("init: a verdict '{}'", verdict));
  }
  throw Error(static_cast<ErrorCode>(code), std::string(stop + 1, end));
}

class Round {
 public:
  Round(Store& store, const Identity& identity, const RoundOptions& options, Deadline& deadline,
        const Claim& own, int number)
      : store_(store),
        identity_(identity),
        options_(options),
        deadline_(deadline),
        number_(number),
        prefix_(round_prefix(options.name, number)),
        own_(own),
        own_text_(encode(own_)) {}

  enum class Entry : std::uint8_t { in, over };
  /// Claims the rank; throws if somebody else has it.
  Entry enter();
  void await_verdict(WaitingLines& lines);

 private:
  std::string key(std::string_view what) const { return fmt::format("{}/{}", prefix_, what); }
  std::string rank_key(int rank) const { return fmt::format("{}/rank/{}", prefix_, rank); }
  std::optional<Claim> claim_of(int rank) {
    const std::optional<std::string> text = store_.try_get(rank_key(rank), left(deadline_));
    return text ? decode_claim(*text) : std::nullopt;
  }
  [[noreturn]] void refuse_twice(const Claim& other);
  void compare_sizes();
  void judge();
  std::optional<Error> find_mixture();
  void fail_everybody(const Error& error);
  std::vector<int> missing();
  std::string describe_missing(const std::vector<int>& ranks) const;

  Store& store_;
  const Identity& identity_;
  const RoundOptions& options_;
  Deadline& deadline_;
  const int number_;
  const std::string prefix_;
  const Claim& own_;
  const std::string own_text_;
};

Round::Entry Round::enter() {
  const std::string own_key = rank_key(identity_.rank);
  std::string expected;  // what we want to replace: nothing, or the claim of a dead process
  for (;;) {
    const std::string now = store_.compare_set(own_key, expected, own_text_, left(deadline_));
    if (now == own_text_) break;
    if (const auto verdict = store_.try_get(key("verdict"), left(deadline_))) {
      if (options_.is_once) check_verdict(*verdict);
      return Entry::over;
    }
    const std::optional<Claim> other = decode_claim(now);
    if (other && !is_dead(*other, own_.where)) refuse_twice(*other);
    expected = now;
  }
  compare_sizes();
  judge();
  return Entry::in;
}

void Round::refuse_twice(const Claim& other) {
  if (options_.is_open) store_.append(key("intruders"), own_text_ + '\n', left(deadline_));
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("rank {} is already present at {}: {} is meeting there with world size {}, and "
                  "we are {} with world size {}. Another job? Then give each its own MASTER_PORT. "
                  "The same job? Then give each process its own RANK",
                  identity_.rank, options_.place, describe(other), other.world_size, describe(own_),
                  identity_.world_size));
}

void Round::compare_sizes() {
  const std::string mine =
      fmt::format("{} rank {} ({})", identity_.world_size, identity_.rank, describe(own_));
  const std::string first = store_.compare_set(key("size"), "", mine, left(deadline_));
  int size_there = 0;
  std::from_chars(first.data(), first.data() + first.size(), size_there);
  if (size_there == identity_.world_size) return;
  const std::size_t space = first.find(' ');
  const Error error(
      ErrorCode::kInvalidArgument,
      fmt::format("ranks disagree about the size of the world: {} says {}, rank {} ({}) says {} "
                  "(at {})",
                  space == std::string::npos ? "?" : first.substr(space + 1), size_there,
                  identity_.rank, describe(own_), identity_.world_size, options_.place));
  fail_everybody(error);
  throw error;
}

/// Sets the verdict if all ranks are here. Whoever claims last finds them so, and perhaps another.
void Round::judge() {
  for (int rank = identity_.world_size; rank-- > 0;) {
    const std::string text = store_.try_get(rank_key(rank), left(deadline_)).value_or("");
    const std::optional<Claim> claim = decode_claim(text);
    if (!claim) return;
    if (!is_dead(*claim, own_.where)) continue;
    // It ended while it waited: its place is free, and we wait like everybody else.
    if (store_.compare_set(rank_key(rank), text, "", left(deadline_)).empty()) {
      log(LogLevel::warn, fmt::format("rank {} ({}) has ended while it waited for the others; its "
                                      "place is free again",
                                      rank, describe(*claim)));
      return;
    }
    ++rank;  // somebody has taken over: look again
  }
  if (const std::optional<Error> mixture = find_mixture()) {
    fail_everybody(*mixture);
  } else {
    store_.compare_set(key("verdict"), "", kOk, left(deadline_));
  }
}

/// When a second process claimed a rank, a second job is here: are we sure that all who were let in
/// are of the first?
std::optional<Error> Round::find_mixture() {
  const std::string texts = store_.try_get(key("intruders"), left(deadline_)).value_or("");
  const std::optional<Claim> host = claim_of(0);
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
                      "tells to which of them rank {} ({}) belongs. Give each job its own "
                      "MASTER_PORT and start them again",
                      options_.place, describe(*host), describe(*intruder), rank,
                      describe(*claim)));
    }
  }
  return std::nullopt;
}

void Round::fail_everybody(const Error& error) {
  fail_round(store_, options_.name, number_, error);
}

std::vector<int> Round::missing() {
  std::vector<int> ranks;
  for (int rank = 0; rank < identity_.world_size; ++rank) {
    if (store_.try_get(rank_key(rank), kAside).value_or("").empty()) ranks.push_back(rank);
  }
  return ranks;
}

std::string Round::describe_missing(const std::vector<int>& ranks) const {
  return fmt::format("{} of {} ranks missing: {} (at {})", ranks.size(), identity_.world_size,
                     format_ranks(ranks), options_.place);
}

void Round::await_verdict(WaitingLines& lines) {
  std::string verdict;
  for (;;) {
    const auto slice = std::chrono::ceil<milliseconds>(lines.next() - Clock::now());
    try {
      verdict = store_.get(key("verdict"), std::clamp(slice, milliseconds(0), left(deadline_)));
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
    }
    const Clock::time_point now = Clock::now();
    if (deadline_.expired(now)) {
      ErrorContext context;
      context.op = "init";
      context.rank = identity_.rank;
      context.culprits = missing();
      throw Error(ErrorCode::kTimeout,
                  fmt::format("init (rank {}): {}. Were they started, with this WORLD_SIZE and "
                              "this meeting point? A longer timeout is given by "
                              "InitOptions::timeout or TUTTI_TIMEOUT",
                              identity_.rank, describe_missing(context.culprits)),
                  context);
    }
    lines.look(now, [&] { return describe_missing(missing()); });
  }
  check_verdict(verdict);
}

}  // namespace

std::string encode(const Claim& claim) {
  return fmt::format("{} {} {} {} {} {} {} {}", claim.world_size, claim.pid, claim.parent,
                     claim.group, claim.start_time, claim.where, claim.nonce, claim.program);
}

std::optional<Claim> decode_claim(const std::string& text) {
  Claim claim;
  char where[128] = {};
  char nonce[64] = {};
  unsigned long long start_time = 0;
  int program_at = 0;
  if (std::sscanf(text.c_str(), "%d %d %d %d %llu %127s %63s %n", &claim.world_size, &claim.pid,
                  &claim.parent, &claim.group, &start_time, where, nonce, &program_at) != 7) {
    return std::nullopt;
  }
  claim.start_time = start_time;
  claim.where = where;
  claim.nonce = nonce;
  claim.program = text.substr(static_cast<std::size_t>(program_at));
  return claim;
}

Claim claim_of_this_process(int world_size) {
  Claim claim;
  claim.world_size = world_size;
  claim.pid = ::getpid();
  if (const std::optional<net::ProcessStat> stat = net::stat_of(claim.pid)) {
    claim.parent = stat->parent;
    claim.group = stat->group;
    claim.start_time = stat->start_time;
  }
  claim.where = net::pid_space();
  claim.nonce = random_name();
  claim.program = net::program_of(claim.pid);
  return claim;
}

std::string describe(const Claim& claim) {
  return fmt::format("pid {} ({})", claim.pid, claim.program);
}

std::string round_prefix(const std::string& name, int round) {
  return fmt::format("world/{}/{}", name, round);
}

void fail_round(Store& store, const std::string& name, int round, const Error& error) {
  store.compare_set(round_prefix(name, round) + "/verdict", "",
                    fmt::format("{} {}", static_cast<int>(error.code()), error.what()), kAside);
}

std::optional<int> join_round(Store& store, const Identity& identity, const RoundOptions& options,
                              Deadline& deadline) {
  WaitingLines lines(options.first_line_after, Clock::now());
  const Claim own = claim_of_this_process(identity.world_size);
  for (int number = 1;; ++number) {
    Round round(store, identity, options, deadline, own, number);
    if (round.enter() == Round::Entry::in) {
      round.await_verdict(lines);
      return number;
    }
    if (options.is_once) return std::nullopt;
  }
}

void WaitingLines::write(Clock::time_point now, const std::string& what) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begin_);
  log(LogLevel::warn, fmt::format("waiting {} s: {}", seconds.count(), what));
  next_ = begin_ + 2 * (now - begin_);
}

}  // namespace tutti::rendezvous
