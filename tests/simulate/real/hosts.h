// Hosts for real ranks: the network namespaces that tests/soak/real_hosts.py has made.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "simulate/round.h"

namespace tutti::simulate {

class Hosts {
 public:
  /// `text`: "PREFIX,ADDRESS,FD": the namespaces are called PREFIX0, PREFIX1 ..., the first of them
  /// has that address, and behind the descriptor is who cuts links.
  explicit Hosts(const std::string& text);

  /// From now on the calling process, which has one thread, is on that host.
  void enter(int host) const;
  /// An address of host 0.
  const std::string& address() const noexcept { return address_; }

  /// When this returns nothing gets any more from host to host as the fault of the plan says, for
  /// so long as that lasts or until all links are mended.
  void cut(const Plan& plan, const Fault& fault) const;
  void mend() const;

 private:
  void ask(const std::string& what) const;

  std::string prefix_, address_;
  int cutter_ = -1;
};

}  // namespace tutti::simulate
