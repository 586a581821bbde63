#include "soak/fault_proxy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <span>
#include <stdexcept>

#include "control/hosts/door_plate.h"
#include "control/hosts/hello.h"
#include "native/channels.h"
#include "net/handshake.h"

namespace tutti::soak {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kAtOnce = 16 * 1024;
constexpr int kPollMs = 5;

net::TcpAddress parsed(const std::string& text) {
  const auto address = net::TcpAddress::parse(text);
  if (!address) throw std::runtime_error("no address: " + text);
  return *address;
}

/// Whether the other end has acknowledged all that was written, or will never do so.
bool is_acknowledged(int socket) {
  int waiting = 0;
  return ::ioctl(socket, SIOCOUTQ, &waiting) != 0 || waiting == 0;
}

/// What the caller says with these bytes; that it is nobody: there are too few.
net::Claim claim_of(std::span<const std::byte> hello) {
  auto handshake = net::Handshake::called(net::Level::opportunistic,
                                          [](const net::Claim&) { return std::nullopt; });
  if (hello.size() == net::kHelloBytes) handshake.receive(hello);
  return handshake.has_claim() ? handshake.claim() : net::Claim();
}

bool is_of_messages(const net::Claim& claim) {
  return claim.purpose == net::Purpose::data &&
         claim.lane == static_cast<std::uint32_t>(native::Lane::message);
}

}  // namespace

FaultProxy::FaultProxy(const std::string& target, const Fault& fault)
    : target_(parsed(target)),
      fault_(fault),
      listener_(net::listen_tcp(parsed(target.substr(0, target.rfind(':')) + ":0"))),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this] { run(); }) {}

FaultProxy::~FaultProxy() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

std::string FaultProxy::address() const { return net::TcpAddress::local(listener_.get()).text(); }

void FaultProxy::run() {
  while (true) {
    std::vector<pollfd> watched = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    bool waits_for_time = false;
    for (const auto& pair : pairs_) {
      for (const int from : {0, 1}) {
        const Pipe& pipe = pair->pipes[from];
        const bool is_held = pipe.held_until > Clock::now();
        waits_for_time |= is_held;
        if (!pipe.bytes.empty() && !is_held)
          watched.push_back({pair->ends[1 - from].get(), POLLOUT, 0});
        if (pipe.bytes.empty() && !pipe.has_ended)
          watched.push_back({pair->ends[from].get(), POLLIN, 0});
      }
    }
    ::poll(watched.data(), watched.size(), waits_for_time ? kPollMs : -1);
    if (watched[0].revents != 0) return;
    if (watched[1].revents != 0) accept();
    for (const auto& pair : pairs_) {
      for (const int from : {0, 1}) {
        if (!pair->is_over) move(*pair, from);
      }
      const bool both = pair->pipes[0].is_told && pair->pipes[1].is_told;
      pair->is_over = pair->is_over || both;
    }
    std::erase_if(pairs_, [](const auto& pair) { return pair->is_over; });
  }
}

