#include "rendezvous/reach.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <vector>

#include "net/process_info.h"
#include "net/resolve.h"
#include "net/tcp.h"
#include "rendezvous/init_method.h"
#include "tutti/error.h"

namespace tutti::rendezvous {
namespace {

void use(const net::TcpAddress& own, const std::string& why, Reach* reach) {
  reach->address = own.host();
  reach->interface = net::interface_of(own);
  reach->why = why;
}

/// `point`: "MASTER_ADDR 10.0.0.1", where `host` is.
void look_toward(const std::string& host, const std::string& point, Reach* reach) {
  Deadline deadline = Deadline::after(std::chrono::seconds(2));
  for (const net::TcpAddress& other : net::resolve(host, 0, deadline)) {
    const std::optional<net::TcpAddress> own = net::address_toward(other);
    if (!own) continue;
    if (!own->is_loopback()) return use(*own, fmt::format("the way to {}", point), reach);
    reach->why = fmt::format("{} is this host alone: no port is opened", point);
    return;
  }
  reach->why = fmt::format("there is no way to {}", point);
}

/// Where rank 0 of a job serves whose ranks meet by a file.
void look_at_own_addresses(Reach* reach) {
  const std::vector<net::TcpAddress> own = net::own_addresses();
  if (!own.empty()) {
    return use(own.front(), "the first of this host: rank 0 says in the file where it is", reach);
  }
  reach->why = "this host has no address but loopback";
}

void look(const Identity& identity, const InitMethod& method, Reach* reach) {
  const bool is_env = method.kind == InitMethod::Kind::env;
  if (identity.world_size == 1 || identity.is_one_host || (is_env && !identity.agent.empty())) {
    reach->why = "all ranks are on this host: no port is opened";
  } else if (method.kind == InitMethod::Kind::file) {
    look_at_own_addresses(reach);
  } else if (!is_env) {
    look_toward(method.host, fmt::format("{} of init_method", method.host), reach);
  } else if (identity.master_addr.empty()) {
    reach->why = "MASTER_ADDR is not set";
  } else {
    look_toward(identity.master_addr, fmt::format("MASTER_ADDR {}", identity.master_addr), reach);
  }
}

}  // namespace

Reach reach_of_this_host(const Identity& identity, std::string_view init_method) {
  Reach reach{.host = net::own_host_name()};
  try {
    const InitMethod method = parse_init_method(init_method);
    Identity who = identity;
    if (method.world_size) who.world_size = *method.world_size;
    look(who, method, &reach);
  } catch (const Error& error) {
    reach.why = error.what();
  }
  return reach;
}

}  // namespace tutti::rendezvous
