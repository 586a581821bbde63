#include "net/end_order.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "net/poller.h"

namespace tutti::net {

EndOrder::EndOrder() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

void EndOrder::watch(pid_t pid) {
  if (!epoll_) return;
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<std::uint64_t>(pid);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, process.get(), &event) != 0) return;
  processes_.insert_or_assign(pid, std::move(process));
}

std::vector<pid_t> EndOrder::ended() {
  std::vector<pid_t> pids;
  std::array<epoll_event, 64> events;
  while (!processes_.empty()) {
    const std::size_t count = poll_events(epoll_.get(), events, Deadline::Clock::now());
    if (count == 0) break;
    for (const epoll_event& event : std::span(events).first(count)) {
      const auto pid = static_cast<pid_t>(event.data.u64);
      if (processes_.erase(pid) != 0) pids.push_back(pid);  // which closes its descriptor
    }
  }
  return pids;
}

}  // namespace tutti::net
