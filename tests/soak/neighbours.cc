#include "soak/neighbours.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <random>
#include <stdexcept>

namespace tutti::soak {
namespace {

constexpr unsigned kLongestLife = 3600;  // s
constexpr uid_t kNobody = 65534;
constexpr std::size_t kMostHeld = 900;

/// One neighbour's work, in its own process.
class Flooder {
 public:
  Flooder(const SharedPage& page, Harm harm) : page_(page), harm_(harm) {
    for (char& byte : junk_) byte = static_cast<char>(random_());
  }
  [[noreturn]] void run() {
    for (;;) {
      switch (page_->orders.load()) {
        case Page::Orders::rest:
          held_.clear();
          ::usleep(1000);
          break;
        case Page::Orders::spin:
          random_.discard(10'000);
          break;
        case Page::Orders::flood:
          aim();
          attempt();
      }
    }
  }

 private:
  void aim() {
    const std::uint32_t target = page_->target.load(std::memory_order_acquire);
    if (target == target_) return;
    target_ = target;
    held_.clear();
    name_.sun_family = AF_UNIX;
    std::memcpy(name_.sun_path, page_->address.data(), sizeof name_.sun_path);
    length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(name_.sun_path));
    name_.sun_path[0] = '\0';  // where people write '@'
  }

  void attempt() {
    if (target_ == 0) return void(::usleep(100));
    page_->attempts.fetch_add(1, std::memory_order_relaxed);
    net::Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) return held_.clear();
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name_), length_) != 0) {
      ::usleep(errno == EAGAIN ? 10 : 1000);
      return;
    }
    harm(std::move(socket));
  }

  void harm(net::Fd socket) {
    constexpr std::array<std::uint32_t, 4> kHeader{0x7fffffff, 100, 0, 0};
    switch (harm_) {
      case Harm::close:
        return;
      case Harm::garbage:
        write(socket, junk_.data() + random_() % 1000, random_() % 60'000);
        return;
      case Harm::oversize:
        write(socket, kHeader.data(), sizeof kHeader);
        break;
      case Harm::hold:
        break;
      case Harm::drip:
        write(socket, junk_.data(), 1);
    }
    held_.push_back(std::move(socket));
    if (harm_ == Harm::drip && held_.size() > 200) {
      for (const net::Fd& held : held_) write(held, junk_.data() + 1, 1);
      ::usleep(50'000);
    }
    if (held_.size() > kMostHeld) held_.clear();
  }

  static void write(const net::Fd& socket, const void* bytes, std::size_t count) {
    [[maybe_unused]] const auto sent = ::send(socket.get(), bytes, count, MSG_NOSIGNAL);
  }

  const SharedPage& page_;
  const Harm harm_;
  std::mt19937 random_{static_cast<unsigned>(::getpid())};
  std::array<char, 65'536> junk_;
  std::vector<net::Fd> held_;
  sockaddr_un name_{};
  socklen_t length_ = 0;
  std::uint32_t target_ = 0;
};

[[noreturn]] void live(const SharedPage& page, Harm harm, bool is_other_user, pid_t parent) {
  const rlimit limit{kMostHeld + 100, kMostHeld + 100};
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const bool is_set = !is_other_user || (::setgroups(0, nullptr) == 0 &&
                                         ::setresgid(kNobody, kNobody, kNobody) == 0 &&
                                         ::setresuid(kNobody, kNobody, kNobody) == 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kLongestLife);
  if (!is_set || ::getppid() != parent) ::_exit(1);
  Flooder(page, harm).run();
}

}  // namespace

const char* name_of(Harm harm) noexcept {
  constexpr std::array kNames{"close", "garbage", "oversize", "hold", "drip"};
  return kNames[static_cast<std::size_t>(harm)];
}

SharedPage::SharedPage() : memory_(::memfd_create("soak-page", MFD_CLOEXEC)) {
  if (::ftruncate(memory_.get(), sizeof(Page)) != 0) throw std::runtime_error("no memory to share");
  map();
}

SharedPage::SharedPage(const std::string& path)
    : memory_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
  map();
}

void SharedPage::map() {
  void* at = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (at == MAP_FAILED) throw std::runtime_error("cannot map the page of the soak");
  page_ = static_cast<Page*>(at);
}

SharedPage::~SharedPage() { ::munmap(page_, sizeof(Page)); }

std::string SharedPage::path() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), memory_.get());
}

Neighbours::Neighbours(const SharedPage& page, Harm harm, int count, bool is_other_user) {
  const pid_t parent = ::getpid();
  for (int i = 0; i < count; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) live(page, harm, is_other_user, parent);
    if (pid > 0) pids_.push_back(pid);
  }
}

Neighbours::~Neighbours() {
  for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
  for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
}

}  // namespace tutti::soak
