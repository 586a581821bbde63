#include "net/poller.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "net/system_error.h"

namespace tutti::net {
namespace {

using Clock = Deadline::Clock;
using std::chrono::nanoseconds;

constexpr nanoseconds kAbortLook = std::chrono::milliseconds(20);

bool is_aborted(const Interrupt& interrupt) {
  return interrupt.abort_word != nullptr &&
         interrupt.abort_word->load(std::memory_order_acquire) != 0;
}

timespec to_timespec(nanoseconds duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {static_cast<time_t>(seconds.count()), static_cast<long>((duration - seconds).count())};
}

/// One ppoll; true if something is ready. The last entry is the wake-up's.
bool poll_once(std::span<pollfd> entries, nanoseconds limit) {
  const bool for_ever = limit == nanoseconds::max();
  const timespec time = to_timespec(for_ever ? nanoseconds(0) : limit);
  const int ready = ::ppoll(entries.data(), entries.size(), for_ever ? nullptr : &time, nullptr);
  if (ready < 0 && errno != EINTR) throw system_error("cannot poll", errno);
  return ready > 0;
}

PollResult poll_entries(std::span<pollfd> entries, Deadline& deadline, const Interrupt& interrupt) {
  for (;;) {
    if (is_aborted(interrupt)) return PollResult::aborted;
    if (interrupt.look != nullptr && *interrupt.look) (*interrupt.look)();
    const nanoseconds left = deadline.left(Clock::now());
    const bool looks = interrupt.abort_word != nullptr || interrupt.look != nullptr;
    const nanoseconds limit = looks ? std::min(left, kAbortLook) : left;
    if (poll_once(entries, limit)) {
      if (is_aborted(interrupt)) return PollResult::aborted;
      for (const pollfd& entry : entries.first(entries.size() - 1)) {
        if (entry.revents != 0) return PollResult::ready;
      }
      return PollResult::woken;
    }
    if (left == nanoseconds(0)) return PollResult::expired;
  }
}

PollResult poll_one(int fd, short events, Deadline& deadline, const Interrupt& interrupt) {
  const int wake_fd = interrupt.wakeup != nullptr ? interrupt.wakeup->fd() : -1;
  std::array<pollfd, 2> entries{pollfd{fd, events, 0}, pollfd{wake_fd, POLLIN, 0}};
  return poll_entries(entries, deadline, interrupt);
}

}  // namespace

Wakeup::Wakeup() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw system_error("cannot make an eventfd", errno);
}

void Wakeup::signal() noexcept {
  const int saved = errno;
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable anyway.
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
  errno = saved;
}

void Wakeup::drain() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &count, sizeof count);
}

PollResult poll_any(std::span<Watch> watches, Deadline& deadline, const Interrupt& interrupt) {
  std::vector<pollfd> entries(watches.size() + 1);
  for (std::size_t i = 0; i < watches.size(); ++i) {
    const Watch& watch = watches[i];
    const int events = (watch.want_read ? POLLIN : 0) | (watch.want_write ? POLLOUT : 0);
    entries[i] = {watch.fd, static_cast<short>(events), 0};
  }
  entries.back() = {interrupt.wakeup != nullptr ? interrupt.wakeup->fd() : -1, POLLIN, 0};
  const PollResult result = poll_entries(entries, deadline, interrupt);
  for (std::size_t i = 0; i < watches.size(); ++i) {
    const bool broken = (entries[i].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
    watches[i].readable = broken || (entries[i].revents & POLLIN) != 0;
    watches[i].writable = broken || (entries[i].revents & POLLOUT) != 0;
  }
  return result;
}

PollResult poll_readable(int fd, Deadline& deadline, const Interrupt& interrupt) {
  return poll_one(fd, POLLIN, deadline, interrupt);
}

PollResult poll_writable(int fd, Deadline& deadline, const Interrupt& interrupt) {
  return poll_one(fd, POLLOUT, deadline, interrupt);
}

PollResult pause(nanoseconds duration, Deadline& deadline, const Interrupt& interrupt) {
  const Clock::time_point now = Clock::now();
  const bool is_last = deadline.left(now) <= duration;
  Deadline end = is_last ? deadline : Deadline::at(now + duration);
  const PollResult result = poll_one(-1, 0, end, interrupt);
  return result == PollResult::expired && !is_last ? PollResult::ready : result;
}

std::size_t poll_events(int epoll, std::span<epoll_event> happened, Clock::time_point until) {
  using std::chrono::milliseconds;
  // Rounded up, and at most an hour: whoever waits longer asks again.
  const auto left =
      std::clamp<nanoseconds>(until - Clock::now(), nanoseconds(0), std::chrono::hours(1));
  const auto limit = std::chrono::ceil<milliseconds>(left);
  const int count = ::epoll_wait(epoll, happened.data(), static_cast<int>(happened.size()),
                                 static_cast<int>(limit.count()));
  if (count < 0 && errno != EINTR) throw system_error("cannot wait for sockets", errno);
  return count < 0 ? 0 : static_cast<std::size_t>(count);
}

bool Condition::wait(std::unique_lock<std::mutex>& lock, Deadline& deadline) {
  const Clock::time_point now = Clock::now();
  const nanoseconds left = deadline.left(now);
  if (left == nanoseconds(0)) return false;
  if (left >= std::chrono::hours(24 * 365)) {
    condition_.wait(lock);
  } else {
    condition_.wait_until(lock, now + left);
  }
  return true;
}

}  // namespace tutti::net
