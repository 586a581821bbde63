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

/// `usual`: where nothing asks for another one.
void use(const net::TcpAddress& usual, const std::string& why, const net::AddressChoice& choice,
         Reach* reach) {
  const net::TcpAddress own = *choice.of(usual);
  reach->address = own.host();
  reach->interface = net::interface_of(own);
  reach->why = own.host() == usual.host() ? why : fmt::format("{}={}", choice.what, choice.text);
}

/// `point`: "MASTER_ADDR 10.0.0.1", where `host` is.
void look_toward(const std::string& host, const std::string& point,
                 const net::AddressChoice& choice, Reach* reach) {
  Deadline deadline = Deadline::after(std::chrono::seconds(2));
  for (const net::TcpAddress& other : net::resolve(host, 0, deadline)) {
    const std::optional<net::TcpAddress> own = net::address_toward(other);
    if (!own) continue;
    if (!own->is_loopback()) return use(*own, fmt::format("the way to {}", point), choice, reach);
    reach->why = fmt::format("{} is this host alone: no port is opened", point);
    return;
  }
  reach->why = fmt::format("there is no way to {}", point);
}

/// Where rank 0 of a job serves whose ranks meet by a file.
void look_at_own_addresses(const net::AddressChoice& choice, Reach* reach) {
  const std::vector<net::TcpAddress> own = net::own_addresses();
  if (!own.empty()) {
    return use(own.front(), "the first of this host: rank 0 says in the file where it is", choice,
               reach);
  }
  reach->why = "this host has no address but loopback";
}

void look(const Identity& identity, const InitMethod& method, const net::AddressChoice& choice,
          Reach* reach) {
  const bool is_env = method.kind == InitMethod::Kind::env;
  if (identity.world_size == 1 || identity.is_one_host || (is_env && !identity.agent.empty())) {
    reach->why = "all ranks are on this host: no port is opened";
  } else if (method.kind == InitMethod::Kind::file) {
    look_at_own_addresses(choice, reach);
  } else if (!is_env) {
    look_toward(method.host, fmt::format("{} of init_method", method.host), choice, reach);
  } else if (identity.master_addr.empty()) {
    reach->why = "MASTER_ADDR is not set";
  } else {
    look_toward(identity.master_addr, fmt::format("MASTER_ADDR {}", identity.master_addr), choice,
                reach);
  }
}

}  // namespace

net::AddressChoice choice_of(const std::string& value, const std::string& source) {
  const bool is_ours = source == "option" || source == "TUTTI_SOCKET_IFNAME";
  return {
      .what = source == "option" ? "socket_ifname" : source, .text = value, .is_hint = !is_ours};
}

Reach reach_of_this_host(const Identity& identity, std::string_view init_method,
                         const net::AddressChoice& choice) {
  Reach reach{.host = net::own_host_name()};
  try {
    const InitMethod method = parse_init_method(init_method);
    Identity who = identity;
    if (method.world_size) who.world_size = *method.world_size;
    look(who, method, choice, &reach);
  } catch (const Error& error) {
    reach.why = error.what();
  }
  return reach;
}

}  // namespace tutti::rendezvous
