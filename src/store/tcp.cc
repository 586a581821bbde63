// The store over TCP that a program makes itself.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "net/listen.h"
#include "net/poller.h"
#include "net/process_info.h"
#include "net/resolve.h"
#include "net/security.h"
#include "store/call_store.h"
#include "store/client.h"
#include "store/server.h"
#include "tutti/store.h"

namespace tutti {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

/// Who holds the port may be the server before, about to end.
constexpr std::chrono::seconds kBusyTime{2};

/// A client, and what serves it if that is this process.
struct Made {
  std::unique_ptr<store::Server> server;  // ends after the client
  std::shared_ptr<Store> client;
};

/// What protects it, by the settings of this process.
net::Security check(const TcpStoreOptions& options) {
  const auto reject = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "make_tcp_store: " + why);
  };
  if (options.host.empty()) reject("no host is given: that of the process that serves the store");
  if (options.port < 1 || options.port > 65535) {
    reject(fmt::format("port {} is out of range, from 1 to 65535", options.port));
  }
  if (options.world_size < 0) {
    reject(fmt::format("a world_size of {}: give 0 to wait for nobody", options.world_size));
  }
  if (options.timeout < milliseconds(0)) {
    reject(fmt::format("a timeout of {} ms", options.timeout.count()));
  }
  const Config config({}, read_environment());
  return net::security_of(
      config.text(Setting::security), config.text(Setting::secret_file),
      fmt::format("make_tcp_store: the store at {}:{} goes over TCP", options.host, options.port));
}

/// The ranks of a job meet at a store of rank 0, which knows who they are.
std::optional<Error> admit(const store::Hello& hello, const std::string& place) {
  if (hello.rank < 0) return std::nullopt;
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("rank {} does not meet the others at {}: {} serves a store of the "
                           "program there (make_tcp_store). Give that store to all ranks "
                           "(InitOptions::store), or another port",
                           hello.rank, place, net::describe_process(::getpid())));
}

net::ListenResult listen(const TcpStoreOptions& options, const net::Security& security,
                         const std::vector<net::TcpAddress>& addresses, Deadline& deadline) {
  for (const net::TcpAddress& address : addresses) {
    if (!address.is_wildcard()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("make_tcp_store: {} is all addresses of a host: give the one at which "
                            "the others reach this process, such as one of {}",
                            options.host, net::addresses_of_this_host()));
  }
  const auto look_at_own = [&](const net::TcpAddress& address) {
    return store::look_at_own(address, security, deadline);
  };
  net::ListenResult result = net::listen_at_one_of(addresses, kBusyTime, deadline, look_at_own);
  if (result.status == net::ListenResult::Status::listening) return result;
  const bool is_taken = result.status == net::ListenResult::Status::taken;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("make_tcp_store: {}: {}", net::describe_failure(result),
                          is_taken ? "give another port to all who use it"
                                   : "the server must run where the host points"));
}

std::shared_ptr<Store> connect(const TcpStoreOptions& options, const net::Security& security,
                               const std::vector<net::TcpAddress>& addresses, Deadline& deadline) {
  const store::Hello hello{.world_size = options.world_size, .world = hash_text(random_name())};
  milliseconds backoff(1);
  for (std::string why;;) {
    if (auto connected = store::try_connect_tcp_store(addresses, hello, security, deadline, &why)) {
      return connected->store;
    }
    if (net::pause(backoff, deadline) == net::PollResult::expired) {
      throw Error(
          ErrorCode::kTimeout,
          fmt::format("make_tcp_store: nobody serves it at {}:{} for {:.3g} s ({}). Was the "
                      "process with is_server started, with this host and port?",
                      options.host, options.port,
                      std::chrono::duration<double>(options.timeout).count(), why));
    }
    backoff = std::min(backoff * 2, milliseconds(50));
  }
}

void await_clients(const store::Server& server, const TcpStoreOptions& options,
                   Deadline& deadline) {
  const auto wanted = static_cast<std::size_t>(options.world_size);
  while (server.came_count() < wanted) {
    if (net::pause(milliseconds(1), deadline) != net::PollResult::expired) continue;
    throw Error(
        ErrorCode::kTimeout,
        fmt::format("make_tcp_store: {} of {} have connected to {}:{} within {:.3g} s. Were "
                    "the others started, with this host and port?",
                    server.came_count(), options.world_size, options.host, options.port,
                    std::chrono::duration<double>(options.timeout).count()));
  }
}

}  // namespace

std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options) {
  const net::Security security = check(options);
  Deadline deadline = Deadline::after(std::min(options.timeout, store::kLongest));
  deadline.start(Clock::now());
  std::vector<net::TcpAddress> addresses = net::resolve(options.host, options.port, deadline);
  const auto made = std::make_shared<Made>();
  if (options.is_server) {
    net::ListenResult listening = listen(options, security, addresses, deadline);
    made->server = std::make_unique<store::Server>(store::ServerOptions{
        .tcp_listener = std::move(listening.socket),
        .security = security,
        .admit = [place = listening.address.text()](
                     const store::Hello& hello, const net::Peer&) { return admit(hello, place); },
        .awaited = static_cast<std::size_t>(options.world_size)});
    addresses = {listening.address};
    const bool is_far = std::none_of(addresses.begin(), addresses.end(),
                                     [](const net::TcpAddress& a) { return a.is_loopback(); });
    if (is_far && security.level < net::Level::auth) {
      log(LogLevel::warn,
          fmt::format("a store is served at {}:{} over TCP to whoever reaches it (security={}): "
                      "use a network that you trust, or give all processes TUTTI_SECURITY=auth and "
                      "one secret in TUTTI_SECRET_FILE",
                      options.host, options.port, net::name_of(security.level)));
    }
  }
  made->client = connect(options, security, addresses, deadline);
  if (made->server) await_clients(*made->server, options, deadline);
  Store* const client = made->client.get();
  return {made, client};
}

}  // namespace tutti
