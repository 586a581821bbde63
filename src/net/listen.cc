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
namespace {

using Status = ListenResult::Status;

bool is_ours(const ListenResult& result) { return result.holder == describe_process(::getpid()); }

}  // namespace

ListenResult listen_at_one_of(std::span<const TcpAddress> addresses,
                              std::chrono::nanoseconds patience, Deadline& deadline,
                              const LookAtOwn& look_at_own) {
  ListenResult result;
  if (!addresses.empty()) result.address = addresses[0];
  Deadline end_of_patience = Deadline::after(patience);
  end_of_patience.start(Deadline::Clock::now());
  for (;;) {
    bool is_taken = false;
    for (const TcpAddress& address : addresses) {
      int problem = 0;
      if (std::optional<Fd> socket = try_listen_tcp(address, &problem)) {
        return {.status = Status::listening, .socket = std::move(*socket), .address = address};
      }
      if (problem != EADDRINUSE) continue;
      // Not at the next one: who calls would come to the holder of this one first.
      is_taken = true;
      result.address = address;
      break;
    }
    if (!is_taken) return result;
    result.holder = holder_of(result.address);
    result.own = is_ours(result) ? look_at_own(result.address) : Holding::unknown;
    if (result.own == Holding::for_a_while) {
      end_of_patience = Deadline::after(patience);
      end_of_patience.start(Deadline::Clock::now());
    }
    if (result.own == Holding::for_good || end_of_patience.expired(Deadline::Clock::now()) ||
        pause(std::chrono::milliseconds(20), deadline) == PollResult::expired) {
      result.status = Status::taken;
      return result;
    }
  }
}

std::string describe_failure(const ListenResult& result) {
  if (result.status == Status::not_ours) {
    return fmt::format("{} is not an address of this host, which has {}", result.address.host(),
                       addresses_of_this_host());
  }
  return fmt::format("port {} of {} is taken by {}{}", result.address.port(), result.address.host(),
                     is_ours(result) ? "this process itself, " : "",
                     result.holder.empty()
                         ? "a process that is not shown to us (`ss -ltnp` as root shows it)"
                         : result.holder);
}

}  // namespace tutti::net
