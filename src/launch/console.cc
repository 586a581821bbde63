#include "launch/console.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "launch/signals.h"
#include "net/system_error.h"

namespace tutti::launch {
namespace {

constexpr Stream kStreams[] = {Stream::out, Stream::err};
/// `timeout -s INT` and others signal their child, and then the group in which it is.
constexpr auto kSameInterrupt = std::chrono::milliseconds(50);
constexpr std::size_t kSignals = 0, kInput = 1, kOutput = 2;  // places of the watches

}  // namespace

Console::Console(int ranks, OutputStyle style)
    : output_(ranks, STDOUT_FILENO, STDERR_FILENO, std::move(style)) {
  const std::vector<int> forwarded = forwarded_signals();
  ::getrlimit(RLIMIT_NOFILE, &inherited_.open_files);
  inherited_.ignores_children = is_ignored(SIGCHLD);
  ::signal(SIGCHLD, SIG_DFL);  // or the guard could not be awaited
  inherited_.mask = block_signals();
  sigset_t read_here;
  ::sigemptyset(&read_here);
  for (const int number : forwarded) ::sigaddset(&read_here, number);
  signals_ = net::Fd(::signalfd(-1, &read_here, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw net::system_error("cannot make a signalfd", errno);
}

net::Fd Console::open_input() { return stdin_.open(STDIN_FILENO); }

void Console::watch(std::vector<net::Watch>& watches) const {
  watches.push_back({.fd = signals_.get(), .want_read = true});
  watches.push_back(stdin_.watch());
  for (const Stream stream : kStreams) {
    watches.push_back({.fd = output_.awaited(stream), .want_write = true});
  }
}

void Console::step(std::span<const net::Watch> watched,
                   const std::function<void(int number)>& on_signal) {
  for (const Stream stream : kStreams) {
    if (watched[kOutput + index(stream)].writable) output_.write_some(stream);
  }
  const net::Watch& input = watched[kInput];
  if (input.readable || input.writable) stdin_.pump(input);
  // One that has come since the wait may be what has made a reader go away just now.
  const bool is_left = output_.is_closed(Stream::out) || output_.is_closed(Stream::err);
  if (watched[kSignals].readable || is_left) read_signals(on_signal);
}

void Console::read_signals(const std::function<void(int number)>& on_signal) {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int number = static_cast<int>(info.ssi_signo);
    const bool is_typed = info.ssi_code == SI_KERNEL;  // at a terminal, not sent by somebody
    if (number == SIGINT) {
      const auto now = Deadline::Clock::now();
      if (!is_typed && now - interrupted_at_ < kSameInterrupt) continue;
      interrupted_at_ = now;
      ++interrupts_;
    }
    if (ends_a_job(number) && asked_to_end_by_ == 0) asked_to_end_by_ = number;
    on_signal(number);
    if (number == SIGTSTP) {
      cannot_stop_ = !stop_as_any_program() && is_typed;
      if (cannot_stop_) on_signal(SIGCONT);
    }
  }
}

}  // namespace tutti::launch
