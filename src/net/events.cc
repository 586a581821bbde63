#include "net/events.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>

#include "base/memory_reserve.h"
#include "net/system_error.h"

namespace tutti::net {

namespace {

constexpr std::uint64_t kWakeup = 0;  // the id of its own wake-up

Fd make_epoll() {
  Fd epoll = Fd::open_private([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  if (!epoll) throw system_error("cannot watch sockets", errno);
  return epoll;
}

std::uint32_t events_of(std::uint8_t wanted) noexcept {
  const bool reads = (wanted & static_cast<std::uint8_t>(Events::Want::read)) != 0;
  const bool writes = (wanted & static_cast<std::uint8_t>(Events::Want::write)) != 0;
  return (reads ? EPOLLIN | EPOLLRDHUP : 0u) | (writes ? EPOLLOUT : 0u) | EPOLLONESHOT;
}

}  // namespace

Events::Events() : epoll_(make_epoll()) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeup}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wakeup_.fd(), &event) != 0)
    throw system_error("cannot watch sockets", errno);
}

std::unique_ptr<Events::Watched> Events::watch(int fd, Call call) {
  std::unique_ptr<Watched> watched;  // its destructor takes the lock, also where this throws
  const std::lock_guard lock(mutex_);
  watched.reset(new Watched(*this, ++last_id_, fd, std::move(call)));
  watched_.emplace(watched->id_, watched.get());
  epoll_event event{.events = EPOLLONESHOT, .data = {.u64 = watched->id_}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw system_error("cannot watch a socket", errno);
  return watched;
}

Events::Watched::~Watched() {
  std::unique_lock lock(events_.mutex_);
  events_.watched_.erase(id_);
  ::epoll_ctl(events_.epoll_.get(), EPOLL_CTL_DEL, fd_, nullptr);
  if (events_.runner_ == std::this_thread::get_id()) return;
  Deadline never;
  while (events_.running_ == id_) events_.idle_.wait(lock, never);
}

bool Events::Watched::arm(Want want) noexcept {
  const std::lock_guard lock(mutex_);
  const auto wanted = static_cast<std::uint8_t>(wanted_ | static_cast<std::uint8_t>(want));
  if (wanted == wanted_) return false;
  wanted_ = wanted;
  epoll_event event{.events = events_of(wanted), .data = {.u64 = id_}};
  ::epoll_ctl(events_.epoll_.get(), EPOLL_CTL_MOD, fd_, &event);
  return true;
}

void Events::post(Call call) noexcept {
  until_done([&] {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(call));
  });
  wakeup_.signal();
}

void Events::run(Clock::time_point until) {
  std::array<epoll_event, 64> happened;
  const std::size_t count = poll_events(epoll_.get(), happened, until);
  for (std::size_t i = 0; i < count; ++i) {
    if (happened[i].data.u64 == kWakeup) {
      call_posted();
    } else {
      call(happened[i].data.u64);
    }
  }
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

/// The others that are due have been disarmed: they must run, whatever this one throws. False: it
/// has thrown.
bool Events::guarded(const Call& call) noexcept {
  try {
    call();
    return true;
  } catch (...) {
    if (!thrown_) thrown_ = std::current_exception();
    return false;
  }
}

void Events::call(std::uint64_t id) noexcept {
  Watched* watched = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = watched_.find(id);
    if (found == watched_.end()) return;
    watched = found->second;
    running_ = id;
    runner_ = std::this_thread::get_id();
  }
  std::uint8_t wanted = 0;
  {
    const std::lock_guard lock(watched->mutex_);
    wanted = std::exchange(watched->wanted_, wanted);
  }
  const std::shared_ptr<const Call> run = watched->call_;
  const bool has_returned = guarded(*run);  // which may end what it watches
  const std::lock_guard lock(mutex_);
  if (!has_returned && watched_.contains(id)) watched->arm(static_cast<Want>(wanted));
  running_ = 0;
  runner_ = {};
  idle_.notify_all();
}

void Events::call_posted() noexcept {
  wakeup_.drain();
  std::vector<Call> due;
  {
    const std::lock_guard lock(mutex_);
    due.swap(posted_);
  }
  for (const Call& each : due) guarded(each);
}

}  // namespace tutti::net
