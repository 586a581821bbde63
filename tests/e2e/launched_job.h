// A `tutti run` under test: its output as it comes, its exit, and whatever it leaves behind.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "net/fd.h"

namespace tutti::e2e {

/// ASan reads its options there, and what its search for leaks needs at exit: a program built with
/// it fails without a /proc of its own.
#if defined(__has_feature)
inline constexpr bool kNeedsProc = __has_feature(address_sanitizer);
#else
inline constexpr bool kNeedsProc = false;
#endif

using namespace std::chrono_literals;

/// The process below `root` that calls itself so; -1: there is none.
pid_t find_below(pid_t root, const std::string& name);

/// Starts a command with pipes for stdin, stdout and stderr. The destructor kills what is left.
class LaunchedJob {
 public:
  /// `words` follow the path of the `tutti` command; `input` is written to stdin, which then ends.
  explicit LaunchedJob(const std::vector<std::string>& words, const std::string& input = {});
  /// Any command, found along PATH.
  struct Command {
    std::vector<std::string> words;
  };
  explicit LaunchedJob(Command command, const std::string& input = {});
  ~LaunchedJob();
  LaunchedJob(const LaunchedJob&) = delete;
  LaunchedJob& operator=(const LaunchedJob&) = delete;

  pid_t pid() const noexcept { return pid_; }
  const std::string& out() const noexcept { return out_; }
  const std::string& err() const noexcept { return err_; }

  /// Reads until `text` has been seen `times` times on stdout (or stderr); false after `limit`.
  bool wait_for(const std::string& text, int times = 1, std::chrono::milliseconds limit = 20s);
  bool wait_for_error(const std::string& text, std::chrono::milliseconds limit = 20s);
  /// Reads until the command has ended; its code as a shell shows it, -1 after `limit`.
  int wait_exit(std::chrono::milliseconds limit = 30s);
  /// The same without reading a byte of what it prints.
  int wait_exit_unread(std::chrono::milliseconds limit);
  /// Until stdout's pipe takes nothing more; nothing is read.
  bool wait_until_full(std::chrono::milliseconds limit = 20s) const;
  void signal(int number) const;
  pid_t keeper() const { return find_below(pid_, "tutti-keeper"); }
  pid_t guard() const { return find_below(pid_, "tutti-guard"); }

 private:
  void reap();
  bool read_some(std::chrono::steady_clock::time_point end);
  bool wait_for(const std::string& stream, const std::string& text, int times,
                std::chrono::milliseconds limit);

  pid_t pid_ = -1;
  net::Fd pidfd_, out_pipe_, err_pipe_;
  std::string out_, err_;
  int code_ = -1;
};

/// A command that is the program of a terminal of its own, as a person has it.
class TerminalJob {
 public:
  explicit TerminalJob(const std::vector<std::string>& command);
  /// Kills it.
  ~TerminalJob();
  TerminalJob(const TerminalJob&) = delete;
  TerminalJob& operator=(const TerminalJob&) = delete;

  pid_t pid() const noexcept { return pid_; }
  const std::string& seen() const noexcept { return seen_; }
  void type(const std::string& text) const;
  /// The process group that hears what is typed.
  pid_t foreground() const noexcept { return ::tcgetpgrp(master_.get()); }
  /// Until `text` stands on the screen; false after 20 s.
  bool wait_for(const std::string& text);
  /// Its code as a shell shows it; -1 after `limit`.
  int wait_exit(std::chrono::milliseconds limit = 10s);

 private:
  net::Fd master_, pidfd_;
  pid_t pid_ = -1;
  std::string seen_;
};

/// A process that stands still in a debugger, by a thread of ours, until it is killed.
class Held {
 public:
  explicit Held(pid_t pid);
  /// Kills it, if nobody has.
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  /// False: the system allows no debugger.
  bool is_held() { return is_held_.get(); }

 private:
  const pid_t pid_;
  std::promise<bool> outcome_;
  std::future<bool> is_held_;
  std::atomic<bool> has_ended_{false};
  std::thread tracer_;
};

/// The numbers that stand behind `word` in `text`: "[0] ready 4711" -> 4711.
std::vector<int> numbers_after(const std::string& text, const std::string& word);

/// Whether the calling process, a subreaper, has lost its last descendant within `limit`; those
/// that came to it are reaped.
bool is_childless_within(std::chrono::milliseconds limit);

std::vector<std::string> lines_of(const std::string& text);

}  // namespace tutti::e2e
