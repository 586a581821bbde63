#include "rendezvous/pmi.h"

#include <fmt/format.h>
#include <unistd.h>

#include "net/process_info.h"
#include "net/unix_socket.h"
#include "tutti/error.h"

namespace tutti::rendezvous {
namespace {

[[noreturn]] void refuse(int fd, const std::string& what) {
  throw Error(
      ErrorCode::kSystem,
      fmt::format("PMI_FD={}, the connection to MPICH's launcher, {}: something between the "
                  "launcher and this process has closed it. Set MASTER_ADDR=127.0.0.1 and "
                  "one free MASTER_PORT for all ranks",
                  fd, what));
}

net::Peer launcher_at(int fd) {
  try {
    return net::peer_of(fd);
  } catch (const Error&) {
    refuse(fd, "is no open socket");
  }
}

}  // namespace

std::string pmi_job(int fd) {
  const net::Peer launcher = launcher_at(fd);
  const auto stat = launcher.pid > 0 ? net::stat_of(launcher.pid) : std::nullopt;
  if (!stat) refuse(fd, fmt::format("leads to process {}, which cannot be seen", launcher.pid));
  if (!net::descends_from(::getpid(), launcher.pid)) {
    refuse(fd, fmt::format("leads to {}, which has not started this process",
                           net::describe_process(launcher.pid)));
  }
  return fmt::format("pid {} of {} in {}", launcher.pid, stat->start_time, net::pid_space());
}

}  // namespace tutti::rendezvous
