// How `tutti run` is ended, whatever its outputs are, and whom it takes along: nobody else's.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "e2e/launcher_fixture.h"
#include "in_time.h"
#include "net/poller.h"
#include "net/process_info.h"
#include "net/process_tree.h"

namespace tutti::e2e {
namespace {

/// The words of a shell that becomes `tutti run`; {} stands for its path.
LaunchedJob::Command shell(const std::string& script) {
  return {{"sh", "-c", fmt::format(fmt::runtime(script), TUTTI_COMMAND)}};
}

/// Pids and times change.
std::string without_numbers(const std::string& text) {
  std::string plain = std::regex_replace(text, std::regex("pid \\d+"), "pid N");
  plain = std::regex_replace(plain, std::regex("-CONT \\d+"), "-CONT N");
  plain = std::regex_replace(plain, std::regex("(after|in) \\d+\\.\\d s"), "$1 N s");
  return std::regex_replace(plain, std::regex(" on [^ ]+ \\(pid"), " on HOST (pid");
}

bool is_pending(pid_t pid, int signal_number) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("ShdPnd:")) continue;
    const unsigned long set = std::stoul(line.substr(7), nullptr, 16);
    return (set & (1ul << (signal_number - 1))) != 0;
  }
  return false;
}

// ---- outputs that take nothing ----------------------------------------------------------------

TEST_F(Launcher, ClosedOutputsAreSaidAndHoldNobodyUp) {
  LaunchedJob out(shell("exec {} run -n 2 echo hi >&-"));
  EXPECT_EQ(out.wait_exit(20s), 1);
  EXPECT_EQ(out.err(), "tutti: cannot write to stdout: Bad file descriptor; its output is lost\n");
  LaunchedJob err(shell("exec {} run -n 2 sh -c 'echo hi; echo oops >&2' 2>&-"));
  EXPECT_EQ(err.wait_exit(20s), 0);
  EXPECT_TRUE(has(err.out(), "[0] hi\n") && has(err.out(), "[1] hi\n")) << err.out();
  LaunchedJob all(shell("exec {} run -n 2 sh -c 'cat; echo hi; exit 3' <&- >&- 2>&-"));
  EXPECT_EQ(all.wait_exit(20s), 3);
}

TEST_F(Launcher, WhatIsPrintedAndLostIsNoSuccess) {
  const std::string why = "cannot write to stdout: No space left on device";
  for (const std::string ranks : {"1", "2"}) {
    LaunchedJob job(shell("exec {} run -n " + ranks + " echo hi > /dev/full"));
    EXPECT_EQ(job.wait_exit(20s), 1);
    EXPECT_EQ(job.err(), "tutti: " + why + "; its output is lost\n");
  }
  LaunchedJob failed(shell("exec {} run -n 2 sh -c 'echo hi; exit 3' > /dev/full"));
  EXPECT_EQ(failed.wait_exit(20s), 3);
  LaunchedJob silent(shell("exec {} run -n 2 true > /dev/full"));
  EXPECT_EQ(silent.wait_exit(20s), 0) << silent.err();
  for (const std::string words : {"env", "backends --markdown", "--help", "--version", "run --help",
                                  "run -n 2 --dry-run true", "man run", "completion bash"}) {
    LaunchedJob job(shell("exec {} " + words + " > /dev/full"));
    EXPECT_EQ(job.wait_exit(20s), 1) << words;
    EXPECT_TRUE(has(job.err(), why)) << words << ": " << job.err();
  }
}

TEST_F(Launcher, SigtermEndsAJobWhoseOutputNobodyReads) {
  LaunchedJob job(
      run(2, {"--grace", "200ms", "sh", "-c", "trap '' TERM; echo deaf >&2; exec yes"}));
  ASSERT_TRUE(job.wait_for_error("[0] deaf") && job.wait_for_error("[1] deaf"));
  ASSERT_TRUE(job.wait_until_full());
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit_unread(20s), 143);
  job.wait_exit();
  EXPECT_TRUE(std::regex_match(
      without_numbers(job.err()),
      std::regex("(\\[[01]\\] deaf\n){2}"
                 "tutti: SIGTERM: asking ranks 0-1 to end; SIGKILL follows after --grace 0.2 s\n"
                 "tutti: ranks still run after --grace 0.2 s; killing them\n"
                 "tutti: ended after N s by SIGTERM\n"
                 "  ranks 0-1: killed by SIGKILL \\(ended by tutti run\\)\n"
                 "tutti: exit code 143\n"
                 "tutti: nobody reads stdout: \\d+ bytes of what was printed are dropped\n")))
      << job.err();
}

/// Once the launcher has read the first: two at once count as one.
void interrupt_again(LaunchedJob& job) {
  Deadline deadline = Deadline::after(5s);
  net::pause(60ms, deadline);
  job.signal(SIGINT);
}

TEST_F(Launcher, ASecondInterruptEndsAJobWhoseOutputNobodyReads) {
  LaunchedJob job(run(2, {"sh", "-c", "trap '' INT TERM; exec yes"}));
  ASSERT_TRUE(job.wait_until_full());
  job.signal(SIGINT);
  Deadline deadline = Deadline::after(5s);
  while (is_pending(job.pid(), SIGINT)) {
    ASSERT_NE(net::pause(2ms, deadline), net::PollResult::expired);
  }
  for (int tries = 0; tries < 10 && job.wait_exit_unread(2s) < 0; ++tries) interrupt_again(job);
  EXPECT_EQ(job.wait_exit_unread(1s), 130);
}

