#include "e2e/launched_job.h"

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "net/poller.h"
#include "net/process_tree.h"

namespace tutti::e2e {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  net::Fd read_end, write_end;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    read_end = net::Fd(ends[0]);
    write_end = net::Fd(ends[1]);
  }
};

int count_of(const std::string& text, const std::string& word) {
  int times = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    ++times;
  }
  return times;
}

void append_from(net::Fd& pipe, std::string& text) {
  char buffer[16 * 1024];
  const ssize_t got = ::read(pipe.get(), buffer, sizeof buffer);
  if (got > 0) {
    text.append(buffer, static_cast<std::size_t>(got));
  } else if (got == 0 || errno != EINTR) {
    pipe.reset();
  }
}

LaunchedJob::Command tutti_command(const std::vector<std::string>& words) {
  LaunchedJob::Command command{{TUTTI_COMMAND}};
  command.words.insert(command.words.end(), words.begin(), words.end());
  return command;
}

/// For execvp. Made before the fork: in a child locks of the allocator may be held for ever.
std::vector<char*> arguments_of(std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return arguments;
}

}  // namespace

LaunchedJob::LaunchedJob(const std::vector<std::string>& words, const std::string& input)
    : LaunchedJob(tutti_command(words), input) {}

LaunchedJob::LaunchedJob(Command command, const std::string& input) {
  Pipe in, out, err;
  std::vector<char*> arguments = arguments_of(command.words);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(in.read_end.get(), STDIN_FILENO);
    ::dup2(out.write_end.get(), STDOUT_FILENO);
    ::dup2(err.write_end.get(), STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(126);
  }
  pidfd_ = net::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  out_pipe_ = std::move(out.read_end);
  err_pipe_ = std::move(err.read_end);
  // Short enough for the pipe's buffer.
  if (::write(in.write_end.get(), input.data(), input.size()) < 0)
    throw std::runtime_error("write");
}

LaunchedJob::~LaunchedJob() {
  if (code_ < 0) net::signal_descendant(pid_, ::getpid(), SIGKILL);
  if (code_ < 0) ::waitpid(pid_, nullptr, 0);
}

bool LaunchedJob::read_some(Clock::time_point end) {
  net::Watch watches[] = {{.fd = out_pipe_.get(), .want_read = true},
                          {.fd = err_pipe_.get(), .want_read = true},
                          {.fd = code_ < 0 ? pidfd_.get() : -1, .want_read = true}};
  if (watches[0].fd < 0 && watches[1].fd < 0 && watches[2].fd < 0) return false;
  Deadline deadline = Deadline::at(end);
  if (net::poll_any(watches, deadline) == net::PollResult::expired) return false;
  if (watches[0].readable) append_from(out_pipe_, out_);
  if (watches[1].readable) append_from(err_pipe_, err_);
  if (watches[2].readable) reap();
  return true;
}

void LaunchedJob::reap() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int LaunchedJob::wait_exit_unread(std::chrono::milliseconds limit) {
  Deadline deadline = Deadline::after(limit);
  if (code_ < 0 && net::poll_readable(pidfd_.get(), deadline) == net::PollResult::ready) reap();
  return code_;
}

