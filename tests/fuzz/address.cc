// Whatever a user writes where an address is to stand: it is taken or refused in words. What is
// taken says the same when it is written again.
#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/input.h"
#include "net/interfaces.h"
#include "net/tcp.h"
#include "rendezvous/init_method.h"
#include "tutti/error.h"

namespace {

using namespace tutti;
using fuzz::require;
using fuzz::take_or_refuse;

void take_url(const std::string& text) {
  const rendezvous::InitMethod method = rendezvous::parse_init_method(text);
  using Kind = rendezvous::InitMethod::Kind;
  if (method.kind == Kind::tcp) require(!method.host.empty() && method.port > 0);
  require(method.port >= 0 && method.port <= 65535);
  if (method.kind == Kind::file) require(method.path.starts_with('/'));
  if (method.rank) require(*method.rank >= 0 && !method.is_rank_auto);
}

void take_interfaces(const std::string& text) {
  static const std::vector<net::Interface> all = {
      {"lo", *net::TcpAddress::parse("127.0.0.1:0")},
      {"eth0", *net::TcpAddress::parse("10.1.2.3:0")},
      {"ib0", *net::TcpAddress::parse("[fd00::1:2]:0")}};
  const auto choice = net::InterfaceChoice::parse("TUTTI_SOCKET_IFNAME", text);
  for (const net::Interface& each : all) (void)choice.takes(each);
  (void)net::choose_address("TUTTI_SOCKET_IFNAME", text, all, all[1].address);
}

void take_ports(const std::string& text) {
  const auto range = net::PortRange::parse("TUTTI_PORT_RANGE", text);
  require(range.first >= 0 && range.first <= range.last && range.last <= 65535);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  const std::string text = fuzz::Input(data, byte_count).text();
  take_or_refuse([&] { take_url(text); });
  take_or_refuse([&] { take_interfaces(text); });
  take_or_refuse([&] { take_ports(text); });
  if (const auto address = net::TcpAddress::parse(text)) {
    const auto again = net::TcpAddress::parse(address->text());
    require(again && again->text() == address->text());
  }
  return 0;
}