/// It waits for nothing but its reader.
bool has_ended_and_is_full(const LaunchedJob& job) {
  if (!job.wait_until_full()) return false;
  Deadline deadline = Deadline::after(10s);
  while (!net::descendants_of(job.pid()).empty()) {
    if (net::pause(2ms, deadline) == net::PollResult::expired) return false;
  }
  return true;
}

TEST_F(Launcher, AnEndedJobWaitsForItsReaderUntilItIsAskedToEnd) {
  LaunchedJob job(run(2, {"head", "-c", "300000", "/dev/zero"}));
  ASSERT_TRUE(has_ended_and_is_full(job));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit_unread(20s), 143);
  job.wait_exit();
  EXPECT_TRUE(std::regex_match(
      job.err(), std::regex("tutti: nobody reads stdout: \\d+ bytes of what was printed are "
                            "dropped\n")))
      << job.err();
}

TEST_F(Launcher, AFailedJobWaitsForItsReaderUntilItIsAskedToEnd) {
  for (const int number : {SIGTERM, SIGHUP, SIGQUIT, SIGINT}) {
    LaunchedJob job(run(2, {"sh", "-c", "yes | head -n 20000; exit 3"}));
    ASSERT_TRUE(has_ended_and_is_full(job));
    job.signal(number);
    EXPECT_EQ(job.wait_exit_unread(20s), 3) << number;
  }
}

TEST_F(Launcher, ARequestToEndDuringTheFailureGraceCountsForTheReaderToo) {
  // Rank 1 is started last, and prints once it is the only one.
  LaunchedJob job(run(2, {"sh", "-c",
                          "[ $RANK = 0 ] && exit 3; trap 'exit 0' TERM; "
                          "until [ \"$(cat /proc/$PPID/task/$PPID/children)\" = \"$$ \" ]; do "
                          "sleep 0.01; done; yes | head -n 20000 & while :; do wait; "
                          "sleep 0.01; done"}));
  ASSERT_TRUE(job.wait_until_full());
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit_unread(20s), 3);
}

TEST_F(Launcher, AnEndedJobWaitsForItsReaderUntilTheTimeout) {
  LaunchedJob job(run(2, {"--timeout", "6s", "head", "-c", "300000", "/dev/zero"}));
  ASSERT_TRUE(has_ended_and_is_full(job));
  EXPECT_EQ(job.wait_exit_unread(20s), 124);
}

TEST_F(Launcher, AStoppedTerminalHoldsNobodyUp) {
  net::Fd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(master && ::grantpt(master.get()) == 0 && ::unlockpt(master.get()) == 0);
  const std::string terminal = ::ptsname(master.get());
  LaunchedJob job(shell("exec {} run -n 2 sh -c 'echo started >&2; exec yes' < " + terminal +
                        " > " + terminal));
  ASSERT_TRUE(job.wait_for_error("[0] started") && job.wait_for_error("[1] started"));
  ASSERT_EQ(::write(master.get(), "\x13", 1), 1);  // Ctrl-S
  char screen[4096];
  for (Deadline quiet = Deadline::after(100ms);
       net::poll_readable(master.get(), quiet) == net::PollResult::ready;
       quiet = Deadline::after(100ms)) {
    ASSERT_GT(::read(master.get(), screen, sizeof screen), 0);
  }
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(20s), 143) << job.err();
}

/// What was typed is read once, and nobody waits for more, also when the launcher has turned to
/// something else meanwhile.
TEST_F(Launcher, ATerminalHoldsNobodyUpWhenTheKeeperDies) {
  net::Fd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(master && ::grantpt(master.get()) == 0 && ::unlockpt(master.get()) == 0);
  const std::string terminal = ::ptsname(master.get());
  LaunchedJob job(shell("exec setsid -c {} run -n 2 " + kRank + " hold < " + terminal));
  ASSERT_TRUE(job.wait_for("ready", 2)) << job.err();
  const pid_t keeper = job.keeper();
  ASSERT_TRUE(stop_all({job.pid(), job.guard()}));  // a launcher that runs lets its guard go on
  ASSERT_EQ(::write(master.get(), "typed\n", 6), 6);
  ::kill(keeper, SIGKILL);
  ASSERT_TRUE(ends(keeper));
  job.signal(SIGCONT);
  EXPECT_EQ(job.wait_exit(20s), 137) << job.err();
}

TEST_F(Launcher, ATerminalThatControlsNobodyIsRead) {
  net::Fd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(master && ::grantpt(master.get()) == 0 && ::unlockpt(master.get()) == 0);
  const std::string terminal = ::ptsname(master.get());
  LaunchedJob job(
      shell("exec {} run -n 2 sh -c 'test $RANK != 0 || read line; echo got $line' < " + terminal));
  ASSERT_EQ(::write(master.get(), "hello\n", 6), 6);
  EXPECT_TRUE(job.wait_for("[0] got hello\n", 1, 5s)) << job.err();
  job.signal(SIGTERM);
  job.wait_exit();
}

