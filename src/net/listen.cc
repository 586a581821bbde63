#include "net/listen.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "net/poller.h"
#include "net/port_holder.h"
#include "net/process_info.h"

namespace tutti::net {

ListenResult listen_at_one_of(std::span<const TcpAddress> addresses,
                              std::chrono::nanoseconds patience, Deadline& deadline) {
  ListenResult result;
  if (!addresses.empty()) result.address = addresses[0];
  Deadline end_of_patience = Deadline::after(patience);
  end_of_patience.start(Deadline::Clock::now());
  for (;;) {
    bool is_taken = false;
    for (const TcpAddress& address : addresses) {
      int problem = 0;
      if (std::optional<Fd> socket = try_listen_tcp(address, &problem)) {
        return {ListenResult::Status::listening, std::move(*socket), address, {}};
      }
      if (problem != EADDRINUSE) continue;
      // Not at the next one: who calls would come to the holder of this one first.
      is_taken = true;
      result.address = address;
      break;
    }
    if (!is_taken) return result;
    result.holder = holder_of(result.address);
    const bool is_ours = result.holder == describe_process(::getpid());
    if (pause(std::chrono::milliseconds(20), is_ours ? deadline : end_of_patience) ==
        PollResult::expired) {
      result.status = ListenResult::Status::taken;
      return result;
    }
  }
}

std::string describe_failure(const ListenResult& result) {
  if (result.status == ListenResult::Status::not_ours) {
    return fmt::format("{} is not an address of this host, which has {}", result.address.host(),
                       addresses_of_this_host());
  }
  return fmt::format("port {} of {} is taken by {}", result.address.port(), result.address.host(),
                     result.holder.empty()
                         ? "a process that is not shown to us (`ss -ltnp` as root shows it)"
                         : result.holder);
}

}  // namespace tutti::net
