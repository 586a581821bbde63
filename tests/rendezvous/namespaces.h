// Hosts for tests: network namespaces of this machine joined by a bridge, each with an address.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "children.h"

namespace tutti::test {

/// Empty, with the reason, where they are not permitted; std::runtime_error if making them fails
/// for another one. Gone with this object.
class Namespaces {
 public:
  explicit Namespaces(int count) {
    try {
      make(count);
    } catch (...) {
      take_down();
      throw;
    }
  }
  ~Namespaces() { take_down(); }
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  /// Why there are none; empty: there are.
  const std::string& why_not() const { return why_not_; }
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }
  static std::string address_v6(int host) { return "fd77::" + std::to_string(host + 1); }

  /// The network no longer carries anything from or to that host, which sees nothing of it.
  void cut(int host) {
    run("ip -n " + name("hub") + " link set p" + std::to_string(host) + " down");
  }
  /// The rank that `on_host` has started, as this process sees it.
  static pid_t pid_inside(const Child& child) {
    const std::string pid = std::to_string(child.pid());
    std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
    pid_t inside = -1;
    children >> inside;
    return inside;
  }

  /// Runs in a process of that host, which has pids and a name of its own, too.
  Child on_host(int host, const std::function<std::string()>& body) const {
    const std::string space = "/var/run/netns/" + name(std::to_string(host));
    return Child([=] {
      const net::Fd fd(::open(space.c_str(), O_RDONLY | O_CLOEXEC));
      const std::string called = "host-" + std::to_string(host);
      if (::setns(fd.get(), CLONE_NEWNET) != 0 || ::unshare(CLONE_NEWUTS | CLONE_NEWPID) != 0 ||
          ::sethostname(called.data(), called.size()) != 0) {
        return std::string("cannot enter the namespace");
      }
      Child inside(body);  // the first process of its pid namespace
      return inside.result();
    });
  }

 private:
  void make(int count) {
    // Within a namespace of their own, in which the bridge is as well.
    run("ip netns add " + name("hub"));
    run("ip -n " + name("hub") + " link add hub type bridge");
    run("ip -n " + name("hub") + " link set hub up");
    for (int host = 0; host < count; ++host) {
      const std::string space = name(std::to_string(host));
      const std::string port = "p" + std::to_string(host);
      run("ip netns add " + space);
      run("ip -n " + name("hub") + " link add " + port + " type veth peer name eth0 netns " +
          space);
      run("ip -n " + name("hub") + " link set " + port + " master hub up");
      run("ip -n " + space + " addr add " + address(host) + "/24 dev eth0");
      run("ip -n " + space + " -6 addr add " + address_v6(host) + "/64 dev eth0 nodad");
      run("ip -n " + space + " link set eth0 up");
      run("ip -n " + space + " link set lo up");
    }
  }
  void take_down() {
    for (const std::string& space : made_) {
      [[maybe_unused]] const int status =
          std::system(("ip netns del " + space + " 2>/dev/null").c_str());
    }
  }
  std::string name(const std::string& what) const {
    return "tutti-" + std::to_string(owner_) + "-" + what;
  }
  void run(const std::string& command) {
    if (!why_not_.empty()) return;
    std::FILE* const output = ::popen((command + " 2>&1").c_str(), "r");
    std::string text;
    for (int c = 0; output != nullptr && (c = std::fgetc(output)) != EOF;) {
      text.push_back(static_cast<char>(c));
    }
    const int status = output == nullptr ? -1 : ::pclose(output);
    const bool is_refused = text.find("not permitted") != std::string::npos ||
                            text.find("ermission denied") != std::string::npos ||
                            text.find("not supported") != std::string::npos ||
                            text.find("nknown device type") != std::string::npos ||
                            text.find("ip: not found") != std::string::npos;
    if (status != 0 && !is_refused) throw std::runtime_error(command + ": " + text);
    if (status != 0) why_not_ = "no namespaces here: " + command + ": " + text;
    if (status == 0 && command.starts_with("ip netns add ")) made_.push_back(command.substr(13));
  }

  const pid_t owner_ = ::getpid();
  std::vector<std::string> made_;
  std::string why_not_;
};

}  // namespace tutti::test