/// As in a pipeline: tee hears the same Ctrl-C, and ends at once.
TEST_F(Launcher, ARankWhoseReaderWentWithTheInterruptMaySave) {
  const std::string file = ::testing::TempDir() + fmt::format("tutti_saved_{}", ::getpid());
  const std::string rank =
      "trap \"sleep 0.3; for i in 1 2 3 4 5; do echo saving; sleep 0.05; done; echo $RANK >> " +
      file + "; exit 0\" INT; echo ready >&2; while :; do sleep 0.01; done";
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  net::Fd reader(ends[0]), writer(ends[1]);
  LaunchedJob job(shell(fmt::format("exec {{}} run -n 2 sh -c '{}' > /proc/{}/fd/{}", rank,
                                    ::getpid(), writer.get())));
  ASSERT_TRUE(job.wait_for_error("[0] ready") && job.wait_for_error("[1] ready")) << job.err();
  writer.reset();
  reader.reset();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait_exit(20s), 0) << job.err();
  EXPECT_FALSE(has(job.err(), "SIGPIPE")) << job.err();
  std::ifstream saved(file);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(saved), {}).size(), 4u) << job.err();
  std::filesystem::remove(file);
}

TEST_F(Launcher, ARankThatPrintsToAClosedPipeEndsLikeAnyProgram) {
  LaunchedJob job(shell("{{ {} run -n 2 yes; echo code $? >&2; }} | head -n 1"));
  EXPECT_TRUE(job.wait_for_error("code 141")) << job.err();
  EXPECT_EQ(job.wait_exit(20s), 0);
}

/// Where a part of the output is in files, or not shown at all, its ranks need no reader.
TEST_F(Launcher, RanksOfWhomNothingIsShownOutliveTheReader) {
  const std::string folder = ::testing::TempDir() + fmt::format("tutti_logs_{}", ::getpid());
  for (const std::string& words :
       {"-r 0:1 --log-dir " + folder, "-r 0:1 -t 0:1 --log-dir " + folder,
        std::string("--local-ranks-filter 1")}) {
    LaunchedJob job(shell(
        "{{ {} run -n 2 " + words +
        " sh -c 'if [ $RANK = 1 ]; then trap \"\" PIPE; for i in 1 2 3 4 5 6; do echo shown "
        "2>/dev/null; sleep 0.05; done; exit 0; fi; for i in 1 2 3 4 5 6 7 8 9; do echo kept; "
        "sleep 0.05; done'; echo code $? >&2; }} | head -n 1"));
    EXPECT_TRUE(job.wait_for_error("code 0")) << words << ": " << job.err();
    EXPECT_EQ(job.wait_exit(20s), 0);
  }
  std::filesystem::remove_all(folder);
}

// ---- what it says while it waits --------------------------------------------------------------

