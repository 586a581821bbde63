// Processes of a test that say how they ended, and never outlive it.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "forks.h"
#include "net/fd.h"
#include "net/poller.h"
#include "tutti/error.h"

namespace tutti::test {

/// Runs a function in a forked process. What it returns, or "<code>: <text> (culprits: 1, 3)" of
/// the Error that it throws, can be read here. To be made before threads.
class Child {
 public:
  explicit Child(const std::function<std::string()>& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    read_end_ = net::Fd(ends[0]);
    net::Fd write_end(ends[1]);
    pid_ = fork_alone();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    read_end_.reset();
    std::string result;
    try {
      result = body();
    } catch (const Error& error) {
      result = std::string(name_of(error.code())) + ": " + error.what();
      for (const int culprit : error.context().culprits) {
        result += (culprit == error.context().culprits.front() ? " (culprits: " : ", ") +
                  std::to_string(culprit);
      }
      if (!error.context().culprits.empty()) result += ")";
    }
    [[maybe_unused]] const auto written = ::write(write_end.get(), result.data(), result.size());
    ::_exit(0);
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), read_end_(std::move(other.read_end_)) {}
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    reap();
  }

  pid_t pid() const { return pid_; }
  void kill() {
    ::kill(pid_, SIGKILL);
    reap();
    pid_ = -1;
  }
  /// What it returned; "(still running)" after the time.
  std::string result(std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    Deadline deadline = Deadline::after(limit);
    std::string text;
    for (;;) {
      if (net::poll_readable(read_end_.get(), deadline) != net::PollResult::ready) {
        return "(still running)";
      }
      char chunk[4096];
      const ssize_t got = ::read(read_end_.get(), chunk, sizeof chunk);
      if (got <= 0) return text;
      text.append(chunk, static_cast<std::size_t>(got));
    }
  }

 private:
  void reap() {
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  pid_t pid_ = -1;
  net::Fd read_end_;
};

}  // namespace tutti::test
