#include "launch/post_mortem.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <map>

#include "base/rank_list.h"
#include "control/board/describe.h"
#include "launch/lines.h"

namespace tutti::launch {
namespace {

constexpr const char* kNotStarted = "could not be started";

/// How a rank ended, after what it was doing: "in all_reduce ...; exit code 1".
std::string fate_of(const agent::RankExit& exit) {
  std::string fate = control::describe_wait_status(exit.wait_status);
  if (exit.ours && agent::is_abnormal(exit.wait_status)) fate += " (ended by tutti run)";
  if (exit.untold && !agent::is_abnormal(exit.wait_status)) {
    return fate + (exit.untold->is_told
                       ? " (it was told of a failure that others, who had left, were not)"
                       : " (its program was not told that a group had failed)");
  }
  // A rank that ended well had nothing left to do, whatever its last failed group shows.
  if (exit.doing.empty() || !agent::is_abnormal(exit.wait_status)) return fate;
  // Of several ranks as of one.
  for (const std::string_view verb : {"is ", "was ", "has "}) {
    if (exit.doing.starts_with(verb)) return exit.doing.substr(verb.size()) + "; " + fate;
  }
  return exit.doing + "; " + fate;
}

/// One line for all ranks that did and ended the same; without `culprit` (-1: everybody's).
void append_others(const JobReport& report, int culprit, std::vector<std::string>& lines) {
  std::map<std::string, std::vector<int>> by_fate;
  for (const RankReport& rank : report.ranks) {
    if (rank.rank == culprit) continue;
    by_fate[rank.pid > 0 ? fate_of(rank.exit) : kNotStarted].push_back(rank.rank);
  }
  for (const auto& [fate, ranks] : by_fate) {
    lines.push_back(
        fmt::format("  {}{}: {}", culprit < 0 ? "" : "others: ", ranks_text(ranks), fate));
  }
}

/// "rank 3 on node-0 (pid 4711): killed by SIGKILL".
std::string end_of(const RankReport& rank, const std::string& host) {
  const std::string person = fmt::format("rank {}{}", rank.rank, host.empty() ? "" : " on " + host);
  if (rank.pid <= 0) return fmt::format("{}: {}", person, kNotStarted);
  return fmt::format("{} (pid {}): {}", person, rank.pid,
                     control::describe_wait_status(rank.exit.wait_status));
}

std::string hint(const JobReport& report, const RankReport& culprit) {
  const int status = culprit.exit.wait_status;
  if (report.ending.rendezvous_failed) {
    return "  the others waited for it in init_process_group, which every rank must call";
  }
  if (culprit.exit.ours) return "  it did not do its part, and tutti run ended it";
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
    return "  SIGKILL comes from kill -9 or from the kernel when memory ran out (see dmesg)";
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && culprit.exit.failure.empty()) {
    return "  it ended without a goodbye while others still needed it: return from main, or "
           "close() the groups before exit";
  }
  return {};
}

std::string headline(const JobReport& report) {
  const std::string lasted = format_span(report.lasted);
  if (report.ending.keeper_died) {
    return fmt::format("tutti: FAILED after {}: the keeper of the ranks, or its guard, was killed",
                       lasted);
  }
  if (report.ending.timed_out) return fmt::format("tutti: FAILED: not done after {}", lasted);
  if (report.ending.rendezvous_failed) {
    return fmt::format("tutti: FAILED after {}: the ranks did not all meet", lasted);
  }
  if (report.ending.signal_number != 0) {
    return fmt::format("tutti: ended after {} by {}", lasted,
                       agent::describe_signal(report.ending.signal_number));
  }
  return fmt::format("tutti: FAILED after {}", lasted);
}

void append_culprit(const JobReport& report, const RankReport& culprit,
                    std::vector<std::string>& lines) {
  lines.push_back(
      fmt::format("{}. ROOT CAUSE: {}", headline(report), end_of(culprit, report.host)));
  if (!culprit.exit.error.empty()) lines.push_back("  " + culprit.exit.error);
  if (!culprit.exit.failure.empty()) lines.push_back("  " + culprit.exit.failure);
  if (!culprit.exit.doing.empty()) {
    lines.push_back(fmt::format("  rank {} {}", culprit.rank, culprit.exit.doing));
  }
  if (const std::string text = hint(report, culprit); !text.empty()) lines.push_back(text);
}

void append_last_lines(const RankReport& culprit, std::vector<std::string>& lines) {
  if (culprit.last_lines.empty()) return;
  lines.push_back(fmt::format("  last lines of rank {}:", culprit.rank));
  for (const std::string& line : culprit.last_lines) {
    lines.push_back("    " + without_control_characters(line));
  }
}

}  // namespace

std::string format_span(std::chrono::nanoseconds span) {
  const double seconds = std::chrono::duration<double>(span).count();
  if (seconds < 100) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<long>(seconds);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::vector<std::string> post_mortem(const JobReport& report, const agent::Outcome& outcome) {
  if (report.exit_code == 0) return {};
  std::vector<std::string> lines;
  const auto root = report.ending.keeper_died ? std::nullopt : outcome.root_cause();
  const RankReport* culprit = root ? &report.ranks.at(static_cast<std::size_t>(*root)) : nullptr;
  const std::string why = report.ending.keeper_died ? std::string() : outcome.why();
  if (!why.empty()) {
    lines.push_back(fmt::format("{}. ROOT CAUSE: {}", headline(report), why));
    append_others(report, -1, lines);
  } else if (culprit == nullptr) {
    lines.push_back(headline(report));
    append_others(report, -1, lines);
  } else {
    append_culprit(report, *culprit, lines);
    append_others(report, *root, lines);
    append_last_lines(*culprit, lines);
  }
  for (std::size_t i = 0; i < report.restarts.size(); ++i) {
    lines.push_back(fmt::format("  restart {}: {}", i + 1, report.restarts[i]));
  }
  if (report.kept_down_by != 0) {
    lines.push_back(fmt::format("  not started again: {} asked the job to end",
                                agent::describe_signal(report.kept_down_by)));
  }
  lines.push_back(fmt::format("tutti: exit code {}", report.exit_code));
  return lines;
}

std::string reason_of(const JobReport& report, const agent::Outcome& outcome) {
  const std::string lasted = format_span(report.lasted);
  if (report.ending.keeper_died)
    return fmt::format("the keeper or its guard was killed after {}", lasted);
  if (const std::string why = outcome.why(); !why.empty()) {
    return fmt::format("{}; after {}", why, lasted);
  }
  const auto root = outcome.root_cause();
  if (!root) return fmt::format("exit code {} after {}", report.exit_code, lasted);
  const RankReport& culprit = report.ranks.at(static_cast<std::size_t>(*root));
  if (culprit.exit.ours) {
    return fmt::format("rank {} (pid {}) did not do its part, and tutti run ended it after {}",
                       culprit.rank, culprit.pid, lasted);
  }
  const std::string& error = culprit.exit.error;
  return fmt::format("{} after {}{}", end_of(culprit, {}), lasted,
                     error.empty() ? "" : ": " + error);
}

}  // namespace tutti::launch