TEST_F(Launcher, AnInterruptIsAnsweredAtOnceAndNamesWhoStillRuns) {
  LaunchedJob job(run(2, {kRank, "deaf"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGINT);
  ASSERT_TRUE(job.wait_for_error("still run")) << job.err();
  interrupt_again(job);
  EXPECT_EQ(job.wait_exit(20s), 130);
  EXPECT_EQ(without_numbers(job.err()),
            "tutti: SIGINT: asking ranks 0-1 to end; SIGKILL follows after --grace 30.0 s, or at "
            "once by a second Ctrl-C\n"
            "tutti: ranks 0-1 still run; SIGKILL in N s, or at once by a second Ctrl-C\n"
            "tutti: second SIGINT: killing all ranks\n"
            "tutti: ended after N s by SIGINT\n"
            "  ranks 0-1: killed by SIGKILL (ended by tutti run)\n"
            "tutti: exit code 130\n");
}

/// Which is said of ranks that a slow machine takes a second to end.
std::string without_still_run(const std::string& text) {
  return std::regex_replace(text, std::regex("tutti: ranks? [-0-9N, ]+ still runs?[^\n]*\n"), "");
}

TEST_F(Launcher, AStoppedRankIsNamedAndHearsTheRequestToEnd) {
  LaunchedJob job(run(2, {kRank, "hold"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  const pid_t rank = numbers_after(job.out(), "[1] ready ").at(0);
  ASSERT_EQ(::kill(rank, SIGSTOP), 0);
  ASSERT_TRUE(job.wait_for_error("lets it go on")) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(20s), 143) << "it need not be killed after the grace of 30 s";
  EXPECT_EQ(without_still_run(without_numbers(job.err())),
            "tutti: rank 1 (pid N) is stopped by SIGSTOP; kill -CONT N lets it go on\n"
            "tutti: SIGTERM: asking ranks 0-1 (of which 1 stopped) to end; SIGKILL follows after "
            "--grace 30.0 s\n"
            "tutti: ended after N s by SIGTERM\n"
            "  ranks 0-1: killed by SIGTERM (ended by tutti run)\n"
            "tutti: exit code 143\n");
}

TEST_F(Launcher, OneCauseIsReadOnce) {
  std::string text;
  // What a slow rank says more than two seconds after the first has a line of its own.
  const auto is_folded = [&] { return numbers_after(text, "] tutti: rank ").size() == 1; };
  for (int tries = 0; tries < 3 && !is_folded(); ++tries) {
    LaunchedJob job(run(3, {kRank, "leave-world", "5", "1"}));
    EXPECT_EQ(job.wait_exit(), 5);
    text = job.err();
  }
  const std::vector<std::string> lines = lines_of(text);
  // One of the others may not have waited yet when it is told: it has a line of its own then.
  ASSERT_TRUE(lines.size() == 6 || lines.size() == 7) << text;
  // How it ended the launcher may learn later than the others find out that it has.
  EXPECT_TRUE(std::regex_search(lines[0], std::regex(" on .*(, exit code 5)?\\) was lost: ")))
      << text;
  EXPECT_TRUE(
      std::regex_match(lines[1], std::regex("tutti: the same from ranks? [0, 2]+( \\(\\d lines\\))?"
                                            "(, uncaught on ranks? [0, 2]+)?: "
                                            "rank 1 \\(pid .*\\.\\.\\.")))
      << text;
  EXPECT_TRUE(has(lines[2], "ROOT CAUSE: rank 1 on ")) << text;
  EXPECT_TRUE(lines[2].ends_with("): exit code 5")) << text;
  EXPECT_TRUE(lines[3].starts_with("  rank 1 last completed all_reduce #1")) << text;
  const bool is_one = lines.size() == 6;
  EXPECT_TRUE(lines[4].starts_with(is_one ? "  others: ranks 0, 2: " : "  others: rank ")) << text;
  EXPECT_TRUE(is_one || lines[5].starts_with("  others: rank ")) << text;
  EXPECT_EQ(lines.back(), "tutti: exit code 5");
}

TEST_F(Launcher, TheLastLinesOfTheRootCauseAreWhole) {
  const std::string gate = ::testing::TempDir() + fmt::format("tutti_lines_{}", ::getpid());
  for (const bool are_away : {true, false}) {  // from the screen, the first of them
    LaunchedJob job(run(2, {"--failure-grace", "20s", "sh", "-c",
                            fmt::format("if [ $RANK = 1 ]; then for i in 1 2 3 4 5; do echo line "
                                        "$i >&2; done; echo REASON >&2; exit 3; fi; while [ ! -e "
                                        "{} ]; do sleep 0.01; done; for i in $(seq {}); do echo "
                                        "other $i >&2; done",
                                        gate, are_away ? 16 : 1)}));
    ASSERT_TRUE(job.wait_for_error("REASON")) << job.err();
    std::ofstream(gate).put('x');
    EXPECT_EQ(job.wait_exit(20s), 3) << job.err();
    std::filesystem::remove(gate);
    EXPECT_EQ(has(job.err(), "    line 5\n    REASON\n"), are_away) << job.err();
    EXPECT_EQ(has(job.err(), "last lines of rank 1"), are_away) << job.err();
  }
}

TEST_F(Launcher, ARankThatTheProgramHasRenumberedIsNamedAsItWasStarted) {
  // Of rank 0 the launcher learns last, as of every large program that is killed.
  LaunchedJob wrapped(run(2, {"sh", "-c",
                              kRank + " leave-renumbered - 0; code=$?; [ $RANK = 1 ] || sleep 0.3; "
                                      "exit $code"}));
  EXPECT_EQ(wrapped.wait_exit(20s), 137) << wrapped.err();
  EXPECT_TRUE(has(wrapped.err(), "ROOT CAUSE: rank 0 on ")) << wrapped.err();
  EXPECT_TRUE(has(wrapped.err(), "others: rank 1: in all_reduce #") ||
              has(wrapped.err(), "others: rank 1: last completed all_reduce #"))
      << wrapped.err();
  LaunchedJob direct(run(2, {kRank, "leave-renumbered", "-", "0"}));
  EXPECT_EQ(direct.wait_exit(20s), 137) << direct.err();
  const int killed = numbers_after(direct.out(), "[0] ready ").at(0);
  EXPECT_TRUE(has(direct.err(), fmt::format("(pid {}): killed by SIGKILL", killed)))
      << direct.err();
  EXPECT_TRUE(has(direct.err(), fmt::format("rank 1 (pid {} on ", killed))) << direct.err();
}

TEST_F(Launcher, OpenMpDefaultsAreSaidWhereOpenMpIs) {
  LaunchedJob without(run(2, {kRank, "openmp"}));
  EXPECT_EQ(without.wait_exit(), 0);
  EXPECT_EQ(without.err(), "");
  LaunchedJob with(run(2, {kRank, "openmp", "libgomp.so.1"}));
  if (with.wait_exit() == 77) GTEST_SKIP() << "no libgomp here";
  EXPECT_TRUE(std::regex_match(
      with.err(), std::regex("tutti: OMP_NUM_THREADS=\\d+ OMP_WAIT_POLICY=PASSIVE for every rank "
                             "\\(\\d+ cores?, 2 ranks\\); set to override\n")))
      << with.err();
}

// ---- a rank that leaves the rendezvous --------------------------------------------------------

TEST_F(Launcher, ARankThatLeavesInitEndsItForAllAtOnceAndIsNamed) {
  LaunchedJob job(run(3, {kRank, "leave-init", "-", "1"}));
  EXPECT_EQ(job.wait_exit(20s), 3) << job.err();
  const std::string text = without_numbers(job.err());
  EXPECT_TRUE(std::regex_search(
      text, std::regex("tutti: rank 1 left init_process_group before the world was complete "
                       "\\(exit code 0\\); ranks? [02, ]+ waits? for it\n")))
      << text;
  EXPECT_TRUE(has(text,
                  "tutti: FAILED after N s: the ranks did not all meet. ROOT CAUSE: rank 1 on HOST "
                  "(pid N): exit code 0\n"
                  "  the others waited for it in init_process_group, which every rank must call\n"
                  "  others: ranks 0, 2: exit code 1\n"
                  "tutti: exit code 3\n"))
      << text;
}

// ---- whom it ends -----------------------------------------------------------------------------

TEST_F(Launcher, WhatStoodBelowItBeforeLivesOn) {
  LaunchedJob job(shell("sleep 1000 & echo stranger $! >&2; exec {} run -n 2 true"));
  ASSERT_TRUE(job.wait_for_error("stranger"));
  const pid_t stranger = numbers_after(job.err(), "stranger ").at(0);
  EXPECT_EQ(job.wait_exit_unread(10s), 0);
  EXPECT_TRUE(is_alive(stranger));
  ::kill(stranger, SIGKILL);
}

TEST_F(Launcher, WhatStoodBelowItBeforeLivesOnWhenTheKeeperDies) {
  // Its later children come to nobody of ours either.
  LaunchedJob job(
      shell("(setsid sleep 1000 & echo later $! >&2; exec sleep 1000) & "
            "echo stranger $! >&2; exec {} run -n 2 " +
            kRank + " tree"));
  ASSERT_TRUE(job.wait_for("ready", 6) && job.wait_for_error("later"));
  const pid_t stranger = numbers_after(job.err(), "stranger ").at(0);
  const pid_t later = numbers_after(job.err(), "later ").at(0);
  const pid_t keeper = job.keeper();
  ASSERT_EQ(::kill(stranger, SIGKILL), 0);  // an orphan now
  ASSERT_EQ(::kill(keeper, SIGKILL), 0);
  EXPECT_EQ(job.wait_exit_unread(10s), 137) << job.err();
  EXPECT_TRUE(is_alive(later));
  for (const int pid : numbers_after(job.out(), "ready ")) EXPECT_FALSE(is_alive(pid)) << pid;
  ::kill(later, SIGKILL);
}

/// There the numbers that /proc shows are those of others. Of the two beside the job one has a
/// number that stands below the launcher's in it.
TEST_F(Launcher, NobodyElseIsEndedInAPidNamespaceThatSeesAnothersProc) {
  if (kNeedsProc) GTEST_SKIP() << "no ASan there";
  LaunchedJob job(LaunchedJob::Command{
      {"unshare", "-Urpf", "--mount-proc", "sh", "-c",
       "unshare -pf sh -c \"(sleep 0.2; exec $0 run -n 2 true) & "
       "job=\\$!; sleep 1000 & a=\\$!; sleep 1000 & b=\\$!; wait \\$job; echo code \\$?; "
       "kill -0 \\$a && kill -0 \\$b && echo both live\"",
       TUTTI_COMMAND}});
  job.wait_exit();
  if (job.err().starts_with("unshare:")) GTEST_SKIP() << "no pid namespaces here";
  EXPECT_EQ(job.out(), "code 0\nboth live\n") << job.err();
}

/// As in a sandbox: no /proc, or that of another pid namespace. Helpers in the group of their rank
/// are ended, those in sessions of their own cannot be seen; nobody waits for them.
TEST_F(Launcher, WithoutAProcOfItsOwnAJobEndsAsSoonAndSaysWhatMayBeLeft) {
  if (kNeedsProc) GTEST_SKIP() << "no ASan there";
  const std::string job = fmt::format(
      "TORCHELASTIC_ERROR_FILE=/outer {} run -n 2 --max-restarts 1 sh "
      "-c 'echo says in ${{TORCHELASTIC_ERROR_FILE-none}}; sleep 99 & setsid tail -f /dev/null & "
      "exit 3'; code=$?; ",
      TUTTI_COMMAND);
  const Words none = {"unshare", "-Urm", "sh", "-c",
                      "mount -t tmpfs none /proc || exit 77; " + job + "exit $code"};
  const Words others = {"unshare", "-Urpf", "sh", "-c", job + "kill -0 -1 && exit $code"};
  for (const Words& words : {none, others}) {
    const auto began = std::chrono::steady_clock::now();
    LaunchedJob limited(LaunchedJob::Command{words});
    const int code = limited.wait_exit();
    if (code == 77 || limited.err().starts_with("unshare:")) GTEST_SKIP() << "no namespaces here";
    EXPECT_EQ(code, 3) << limited.err();
    EXPECT_LT(std::chrono::steady_clock::now() - began, 8s);
    const std::string warning = "tutti: /proc is missing, or shows another pid namespace: what ";
    EXPECT_TRUE(limited.err().starts_with(warning)) << limited.err();
    EXPECT_EQ(limited.err().find(warning, 1), std::string::npos) << limited.err();
    EXPECT_FALSE(has(limited.err(), "does not end")) << limited.err();
    EXPECT_TRUE(has(limited.out(), "says in none\n") && !has(limited.out(), "says in /"))
        << limited.out();
    EXPECT_EQ(find_below(::getpid(), "sleep"), -1);
    net::kill_everything_below();
  }
}

TEST_F(Launcher, KilledGuardLeavesNothing) {
  expect_once_in_time([](bool& is_in_time) {
    LaunchedJob job(run(2, {kRank, "tree"}));
    ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
    const pid_t guard = job.guard();
    ASSERT_EQ(::kill(guard, SIGKILL), 0);
    EXPECT_EQ(job.wait_exit(20s), 137) << job.err();
    EXPECT_TRUE(has(job.err(), fmt::format("or its guard (pid {}) died", guard))) << job.err();
    is_in_time = is_childless_soon();
  });
}

TEST_F(Launcher, KilledKeeperAndGuardLeaveNothing) {
  LaunchedJob job(run(2, {kRank, "tree"}));
  ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
  const pid_t keeper = job.keeper(), guard = job.guard();
  // Neither has a moment for the other's end.
  ASSERT_TRUE(stop_all({job.pid(), guard, keeper}));
  for (const pid_t pid : {guard, keeper}) ASSERT_EQ(::kill(pid, SIGKILL), 0);
  job.signal(SIGCONT);
  EXPECT_EQ(job.wait_exit(20s), 137) << job.err();
  EXPECT_TRUE(net::descendants_of(::getpid()).empty()) << "the launcher has seen to it";
}

TEST_F(Launcher, KilledLauncherWithAStoppedGuardLeavesNothing) {
  for (const bool is_keeper_stopped : {false, true}) {
    expect_once_in_time([&](bool& is_in_time) {
      LaunchedJob job(run(2, {kRank, "tree"}));
      ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
      std::vector<pid_t> stopped = {job.pid(), job.guard()};  // one that runs lets its guard go on
      if (is_keeper_stopped) stopped.push_back(job.keeper());
      ASSERT_TRUE(stop_all(stopped));
      job.signal(SIGKILL);
      EXPECT_EQ(job.wait_exit(20s), 137);
      is_in_time = is_childless_soon();
    });
  }
}

/// It has heard of its launcher's end, and has had no moment for it.
TEST_F(Launcher, AGuardThatIsStoppedRightAfterItsLaunchersEndLeavesNothing) {
  for (const bool is_keeper_stopped : {false, true}) {
    LaunchedJob job(run(2, {kRank, "tree"}));
    ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
    const pid_t guard = job.guard();
    std::vector<pid_t> stopped = {job.pid(), guard};
    if (is_keeper_stopped) stopped.push_back(job.keeper());
    ASSERT_TRUE(stop_all(stopped));
    job.signal(SIGKILL);
    Deadline end = Deadline::after(20s);  // then 5 ms after its launcher's
    for (bool has_ended = false; end.left(Deadline::Clock::now()) > 0s;) {
      for (int i = 0; i < 100; ++i) ::kill(guard, SIGSTOP);
      if (!has_ended && net::stat_of(job.pid())->state == 'Z') {
        has_ended = true;
        end = Deadline::after(5ms);
      }
    }
    EXPECT_EQ(job.wait_exit(20s), 137);
    EXPECT_TRUE(is_childless_within(5s)) << (is_keeper_stopped ? "its keeper is stopped, too" : "");
  }
}

/// Nobody is left who could continue it.
TEST_F(Launcher, AStoppedKeeperOutlivesNobody) {
  LaunchedJob job(run(2, {kRank, "tree"}));
  ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
  const pid_t guard = job.guard(), keeper = job.keeper();
  ASSERT_TRUE(stop_all({job.pid(), guard, keeper}));
  for (const pid_t pid : {guard, job.pid()}) ASSERT_EQ(::kill(pid, SIGKILL), 0);
  EXPECT_EQ(job.wait_exit(20s), 137);
  EXPECT_TRUE(is_childless_within(5s));
}

TEST_F(Launcher, KeeperAndGuardHoldNothingOfTheUsersOpen) {
  LaunchedJob job(shell("exec {} run -n 2 " + kRank + " hold 7</dev/zero"));
  ASSERT_TRUE(job.wait_for("ready", 2)) << job.err();
  for (const pid_t pid : {job.guard(), job.keeper()}) {
    const std::string folder = fmt::format("/proc/{}/fd/", pid);
    Deadline deadline = Deadline::after(5s);  // the keeper has started the ranks, and not gone on
    while (std::filesystem::exists(folder + "7") &&
           net::pause(2ms, deadline) != net::PollResult::expired) {
    }
    for (const char* fd : {"0", "1", "2"}) {
      EXPECT_EQ(std::filesystem::read_symlink(folder + fd), "/dev/null") << pid;
    }
    EXPECT_FALSE(std::filesystem::exists(folder + "7")) << pid;
  }
  const int rank = numbers_after(job.out(), "[0] ready ").at(0);
  EXPECT_EQ(std::filesystem::read_symlink(fmt::format("/proc/{}/fd/7", rank)), "/dev/zero");
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(20s), 143);
}

TEST_F(Launcher, AStoppedKeeperGoesOn) {
  LaunchedJob asked(run(2, {kRank, "hold"}));
  ASSERT_TRUE(asked.wait_for("ready", 2)) << asked.err();
  ASSERT_EQ(::kill(asked.keeper(), SIGSTOP), 0);
  asked.signal(SIGTERM);
  EXPECT_EQ(asked.wait_exit(20s), 143) << "long before the grace of 30 s: " << asked.err();
  EXPECT_EQ(without_still_run(without_numbers(asked.err())),
            "tutti: SIGTERM: asking ranks 0-1 to end; SIGKILL follows after --grace 30.0 s\n"
            "tutti: ended after N s by SIGTERM\n"
            "  ranks 0-1: killed by SIGTERM (ended by tutti run)\n"
            "tutti: exit code 143\n");
  LaunchedJob failing(run(2, {"--failure-grace", "100ms", kRank, "hold"}));
  ASSERT_TRUE(failing.wait_for("ready", 2)) << failing.err();
  ASSERT_EQ(::kill(failing.keeper(), SIGSTOP), 0);
  ASSERT_EQ(::kill(numbers_after(failing.out(), "[1] ready ").at(0), SIGKILL), 0);
  EXPECT_EQ(failing.wait_exit(15s), 137) << failing.err();
  EXPECT_TRUE(has(failing.err(), "ROOT CAUSE: rank 1 on ")) << failing.err();
}

TEST_F(Launcher, AStoppedKeeperWithAStoppedGuardHoldsNobodyUp) {
  LaunchedJob job(run(2, {kRank, "tree"}));
  ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
  for (const pid_t pid : {job.guard(), job.keeper()}) ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(20s), 143) << "long before the grace of 30 s: " << job.err();
  EXPECT_FALSE(has(job.err(), "died")) << job.err();
}

/// Nobody orders anything.
TEST_F(Launcher, AStoppedKeeperWithAStoppedGuardGoesOn) {
  for (const bool is_guard_first : {true, false}) {
    LaunchedJob job(run(2, {"--failure-grace", "100ms", kRank, "hold"}));
    ASSERT_TRUE(job.wait_for("ready", 2)) << job.err();
    const pid_t guard = job.guard(), keeper = job.keeper();
    for (const pid_t pid : {is_guard_first ? guard : keeper, is_guard_first ? keeper : guard}) {
      ASSERT_EQ(::kill(pid, SIGSTOP), 0);
    }
    ASSERT_EQ(::kill(numbers_after(job.out(), "[1] ready ").at(0), SIGKILL), 0);
    EXPECT_EQ(job.wait_exit(20s), 137) << job.err();
    EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 1 on ")) << job.err();
  }
}

TEST_F(Launcher, AStoppedKeeperWithAKilledGuardHoldsNobodyUp) {
  for (const bool has_children : {false, true}) {  // no subreaper, then
    for (const bool is_guard_first : {true, false}) {
      LaunchedJob job(shell(std::string(has_children ? "sleep 1000 > /dev/null 2>&1 & " : "") +
                            "exec {} run -n 2 " + kRank + " tree"));
      ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
      const pid_t guard = job.guard(), keeper = job.keeper();
      const auto began = std::chrono::steady_clock::now();
      if (is_guard_first) {
        ASSERT_EQ(::kill(guard, SIGKILL), 0);
      }
      ASSERT_TRUE(::kill(keeper, SIGSTOP) == 0 || is_guard_first);  // it may have ended by now
      if (!is_guard_first) {
        ASSERT_EQ(::kill(guard, SIGKILL), 0);
      }
      EXPECT_EQ(job.wait_exit(20s), 137) << job.err();
      EXPECT_TRUE(has(job.err(), fmt::format("or its guard (pid {}) died", guard))) << job.err();
      // A keeper that takes longer is killed, and such a launcher ends no orphans.
      const bool is_owed = !has_children || std::chrono::steady_clock::now() - began < 400ms;
      for (const int pid : numbers_after(job.out(), "ready ")) {
        if (is_owed) {
          EXPECT_FALSE(is_alive(pid)) << pid;
        }
      }
      net::kill_everything_below();  // the launcher's own child
    }
  }
}

TEST_F(Launcher, AKeeperInADebuggerIsNamedWhereItHoldsTheEndUp) {
  LaunchedJob job(run(2, {kRank, "tree"}));
  ASSERT_TRUE(job.wait_for("ready", 6)) << job.err();
  const pid_t keeper = job.keeper();
  Held held(keeper);
  if (!held.is_held()) GTEST_SKIP() << "no ptrace here";
  job.signal(SIGINT);
  ASSERT_TRUE(job.wait_for_error("asking ranks"));
  interrupt_again(job);
  EXPECT_EQ(job.wait_exit(20s), 130) << job.err();
  EXPECT_TRUE(has(job.err(), fmt::format("the keeper of the ranks (pid {}) is stopped, by a "
                                         "debugger or again and again",
                                         keeper)))
      << job.err();
}

// ---- between two attempts ---------------------------------------------------------------------

/// What was printed before is written, and the last attempt is what the job has come to.
TEST_F(Launcher, ARestartThatCannotBeMadeLeavesTheFailureBeforeIt) {
  const std::string script = ::testing::TempDir() + fmt::format("tutti_once_{}", ::getpid());
  std::ofstream(script) << "#!/bin/sh\nyes | head -n 100000\nrm $0\necho last\nexit 7\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  LaunchedJob job(run(1, {"--max-restarts", "3", script}));
  EXPECT_EQ(job.wait_exit(), 7) << job.err();
  EXPECT_EQ(job.out().size(), 2 * 100'000 + std::string("last\n").size());
  EXPECT_TRUE(has(job.err(), "; restart 1 of 3\ntutti: restart 1 of 3 failed: program " + script))
      << job.err();
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 0 on ")) << job.err();
}

TEST_F(Launcher, ARestartWhoseFilesCannotBeMadeLeavesTheFailureBeforeIt) {
  const std::string folder = ::testing::TempDir() + fmt::format("tutti_logs_{}", ::getpid());
  LaunchedJob job(run(1, {"--max-restarts", "3", "--output-filename", folder, "sh", "-c",
                          "echo last; rm -r " + folder + "; : > " + folder + "; exit 7"}));
  EXPECT_EQ(job.wait_exit(), 7) << job.err();
  EXPECT_EQ(job.out(), "last\n");
  EXPECT_TRUE(has(job.err(), "tutti: restart 1 of 3 failed: cannot make the folder of "))
      << job.err();
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 0 on ")) << job.err();
  std::filesystem::remove(folder);
}

TEST_F(Launcher, ASignalAfterTheFailureEndsAJobThatWouldStartAgain) {
  LaunchedJob job(
      run(2, {"--max-restarts", "1000", "--failure-grace", "100ms", "--grace", "5s", "sh", "-c",
              "[ $RANK = 0 ] && exit 3; trap '' TERM; while :; do sleep 0.01; done"}));
  ASSERT_TRUE(job.wait_for_error("survivors still run")) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(), 128 + SIGTERM) << job.err();
  EXPECT_TRUE(has(job.err(), "ROOT CAUSE: rank 0 on ")) << job.err();
  EXPECT_TRUE(has(job.err(), "\n  not started again: SIGTERM asked the job to end\n")) << job.err();
}

TEST_F(Launcher, ASignalAfterRanksThatDidNotMeetEndsAJobThatWouldStartAgain) {
  LaunchedJob job(run(2, {"--max-restarts", "1000", "--failure-grace", "20s", "sh", "-c",
                          kRank + " leave-init - 1; [ $RANK = 1 ] && exit 0; "
                                  "while :; do sleep 0.01; done"}));
  ASSERT_TRUE(job.wait_for_error("left init_process_group before")) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_exit(20s), 128 + SIGTERM) << job.err();
  EXPECT_TRUE(has(job.err(), "the ranks did not all meet\n")) << job.err();
  EXPECT_TRUE(has(job.err(), "\n  not started again: SIGTERM asked the job to end\n")) << job.err();
}

TEST_F(Launcher, ASignalAfterTheLastRankEndsAJobThatWouldStartAgain) {
  const std::string gate = ::testing::TempDir() + fmt::format("tutti_gate_{}", ::getpid());
  LaunchedJob job(
      run(1, {"--max-restarts", "1000", "sh", "-c",
              fmt::format("echo up $$; until [ -e {} ]; do sleep 0.01; done; exit 3", gate)}));
  ASSERT_TRUE(job.wait_for("up ") && job.wait_for("\n"));
  const pid_t rank = numbers_after(job.out(), "up ").at(0);
  ASSERT_TRUE(::kill(job.pid(), SIGSTOP) == 0 && becomes(job.pid(), 'T'));
  std::ofstream(gate).put('x');
  Deadline deadline = Deadline::after(20s);
  while (is_alive(rank)) ASSERT_NE(net::pause(2ms, deadline), net::PollResult::expired);
  job.signal(SIGTERM);
  job.signal(SIGCONT);
  EXPECT_EQ(job.wait_exit(), 128 + SIGTERM) << job.err();
  EXPECT_TRUE(has(job.err(), "SIGTERM")) << job.err();
  std::filesystem::remove(gate);
}

TEST_F(Launcher, WithoutPidfdsNothingIsLeft) {
  LaunchedJob job(
      LaunchedJob::Command{{kRank, "refuse-pidfd", TUTTI_COMMAND, "run", "-n", "2", "sh", "-c",
                            "setsid sh -c 'sleep 1000 & sleep 1000' & exit 0"}});
  const int code = job.wait_exit(20s);
  if (code == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(code, 0) << job.err();
}

TEST_F(Launcher, AnIgnoredSigchldStaysIgnoredAndHidesNoExit) {
  ::signal(SIGCHLD, SIG_IGN);
  LaunchedJob job(run(2, {"grep", "SigIgn", "/proc/self/status"}));
  ::signal(SIGCHLD, SIG_DFL);
  EXPECT_EQ(job.wait_exit(20s), 0) << job.err();
  const std::size_t at = job.out().find("SigIgn:\t");
  ASSERT_NE(at, std::string::npos);
  const unsigned long ignored = std::stoul(job.out().substr(at + 8, 16), nullptr, 16);
  EXPECT_NE(ignored & (1ul << (SIGCHLD - 1)), 0u) << job.out();
}

}  // namespace
}  // namespace tutti::e2e
