#include "net/process_info.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>

#include "net/fd.h"
#include "net/poller.h"

namespace tutti::net {
namespace {

/// The first bytes of /proc/<pid>/<file>; empty if it cannot be read.
std::string read_proc(pid_t pid, const char* file) {
  const Fd fd(::open(fmt::format("/proc/{}/{}", pid, file).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return {};
  std::array<char, 4096> buffer;
  ssize_t got = 0;
  do {
    got = ::read(fd.get(), buffer.data(), buffer.size());
  } while (got < 0 && errno == EINTR);
  return got > 0 ? std::string(buffer.data(), static_cast<std::size_t>(got)) : std::string();
}

}  // namespace

std::string program_of(pid_t pid) {
  std::string path = read_proc(pid, "cmdline");
  path.resize(std::min(path.size(), path.find('\0')));
  const std::size_t slash = path.rfind('/');
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.empty()) {
    name = read_proc(pid, "comm");
    name.resize(std::min(name.size(), name.find('\n')));
  }
  if (name.empty()) return "?";
  if (name.size() > 64) name.resize(64);
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';  // it goes into messages
  }
  return name;
}

std::string describe_process(pid_t pid) { return fmt::format("pid {} ({})", pid, program_of(pid)); }

std::optional<ProcessStat> stat_of(pid_t pid) {
  const std::string text = read_proc(pid, "stat");
  // The name stands in parentheses and may itself hold any of them: look for the last.
  const std::size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  ProcessStat stat;
  unsigned long long start_time = 0;
  const int fields =
      std::sscanf(text.c_str() + end_of_name + 1,
                  " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                  &stat.state, &stat.parent, &stat.group, &stat.session, &start_time);
  if (fields != 5) return std::nullopt;
  stat.start_time = start_time;
  return stat;
}

bool is_stopped(pid_t pid) {
  const std::optional<ProcessStat> stat = stat_of(pid);
  return stat && (stat->state == 'T' || stat->state == 't');
}

bool has_ended(pid_t pid, std::uint64_t start_time) {
  const std::optional<ProcessStat> stat = stat_of(pid);
  if (stat && start_time != 0 && stat->start_time != start_time) return true;  // another's by now
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) {
    if (::kill(pid, 0) != 0 && errno == ESRCH) return true;
    return stat && (stat->state == 'Z' || stat->state == 'X');
  }
  // Readable once all its threads have ended: one whose main thread is a zombie may go on.
  Deadline now = Deadline::at(Deadline::Clock::now());
  return poll_readable(process.get(), now) == PollResult::ready;
}

std::string own_host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), HOST_NAME_MAX) != 0 || name[0] == '\0') return "localhost";
  std::string text = name.data();
  for (char& c : text) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::string pid_space() {
  const auto name_of = [](const char* link) {
    std::array<char, 64> name{};
    const ssize_t length = ::readlink(link, name.data(), name.size() - 1);
    return std::string(name.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  };
  const std::string pids = name_of("/proc/self/ns/pid");
  const std::string times = name_of("/proc/self/ns/time");  // from Linux 5.6 on
  const Fd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> boot{};
  const ssize_t got = fd ? ::read(fd.get(), boot.data(), boot.size() - 1) : 0;
  std::string text(boot.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  text.resize(std::min(text.size(), text.find('\n')));
  if (text.empty() || pids.empty()) return {};
  return text + "/" + pids + (times.empty() ? "" : "/" + times);
}

bool descends_from(pid_t pid, pid_t ancestor) {
  if (pid != ancestor && !has_own_proc()) return false;  // its numbers are of others, if of any
  constexpr int kDeepest = 4096;  // a process tree in flux cannot lead us in circles for ever
  for (int depth = 0; depth < kDeepest && pid > 0; ++depth) {
    if (pid == ancestor) return true;
    const std::optional<ProcessStat> stat = stat_of(pid);
    if (!stat) return false;
    pid = stat->parent;
  }
  return false;
}

bool has_own_proc() {
  char number[32] = {};
  const ssize_t length = ::readlink("/proc/self", number, sizeof number - 1);
  return length > 0 && std::to_string(::getpid()) == number;
}

}  // namespace tutti::net