bool LaunchedJob::wait_until_full(std::chrono::milliseconds limit) const {
  Deadline deadline = Deadline::after(limit);
  const std::string pipe = "/proc/self/fd/" + std::to_string(out_pipe_.get());
  for (;;) {
    const net::Fd end(::open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    Deadline now = Deadline::after(0ms);
    if (net::poll_writable(end.get(), now) == net::PollResult::expired) return true;
    if (net::pause(2ms, deadline) == net::PollResult::expired) return false;
  }
}

bool LaunchedJob::wait_for(const std::string& stream, const std::string& text, int times,
                           std::chrono::milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  while (count_of(stream, text) < times) {
    if (!read_some(end)) return false;
  }
  return true;
}

bool LaunchedJob::wait_for(const std::string& text, int times, std::chrono::milliseconds limit) {
  return wait_for(out_, text, times, limit);
}

bool LaunchedJob::wait_for_error(const std::string& text, std::chrono::milliseconds limit) {
  return wait_for(err_, text, 1, limit);
}

int LaunchedJob::wait_exit(std::chrono::milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  while ((code_ < 0 || out_pipe_ || err_pipe_) && read_some(end)) {
  }
  return code_;
}

void LaunchedJob::signal(int number) const {
  if (code_ < 0) ::kill(pid_, number);  // ours and not reaped: the number is its
}

pid_t find_below(pid_t root, const std::string& name) {
  for (const pid_t pid : net::descendants_of(root)) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
    std::string comm;
    if (std::getline(file, comm) && comm == name) return pid;
  }
  return -1;
}

Held::Held(pid_t pid) : pid_(pid), is_held_(outcome_.get_future()) {
  tracer_ = std::thread([this] {  // who traces is a thread
    int status = 0;
    const bool is_held = ::ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr) == 0 &&
                         ::ptrace(PTRACE_INTERRUPT, pid_, nullptr, nullptr) == 0 &&
                         ::waitpid(pid_, &status, __WALL) == pid_ && WIFSTOPPED(status);
    outcome_.set_value(is_held);
    while (is_held && ::waitpid(pid_, &status, __WALL) == pid_ && WIFSTOPPED(status)) {
    }
    has_ended_ = true;
  });
}

Held::~Held() {
  if (!has_ended_) ::kill(pid_, SIGKILL);
  tracer_.join();
}

TerminalJob::TerminalJob(const std::vector<std::string>& command)
    : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
  if (!master_ || ::grantpt(master_.get()) != 0 || ::unlockpt(master_.get()) != 0) {
    throw std::runtime_error("posix_openpt");
  }
  const std::string terminal = ::ptsname(master_.get());
  std::vector<std::string> words = command;
  std::vector<char*> arguments = arguments_of(words);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setsid();
    const int slave = ::open(terminal.c_str(), O_RDWR);  // becomes the controlling terminal
    for (const int fd : {0, 1, 2}) ::dup2(slave, fd);
    ::execvp(arguments[0], arguments.data());
    ::_exit(126);
  }
  pidfd_ = net::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
}

TerminalJob::~TerminalJob() {
  if (!pidfd_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void TerminalJob::type(const std::string& text) const {
  if (::write(master_.get(), text.data(), text.size()) < 0) throw std::runtime_error("write");
}

bool TerminalJob::wait_for(const std::string& text) {
  Deadline deadline = Deadline::after(20s);
  while (seen_.find(text) == std::string::npos) {
    if (net::poll_readable(master_.get(), deadline) != net::PollResult::ready) return false;
    char buffer[4096];
    const ssize_t got = ::read(master_.get(), buffer, sizeof buffer);
    if (got <= 0) return false;
    seen_.append(buffer, static_cast<std::size_t>(got));
  }
  return true;
}

int TerminalJob::wait_exit(std::chrono::milliseconds limit) {
  Deadline deadline = Deadline::after(limit);
  if (net::poll_readable(pidfd_.get(), deadline) != net::PollResult::ready) return -1;
  pidfd_.reset();
  int status = 0;
  ::waitpid(pid_, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<int> numbers_after(const std::string& text, const std::string& word) {
  std::vector<int> numbers;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    numbers.push_back(std::atoi(text.c_str() + at + word.size()));
  }
  return numbers;
}

bool is_childless_within(std::chrono::milliseconds limit) {
  Deadline deadline = Deadline::at(Clock::now() + limit);
  for (;;) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (errno == ECHILD && net::descendants_of(::getpid()).empty()) return true;
    if (net::pause(2ms, deadline) == net::PollResult::expired) return false;
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace tutti::e2e
