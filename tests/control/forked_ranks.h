// Ranks that are forked processes of a test. The parent stays out of the world: it holds the board
// as an agent does, kills, stops and reaps, and reads what the children have written into a page
// that all share.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "control/board/board.h"
#include "control/host.h"
#include "control/thread_ranks.h"
#include "forks.h"
#include "tutti/error.h"

namespace tutti::control {

/// What a child says about itself.
struct ChildReport {
  std::atomic<int> stage{0};             ///< what it likes to tell
  std::atomic<int> told{0};              ///< what the parent tells it
  std::atomic<int> code{-1};             ///< ErrorCode of the failure it saw
  std::atomic<std::int64_t> seen_at{0};  ///< steady clock, when the callback ran
  std::array<char, 2000> text{};         ///< what() of the failure; written before code
  std::array<int, 8> culprits{};         ///< as many as there are, then -1
};

class ForkedRanks {
 public:
  using Body = std::function<void(Host&, Membership&, ChildReport&)>;

  /// Forks `n` ranks; each joins the world and runs `body`. When that returns the rank leaves in
  /// order and exits with 0; when it throws, with 1.
  ForkedRanks(int n, const Body& body,
              std::chrono::nanoseconds deadlock_after = std::chrono::seconds(1))
      : ForkedRanks(n, body,
                    [=](HostOptions& options) { options.deadlock_after = deadlock_after; }) {}
  /// The same, where `prepare` changes what a rank joins with: without the board, say.
  ForkedRanks(int n, const Body& body, const std::function<void(HostOptions&)>& prepare)
      : board_memory_(Board::make(n)), board_(board_memory_), prepare_(prepare) {
    void* page = mmap(nullptr, sizeof(ChildReport) * static_cast<std::size_t>(n),
                      PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) std::abort();
    reports_ = static_cast<ChildReport*>(page);
    for (int rank = 0; rank < n; ++rank) new (reports_ + rank) ChildReport;
    const pid_t parent = getpid();
    for (int rank = 0; rank < n; ++rank) {
      const pid_t pid = fork_alone();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(3);
        _exit(run(rank, n, body));
      }
      pids_.push_back(pid);
      board_.set_pid(SlotIndex(rank), pid);
    }
  }
  ~ForkedRanks() {
    for (const pid_t pid : pids_)
      if (pid > 0) kill(pid, SIGKILL);
    for (const pid_t pid : pids_)
      if (pid > 0) waitpid(pid, nullptr, 0);
    munmap(reports_, sizeof(ChildReport) * pids_.size());
  }
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  const Board& board() const { return board_; }
  ChildReport& report(int rank) { return reports_[rank]; }
  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  /// Returns once it stands still: until one thread has taken the signal the others go on.
  void stop(int rank) {
    kill(pid(rank), SIGSTOP);
    waitpid(pid(rank), nullptr, WUNTRACED);
  }
  void go_on(int rank) { kill(pid(rank), SIGCONT); }
  /// Returns once it is dead; it is still to be reaped.
  void kill_and_see(int rank) {
    kill_now(rank);
    siginfo_t how{};
    waitid(P_PID, static_cast<id_t>(pid(rank)), &how, WEXITED | WNOWAIT);
  }
  /// Kills all of them while the others stand still, so that these find them dead together.
  /// Returns when the others go on.
  std::int64_t kill_together(const std::vector<int>& victims) {
    const auto is_victim = [&](int rank) {
      return std::find(victims.begin(), victims.end(), rank) != victims.end();
    };
    const int n = static_cast<int>(pids_.size());
    for (int rank = 0; rank < n; ++rank) stop(rank);
    for (const int victim : victims) kill_and_see(victim);
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    for (int rank = 0; rank < n; ++rank)
      if (!is_victim(rank)) go_on(rank);
    return now;
  }
  /// Sends SIGKILL; returns when.
  std::int64_t kill_now(int rank) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    kill(pid(rank), SIGKILL);
    return now;
  }
  /// The wait status; -1 if it does not end within the time.
  int reap(int rank, std::chrono::milliseconds at_most = std::chrono::seconds(60)) {
    int status = -1;
    eventually([&] { return waitpid(pid(rank), &status, WNOHANG) == pid(rank); }, at_most);
    if (status != -1) pids_[static_cast<std::size_t>(rank)] = -1;
    return status;
  }
  /// Looks every millisecond until it is true.
  static bool eventually(const std::function<bool()>& predicate,
                         std::chrono::milliseconds at_most = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + at_most;
    while (!predicate()) {
      if (std::chrono::steady_clock::now() > end) return false;
      usleep(1000);
    }
    return true;
  }
  bool all_reach(int stage) {
    return eventually([&] {
      for (std::size_t rank = 0; rank < pids_.size(); ++rank)
        if (pids_[rank] > 0 && reports_[rank].stage.load() < stage) return false;
      return true;
    });
  }
  std::vector<int> culprits(int rank) {
    std::vector<int> found;
    for (const int culprit : reports_[rank].culprits)
      if (culprit >= 0) found.push_back(culprit);
    return found;
  }

 private:
  int run(int rank, int n, const Body& body) {
    ChildReport& report = reports_[rank];
    try {
      HostOptions options;
      options.board_fd = board_memory_.get();
      options.rank = rank;
      options.world_size = n;
      options.timeout = std::chrono::seconds(20);
      prepare_(options);
      const auto host = Host::join(options);
      const auto world = host->make_membership({kWorld, "world", all_ranks(n), rank});
      world->meet(nullptr, Where::current(), Deadline::after(std::chrono::seconds(20)));
      world->on_failure([&](const Error& error) {
        std::snprintf(report.text.data(), report.text.size(), "%s", error.what());
        report.culprits.fill(-1);
        const auto& culprits = error.context().culprits;
        for (std::size_t i = 0; i < culprits.size() && i < report.culprits.size(); ++i)
          report.culprits[i] = culprits[i];
        report.seen_at.store(std::chrono::steady_clock::now().time_since_epoch().count());
        report.code.store(static_cast<int>(error.code()));
      });
      body(*host, *world, report);
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return 1;
    }
  }

  net::Fd board_memory_;
  Board board_;
  const std::function<void(HostOptions&)> prepare_;
  ChildReport* reports_ = nullptr;
  std::vector<pid_t> pids_;
};

}  // namespace tutti::control
