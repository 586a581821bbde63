#include "net/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>

#include "base/log.h"
#include "net/system_error.h"
#include "tutti/error.h"

namespace tutti::net {
namespace {

std::span<const unsigned char> bytes_of_host(const TcpAddress& address) noexcept {
  if (address.family() == AF_INET6) {
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address.data());
    return v6->sin6_addr.s6_addr;
  }
  const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address.data());
  return {reinterpret_cast<const unsigned char*>(&v4->sin_addr), sizeof v4->sin_addr};
}

/// Whether the first `bits` are the same.
bool is_within(const TcpAddress& address, const TcpAddress& base, int bits) noexcept {
  if (address.family() != base.family()) return false;
  const auto one = bytes_of_host(address), other = bytes_of_host(base);
  for (int bit = 0; bit < bits; ++bit) {
    const auto at = static_cast<std::size_t>(bit / 8);
    const int mask = 0x80 >> (bit % 8);
    if (((one[at] ^ other[at]) & mask) != 0) return false;
  }
  return true;
}

[[noreturn]] void reject(std::string_view what, std::string_view text, std::string_view wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: cannot read \"{}\": give {}", what, text, wanted));
}

std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || problem != std::errc() || end != text.data() + text.size())
    return std::nullopt;
  return number;
}

std::string list(std::span<const Interface> all) {
  std::string text;
  for (const Interface& each : all)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", each.name, each.address.host());
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<Interface> interfaces_of_this_host() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw system_error("cannot list the interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<Interface> all;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const sockaddr* const address = entry->ifa_addr;
    if (address == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const bool is_v6 = address->sa_family == AF_INET6;
    if (!is_v6 && address->sa_family != AF_INET) continue;
    if (is_v6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr))
      continue;
    all.push_back({entry->ifa_name,
                   TcpAddress::of(address, is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in))});
  }
  return all;
}

InterfaceChoice InterfaceChoice::parse(std::string_view what, std::string_view text) {
  constexpr std::string_view kForm =
      "beginnings of names (eth,ib), whole names (=eth0), what is not wanted (^docker,lo), or "
      "networks (10.0.0.0/8)";
  InterfaceChoice choice;
  std::string_view rest = text;
  const auto drop = [&](char sign) {
    if (!rest.starts_with(sign)) return false;
    rest.remove_prefix(1);
    return true;
  };
  choice.excludes_ = drop('^');
  choice.is_exact_ = drop('=');
  for (bool is_last = false; !is_last;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view entry = rest.substr(0, comma);
    is_last = comma == rest.size();
    rest.remove_prefix(is_last ? comma : comma + 1);
    if (entry.empty()) reject(what, text, kForm);
    const std::size_t slash = entry.find('/');
    if (slash == entry.npos) {
      choice.names_.emplace_back(entry);
      continue;
    }
    const std::string host(entry.substr(0, slash));
    const bool is_v6 = host.find(':') != host.npos;
    const auto base = TcpAddress::parse(is_v6 ? fmt::format("[{}]:0", host) : host + ":0");
    const auto bits = number_of(entry.substr(slash + 1));
    if (!base || !bits || *bits < 0 || *bits > (is_v6 ? 128 : 32)) reject(what, text, kForm);
    choice.networks_.push_back({*base, *bits});
  }
  return choice;
}

bool InterfaceChoice::is_named(const Interface& each) const {
  const auto has_name = [&](const std::string& name) {
    return is_exact_ ? each.name == name : each.name.starts_with(name);
  };
  const auto has_network = [&](const Network& network) {
    return is_within(each.address, network.base, network.bits);
  };
  return std::any_of(names_.begin(), names_.end(), has_name) ||
         std::any_of(networks_.begin(), networks_.end(), has_network);
}

bool InterfaceChoice::takes(const Interface& each) const {
  if (!excludes_) return is_named(each);
  return !is_named(each) && !each.address.is_loopback();
}

TcpAddress choose_address(std::string_view what, std::string_view text,
                          std::span<const Interface> all,
                          const std::optional<TcpAddress>& preferred) {
  const InterfaceChoice choice = InterfaceChoice::parse(what, text);
  std::vector<TcpAddress> taken;
  for (const Interface& each : all)
    if (choice.takes(each)) taken.push_back(each.address);
  if (taken.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}={} leaves no interface: this host has {}", what, text, list(all)));
  }
  if (!preferred) return taken.front();
  const auto same = std::find_if(taken.begin(), taken.end(), [&](const TcpAddress& each) {
    return each.host() == preferred->host();
  });
  if (same != taken.end()) return *same;
  const auto alike = std::find_if(taken.begin(), taken.end(), [&](const TcpAddress& each) {
    return each.family() == preferred->family();
  });
  return alike != taken.end() ? *alike : taken.front();
}

std::optional<TcpAddress> AddressChoice::of(const std::optional<TcpAddress>& preferred) const {
  if (text.empty()) return preferred;
  try {
    return choose_address(what, text, interfaces_of_this_host(), preferred);
  } catch (const Error& error) {
    if (!is_hint) throw;
    log(LogLevel::info, fmt::format("not followed: {}", error.what()));
    return preferred;
  }
}

PortRange PortRange::parse(std::string_view what, std::string_view text) {
  if (text.empty()) return {};
  const std::size_t split = std::min(text.find_first_of("-:"), text.size());
  const auto first = number_of(text.substr(0, split));
  const auto last = split == text.size() ? first : number_of(text.substr(split + 1));
  if (!first || !last || *first < 1 || *first > 65535 || *last < 1 || *last > 65535)
    reject(what, text, "two ports from 1 to 65535 like 30000-30100, or one");
  if (*first > *last) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the first port of \"{}\" is larger than the last: give {}-{}",
                            what, text, *last, *first));
  }
  return {*first, *last};
}

Fd listen_in_range(TcpAddress address, const PortRange& range) {
  if (range.first == 0) return listen_tcp(address);
  for (int port = range.first; port <= range.last; ++port) {
    address.set_port(port);
    int error_number = 0;
    if (auto listener = try_listen_tcp(address, &error_number)) return std::move(*listener);
    if (error_number != EADDRINUSE) {
      throw system_error(fmt::format("cannot listen at {}", address.text()), error_number);
    }
  }
  throw Error(ErrorCode::kSystem,
              fmt::format("no port from {} to {} of {} is free: every rank on this host needs one, "
                          "and by file:// rank 0 another one (TUTTI_PORT_RANGE)",
                          range.first, range.last, address.host()));
}

}  // namespace tutti::net
