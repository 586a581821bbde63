#include "simulate/real/hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "net/fd.h"

namespace tutti::simulate {

using namespace std::chrono_literals;

namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Hosts::Hosts(const std::string& text) {
  std::istringstream parts(text);
  std::string descriptor;
  std::getline(parts, prefix_, ',');
  std::getline(parts, address_, ',');
  if (!std::getline(parts, descriptor))
    throw std::runtime_error(fmt::format("--on {}: PREFIX,ADDRESS,FD", text));
  cutter_ = std::stoi(descriptor);
}

void Hosts::enter(int host) const {
  const std::string space = fmt::format("/run/netns/{}{}", prefix_, host);
  const net::Fd fd(::open(space.c_str(), O_RDONLY | O_CLOEXEC));
  require(static_cast<bool>(fd) && ::setns(fd.get(), CLONE_NEWNET) == 0, "entering " + space);
}

void Hosts::cut(const Plan& plan, const Fault& fault) const {
  const int host = plan.host_of(fault.who);
  std::string ways;
  for (int other = 0; other < plan.hosts(); ++other) {
    if (other == host || (fault.other >= 0 && fault.other != other)) continue;
    ways += fmt::format(" {}>{}", host, other);
    if (!fault.one_way) ways += fmt::format(" {}>{}", other, host);
  }
  ask(fmt::format("{}{}", fault.lasts / 1ms, ways));
}

void Hosts::mend() const { ask("0"); }

/// The script's one fault, or its end: nobody else asks meanwhile.
void Hosts::ask(const std::string& what) const {
  constexpr int kPatienceMs = 30'000;
  require(::send(cutter_, what.data(), what.size(), MSG_NOSIGNAL) == std::ssize(what),
          "asking for a cut");
  pollfd answer = {cutter_, POLLIN, 0};
  std::array<char, 16> done;
  if (::poll(&answer, 1, kPatienceMs) != 1 || ::recv(cutter_, done.data(), done.size(), 0) <= 0)
    throw std::runtime_error(fmt::format("links were not cut or mended: '{}'", what));
}

}  // namespace tutti::simulate