void FaultProxy::accept() {
  net::Fd caller(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!caller) return;
  net::Fd rank(::socket(target_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(rank.get(), target_.data(), target_.size()) != 0) return;  // its door is shut
  ::fcntl(rank.get(), F_SETFL, O_NONBLOCK);
  auto pair = std::make_unique<Pair>();
  pair->ends[0] = std::move(caller);
  pair->ends[1] = std::move(rank);
  pairs_.push_back(std::move(pair));
}

void FaultProxy::move(Pair& pair, int from) {
  Pipe& pipe = pair.pipes[from];
  if (pipe.held_until > Clock::now()) return;
  if (pipe.bytes.empty() && !pipe.has_ended) read(pair, from);
  if (pair.is_over || pipe.held_until > Clock::now()) return;
  if (!pipe.bytes.empty() && !write(pair, from)) return;
  if (pipe.has_ended && !pipe.is_told) {
    ::shutdown(pair.ends[1 - from].get(), SHUT_WR);
    pipe.is_told = true;
  }
}

void FaultProxy::read(Pair& pair, int from) {
  Pipe& pipe = pair.pipes[from];
  pipe.bytes.resize(kAtOnce);
  pipe.written = 0;
  const ssize_t count = ::recv(pair.ends[from].get(), pipe.bytes.data(), kAtOnce, 0);
  pipe.bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (count < 0 && errno == EAGAIN) return;
  if (count < 0) return reset(pair, from);
  pipe.has_ended = count == 0;
  const auto of_hello = from == 0 ? net::kHelloBytes - pair.hello.size() : 0;
  pair.hello.insert(
      pair.hello.end(), pipe.bytes.begin(),
      pipe.bytes.begin() + static_cast<std::ptrdiff_t>(std::min(of_hello, pipe.bytes.size())));
  if (pair.is_drained) pipe.bytes.clear();
  const auto come = static_cast<std::uint64_t>(count);
  const std::uint64_t skipped = uncounted(pair, from, come), counted = come - skipped;
  pipe.read += come;
  const auto before = passed_[from].fetch_add(counted);
  const bool carries = from == (fault_.is_inward ? 0 : 1) && before <= fault_.offset &&
                       fault_.offset < before + counted;
  if (carries && fault_.harm != Harm::none && !has_struck_.exchange(true)) {
    struck_caller_.store(claim_of(pair.hello).from);
    strike(pair, from, static_cast<std::size_t>(skipped + fault_.offset - before));
  }
}

/// How many of the bytes that have just come do not count: the first ones, or all.
std::uint64_t FaultProxy::uncounted(const Pair& pair, int from, std::uint64_t come) const {
  if (!fault_.is_of_messages) return 0;
  if (!is_of_messages(claim_of(pair.hello))) return come;
  const std::uint64_t greeting =
      from == 0 ? net::kHelloBytes + net::kProofBytes : net::kReplyBytes + control::kAnswerBytes;
  const std::uint64_t before = pair.pipes[from].read;
  return before < greeting ? std::min(come, greeting - before) : 0;
}

/// The byte at `at` of what has just been read is the one.
void FaultProxy::strike(Pair& pair, int from, std::size_t at) {
  Pipe& pipe = pair.pipes[from];
  if (fault_.harm == Harm::garbage) {
    pipe.bytes[at] ^= std::byte{0x5a};
    return;
  }
  if (fault_.harm == Harm::delay) {  // what came before goes with the rest: nothing waits for less
    pipe.held_until = Clock::now() + fault_.delay;
    return;
  }
  pipe.bytes.resize(at);
  const auto until = Clock::now() + 1s;
  while (!(write(pair, from) && is_acknowledged(pair.ends[1 - from].get())) &&
         Clock::now() < until) {
    ::usleep(100);
  }
  if (fault_.harm == Harm::reset) return reset(pair, from);
  for (const int end : {0, 1}) ::shutdown(pair.ends[end].get(), SHUT_WR);
  for (Pipe& each : pair.pipes) each.bytes.clear();
  pair.pipes[0].is_told = pair.pipes[1].is_told = false;
  pair.is_drained = true;
}

/// True: all is written. Who has gone takes nothing.
bool FaultProxy::write(Pair& pair, int from) {
  Pipe& pipe = pair.pipes[from];
  while (pipe.written < pipe.bytes.size()) {
    const ssize_t count = ::send(pair.ends[1 - from].get(), pipe.bytes.data() + pipe.written,
                                 pipe.bytes.size() - pipe.written, MSG_NOSIGNAL);
    if (count < 0 && errno == EAGAIN) return false;
    if (count < 0) break;
    pipe.written += static_cast<std::size_t>(count);
  }
  pipe.bytes.clear();
  pipe.written = 0;
  return true;
}

void FaultProxy::reset(Pair& pair, int from) {
  for (net::Fd& end : pair.ends) {
    net::reset_at_close(end.get());
    end = net::Fd();
  }
  pair.pipes[from].bytes.clear();
  pair.is_over = true;
}

void DoorStore::set(std::string_view key, std::string_view value, Timeout timeout) {
  const bool is_door = key.find("door/") != std::string_view::npos && proxy_ == nullptr;
  if (!is_door) return base_->set(key, value, timeout);
  // Its proof is of the address as well.
  const net::Security security{.level = net::Level::opportunistic};
  const WorldRank rank(std::atoi(std::string(key.substr(key.find("door/") + 5)).c_str()));
  auto plate = control::decode_plate(std::string(value), rank, security);
  if (!plate) throw std::runtime_error("no plate: " + std::string(value));
  proxy_ = std::make_unique<FaultProxy>(plate->address.text(), fault_);
  plate->address = parsed(proxy_->address());
  base_->set(key, control::encode(*plate, rank, security), timeout);
}

}  // namespace tutti::soak
