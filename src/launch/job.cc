// The job: attempts to run its ranks, and what is left to say when the last one has ended.
#include "launch/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/arguments.h"
#include "launch/attempt.h"
#include "launch/console.h"
#include "launch/local_ranks.h"
#include "launch/post_mortem.h"
#include "net/poller.h"
#include "net/process_info.h"

namespace tutti::launch {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

constexpr auto kReaderPatience = 400ms;  ///< when the job was asked to end
constexpr int kOutputLost = 1;           ///< the exit code of a job that has ended well
constexpr auto kAtOnce = 5s;             ///< a program that fails so soon may do so again

class Job {
 public:
  explicit Job(const JobOptions& options)
      : options_(options), console_(options.rank_count, options.style) {}
  int run();

 private:
  /// An attempt that has ended.
  struct Past {
    JobReport report;
    agent::Outcome outcome;
  };
  Past run_attempt();
  bool goes_again(Past& past);
  int report(Past last);
  bool write_rest();
  void poll_once(Clock::time_point until);

  const JobOptions& options_;
  Console console_;
  Clock::time_point timeout_at_ = Clock::time_point::max();
  std::vector<std::string> restarts_;  ///< the reason of each
  int failed_at_once_ = 0;             ///< attempts in a row
};

/// After a failure that the user has not asked for, while there are restarts left.
bool Job::goes_again(Past& past) {
  JobReport& report = past.report;
  const int number = static_cast<int>(restarts_.size()) + 1;
  const bool is_failure = report.exit_code != 0 && !report.ending.timed_out;
  if (!is_failure || number > options_.max_restarts) return false;
  if (const int signal_number = console_.asked_to_end_by(); signal_number != 0) {
    if (report.ending.signal_number != 0) return false;  // it came before the failure
    report.kept_down_by = signal_number;
    report.exit_code = 128 + signal_number;
    return false;
  }
  restarts_.push_back(reason_of(report, past.outcome));
  console_.output().say_due(Clock::time_point::max());
  console_.say(
      fmt::format("tutti: {}; restart {} of {}", restarts_.back(), number, options_.max_restarts));
  failed_at_once_ = report.lasted < kAtOnce ? failed_at_once_ + 1 : 0;
  if (failed_at_once_ == 2) {
    console_.say(
        fmt::format("tutti: it has failed twice within {} of its start: a restart may not "
                    "help; Ctrl-C ends the job",
                    format_span(kAtOnce)));
  }
  return true;
}

int Job::report(Past last) {
  JobReport& report = last.report;
  report.restarts = restarts_;
  console_.output().say_due(Clock::time_point::max());
  for (const std::string& line : post_mortem(report, last.outcome)) console_.say(line);
  if (report.exit_code == 0 && !restarts_.empty()) {
    console_.say(fmt::format("tutti: ended well after {} restart{}", restarts_.size(),
                             restarts_.size() == 1 ? "" : "s"));
  }
  const bool all_written = write_rest();
  if (report.exit_code != 0) return report.exit_code;
  if (all_written) return console_.output().has_lost(Stream::out) ? kOutputLost : 0;
  const int signal_number = console_.asked_to_end_by();
  return signal_number != 0 ? 128 + signal_number : agent::kTimedOutCode;
}

void Job::poll_once(Clock::time_point until) {
  std::vector<net::Watch> watches;
  console_.watch(watches);
  Deadline deadline = until == Clock::time_point::max() ? Deadline{} : Deadline::at(until);
  net::poll_any(watches, deadline);
  console_.step(watches, [](int) {});
}

/// A reader may take its time until the job is asked to end; then little. False: what was printed
/// could not be written all.
bool Job::write_rest() {
  bool all_written = true;
  Clock::time_point until = Clock::time_point::max();
  while (!console_.output().is_written()) {
    const Clock::time_point now = Clock::now();
    const bool timed_out = now >= timeout_at_;
    if (console_.asked_to_end_by() != 0 || timed_out)
      until = std::min(until, now + kReaderPatience);
    if (console_.interrupts() > 1) until = std::min(until, now + kReaderPatience / 4);
    if (now >= until) {
      // What is said of stdout may still find its reader on stderr.
      console_.output().drop_awaited(console_.output().awaited(Stream::out) >= 0 ? Stream::out
                                                                                 : Stream::err);
      all_written = false;
      until = now + kReaderPatience / 4;
    } else {
      poll_once(timed_out ? until : std::min(until, timeout_at_));
    }
  }
  return all_written;
}

Job::Past Job::run_attempt() {
  Attempt attempt(options_, static_cast<int>(restarts_.size()), timeout_at_, console_);
  attempt.run();
  timeout_at_ = attempt.timeout_at();
  return {attempt.report(), attempt.outcome()};
}

int Job::run() {
  std::optional<Past> last;
  do {
    try {
      last = run_attempt();
    } catch (const std::exception& error) {
      if (!last) {
        write_rest();  // what was said and printed before
        throw;
      }
      // The job ends as it would have without this restart.
      console_.say(fmt::format("tutti: restart {} of {} failed: {}", restarts_.size(),
                               options_.max_restarts, error.what()));
      restarts_.pop_back();
      break;
    }
  } while (goes_again(*last));
  return report(std::move(*last));
}

}  // namespace

std::string describe_job(const JobOptions& options) {
  const RankPlan plan = plan_ranks(prepare_order(options, 0));
  std::string text;
  for (const Place& place : plan.placement.ranks) text += describe(place) + "\n";
  for (const auto& [name, value] : plan.thread_defaults[0].added) {
    text += fmt::format("{}={}\n", name, value);
  }
  std::vector<std::string> command = options.command;
  command[0] = plan.path;
  return text + shell_words(command) + "\n";
}

int run_job(const JobOptions& options) {
  net::hold_standard_descriptors();
  return Job(options).run();
}

}  // namespace tutti::launch
