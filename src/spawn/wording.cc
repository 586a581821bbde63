#include "spawn/wording.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/of_rank.h"
#include "base/rank_list.h"
#include "control/board/describe.h"
#include "net/process_info.h"
#include "net/system_error.h"

namespace tutti::spawning {
namespace {

/// "rank 3 (pid 4711)"; a thread has no pid of its own.
std::string person(const Ended& ended, int rank) {
  const pid_t pid = of_rank(ended.states, rank).pid;
  if (ended.options.start == Start::thread || pid == 0) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (pid {})", rank, pid);
}

bool is_failed(const Ended& ended, int rank) {
  const RankState& state = of_rank(ended.states, rank);
  return !state.wait_status || agent::is_abnormal(*state.wait_status) ||
         ended.reports.of(rank).stage.load() < Stage::runs;
}

/// Ranks that were asked to end, with what they were in.
std::vector<int> asked(const Ended& ended) {
  std::vector<int> ranks;
  for (int rank = 0; rank < ended.options.world_size; ++rank) {
    if (of_rank(ended.states, rank).is_asked) ranks.push_back(rank);
  }
  return ranks;
}

/// Of those who still ran the ones that waited for nobody: a rank in an operation waits for others.
std::vector<int> hung(const Ended& ended) {
  std::vector<int> ranks = asked(ended), idle = ranks;
  std::erase_if(idle,
                [&](int rank) { return of_rank(ended.states, rank).doing.starts_with("is in "); });
  return idle.empty() ? ranks : idle;
}

/// By exec it went another way through main, or threw there; who was killed had no choice.
bool has_missed_call(const Ended& ended, int wait_status) {
  const bool has_ended_itself = WIFEXITED(wait_status) || WTERMSIG(wait_status) == SIGABRT;
  return ended.options.start == Start::exec && has_ended_itself;
}

std::string early(const Ended& ended, int wait_status) {
  return fmt::format(
      "{} and had not come to this call (number {} at its line with this function): started by "
      "exec, a rank runs main with the same arguments until it does. Does main take the same way "
      "there? Else use Start::fork or Start::thread",
      WIFEXITED(wait_status) ? fmt::format("ended with exit code {}", WEXITSTATUS(wait_status))
                             : "was " + control::describe_wait_status(wait_status),
      ended.options.times);
}

std::string exit_text(const Ended& ended, int wait_status) {
  if (!WIFEXITED(wait_status)) {
    const bool may_be_memory = WTERMSIG(wait_status) == SIGKILL;
    return fmt::format("was {}{}", control::describe_wait_status(wait_status),
                       may_be_memory && !ended.has_keeper_died
                           ? " (which the kernel does, too, where memory is short: see dmesg)"
                           : "");
  }
  return fmt::format("ended with exit code {} before its function had returned",
                     WEXITSTATUS(wait_status));
}

const agent::RankExit* exit_of(const Ended& ended, int rank) { return ended.outcome.exit_of(rank); }

/// What it was in as it died, in words.
std::string doing(const Ended& ended, int rank) {
  const agent::RankExit* const exit = exit_of(ended, rank);
  return exit == nullptr || exit->doing.empty() ? "" : "; it " + exit->doing;
}

Error make(const Ended& ended, ErrorCode code, std::vector<int> culprits, const std::string& text) {
  ErrorContext context;
  context.op = "spawn";
  context.call_site = ended.options.call_site;
  const std::size_t slash = context.call_site.rfind('/');
  if (slash != std::string::npos) context.call_site.erase(0, slash + 1);
  context.culprits = std::move(culprits);
  context.host = net::own_host_name();
  const std::string left =
      ended.left.empty() ? "" : fmt::format("; what does not end is left: {}", ended.left);
  const bool has_died_later = ended.has_keeper_died && ended.by != EndedBy::keeper_death;
  const std::string_view later =
      has_died_later ? "; then the keeper of its ranks, or its guard, was killed" : "";
  const std::string whole =
      fmt::format("spawn at {}: {}{}{}", context.call_site, text, later, left);
  return Error(code, whole, std::move(context));
}

/// Its function's own code where it threw an Error.
ErrorCode code_of(const Ended& ended, int rank) {
  const Report& report = ended.reports.of(rank);
  const RankState& state = of_rank(ended.states, rank);
  switch (report.stage.load()) {
    case Stage::starts:
      if (state.not_started != 0) return ErrorCode::kSystem;
      return has_missed_call(ended, state.wait_status.value_or(0)) ? ErrorCode::kInvalidArgument
                                                                   : ErrorCode::kPeerLost;
    case Stage::not_executed:
      return ErrorCode::kSystem;
    case Stage::failed:
      return static_cast<ErrorCode>(report.code);
    case Stage::runs:
    case Stage::returned:
    case Stage::threw:
    case Stage::unwound:
      return ErrorCode::kPeerLost;
  }
  return ErrorCode::kInternal;
}

/// Asked to end, but not ended by that.
bool has_ended_itself(const Ended& ended, int rank) {
  const RankState& state = of_rank(ended.states, rank);
  return ended.options.start != Start::thread && state.wait_status && WIFEXITED(*state.wait_status);
}

/// `culprit`: of what that rank failed with, if it is another one.
Error of_rank_that_failed(const Ended& ended, int rank, std::optional<int> culprit = {}) {
  std::vector<int> others = asked(ended);
  std::erase_if(others, [&](int other) { return other == rank || has_ended_itself(ended, other); });
  const std::string ours =
      others.empty() ? ""
                     : fmt::format("; {} ended because of that",
                                   ranks_text(others) + (others.size() == 1 ? " was" : " were"));
  std::string fate = fate_of(ended, rank);
  if (!ours.empty() && fate.ends_with('.')) fate.pop_back();
  return make(
      ended, code_of(ended, rank), {culprit.value_or(rank)},
      fmt::format("{} of {} {}{}", person(ended, rank), ended.options.world_size, fate, ours));
}

Error of_time(const Ended& ended) {
  if (ended.stopped_keeper != 0) {
    return make(ended, ErrorCode::kTimeout, {},
                fmt::format("{}; the keeper of its ranks (pid {}) was stopped, by a signal or a "
                            "debugger, and told nothing of them: they may have ended long before. "
                            "See who stops processes named tutti-keeper, and start again",
                            ended.why, ended.stopped_keeper));
  }
  const std::vector<int> culprits = hung(ended);
  std::string text = ended.why;
  for (std::size_t i = 0; i < std::min<std::size_t>(culprits.size(), 4); ++i) {
    const RankState& state = of_rank(ended.states, culprits[i]);
    text +=
        fmt::format("; {} {}, and {}", person(ended, culprits[i]),
                    state.doing.empty() ? "was in no world" : state.doing,
                    !state.wait_status ? "does not end"
                    : agent::is_abnormal(*state.wait_status)
                        ? "was ended (" + control::describe_wait_status(*state.wait_status) + ")"
                        : "then ended by itself");
  }
  return make(ended, ErrorCode::kTimeout, culprits, text);
}

/// A group failed, and a program that ended well was not told of it.
std::optional<Error> of_untold(const Ended& ended) {
  for (int rank = 0; rank < ended.options.world_size; ++rank) {
    const agent::RankExit* const exit = exit_of(ended, rank);
    if (exit == nullptr || !exit->untold) continue;
    std::vector<int> culprits = exit->untold->culprits;
    if (culprits.empty()) culprits = {rank};
    return make(ended, exit->untold->code, std::move(culprits),
                fmt::format("{} ended as if all were well, but a group of it had failed and its "
                            "program was not told: {}",
                            person(ended, rank), exit->untold->text));
  }
  return std::nullopt;
}

}  // namespace

std::string fate_of(const Ended& ended, int rank) {
  const RankState& state = of_rank(ended.states, rank);
  const Report& report = ended.reports.of(rank);
  if (state.not_started != 0) {
    return fmt::format("could not be started: {}{}", std::strerror(state.not_started),
                       net::advice_on_threads(state.not_started));
  }
  if (!state.wait_status) return "does not end";
  switch (report.stage.load()) {
    case Stage::starts:
      if (has_missed_call(ended, *state.wait_status)) return early(ended, *state.wait_status);
      return exit_text(ended, *state.wait_status);
    case Stage::not_executed:
      return fmt::format("could not execute the program again: {}", std::strerror(report.code));
    case Stage::runs:
      return exit_text(ended, *state.wait_status) + doing(ended, rank);
    case Stage::returned:
      if (report.code == 0) return exit_text(ended, *state.wait_status);
      return fmt::format("returned {}", report.code);
    case Stage::failed:
      return fmt::format("failed: {}", error_in(report).what());
    case Stage::threw:
      return fmt::format("threw: {}", text_in(report));
    case Stage::unwound:
      return "was ended by pthread_exit or pthread_cancel in its function";
  }
  return "?";
}

std::optional<Error> failure_of(const Ended& ended) {
  // What came before it was asked to end is the reason, if anything did.
  const std::optional<int> root = ended.outcome.root_cause();
  if (root && is_failed(ended, *root) && !of_rank(ended.states, *root).is_asked) {
    return of_rank_that_failed(ended, *root);
  }
  if (ended.by == EndedBy::timeout || ended.by == EndedBy::late_start) return of_time(ended);
  if (ended.by == EndedBy::program || ended.by == EndedBy::signal)
    return make(ended, ErrorCode::kAborted, {}, ended.why);
  if (ended.by == EndedBy::keeper_death) return make(ended, ErrorCode::kSystem, {}, ended.why);
  if (std::optional<Error> untold = of_untold(ended)) return untold;
  // The root may have ended well, and left others without it. Who was asked to end says nothing.
  for (const bool was_asked : {false, true}) {
    for (int rank = 0; rank < ended.options.world_size; ++rank) {
      const bool is_meant = of_rank(ended.states, rank).is_asked == was_asked;
      if (is_meant && is_failed(ended, rank)) return of_rank_that_failed(ended, rank, root);
    }
  }
  return std::nullopt;
}

}  // namespace tutti::spawning
