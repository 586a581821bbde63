// Which interfaces and ports are chosen, and what is said where none is left.
#include "net/interfaces.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ranks.h"

namespace tutti::net {
namespace {

TcpAddress at(const std::string& text) { return *TcpAddress::parse(text); }

const std::vector<Interface> kAll = {{"lo", at("127.0.0.1:0")},   {"eth0", at("10.0.0.7:0")},
                                     {"eth0", at("[fd00::7]:0")}, {"eth1", at("192.168.3.7:0")},
                                     {"ib0", at("172.16.9.7:0")}, {"docker0", at("172.17.0.1:0")}};

std::string chosen(const std::string& text, const std::optional<TcpAddress>& preferred = {}) {
  return choose_address("TUTTI_SOCKET_IFNAME", text, kAll, preferred).host();
}

std::string names_of(const std::string& text) {
  const InterfaceChoice choice = InterfaceChoice::parse("TUTTI_SOCKET_IFNAME", text);
  std::string names;
  for (const Interface& each : kAll)
    if (choice.takes(each)) names += each.name + " ";
  return names;
}

TEST(Interfaces, AreChosenAsNcclDoesAndByNetwork) {
  EXPECT_EQ(names_of("eth"), "eth0 eth0 eth1 ");
  EXPECT_EQ(names_of("eth1,ib"), "eth1 ib0 ");
  EXPECT_EQ(names_of("=eth"), "");
  EXPECT_EQ(names_of("=eth0"), "eth0 eth0 ");
  EXPECT_EQ(names_of("^docker,ib"), "eth0 eth0 eth1 ");
  EXPECT_EQ(names_of("^=eth0,docker0"), "eth1 ib0 ");
  EXPECT_EQ(names_of("lo"), "lo ");
  EXPECT_EQ(names_of("10.0.0.0/8"), "eth0 ");
  EXPECT_EQ(names_of("172.16.0.0/12"), "ib0 docker0 ");
  EXPECT_EQ(names_of("172.16.9.7/32"), "ib0 ");
  EXPECT_EQ(names_of("fd00::/8"), "eth0 ");
  EXPECT_EQ(names_of("^0.0.0.0/0"), "eth0 ");
}

TEST(Interfaces, TheOneTowardTheMeetingPointIsPreferredThenItsFamily) {
  EXPECT_EQ(chosen("eth"), "10.0.0.7");
  EXPECT_EQ(chosen("eth", at("192.168.3.7:0")), "192.168.3.7");
  EXPECT_EQ(chosen("eth", at("172.16.9.7:0")), "10.0.0.7");
  EXPECT_EQ(chosen("eth", at("[fd00::9]:0")), "fd00::7");
  EXPECT_EQ(chosen("ib", at("[fd00::9]:0")), "172.16.9.7");
}

TEST(Interfaces, WhereNoneIsLeftThoseThereAreAreListed) {
  for (const char* text : {"wlan", "=eth", "10.9.9.9/32", "^0.0.0.0/0,::/0"}) {
    const Error error = thrown_by([&] { chosen(text); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, std::string("TUTTI_SOCKET_IFNAME=") + text +
                           " leaves no interface: this host has lo (127.0.0.1), eth0 (10.0.0.7)");
  }
  for (const char* text : {"^", "=", "eth,", ",eth", "10.0.0.0/33", "10.0.0/8", "fd00::/129",
                           "10.0.0.0/", "10.0.0.0/x"}) {
    const Error error = thrown_by([&] { chosen(text); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, "cannot read \"" + std::string(text) + "\"");
  }
}

TEST(Interfaces, AHintThatLeavesNoneIsNotFollowed) {
  const TcpAddress usual = at("192.0.2.7:0");
  EXPECT_EQ(AddressChoice{}.of(usual)->host(), usual.host());
  EXPECT_FALSE(AddressChoice{}.of(std::nullopt));
  AddressChoice choice{.what = "TUTTI_SOCKET_IFNAME", .text = "lo"};
  EXPECT_EQ(choice.of(usual)->host(), "127.0.0.1");
  EXPECT_EQ(choice.of(std::nullopt)->host(), "127.0.0.1");
  choice.text = "=no_such_one";
  expect_text(thrown_by([&] { (void)choice.of(usual); }), "leaves no interface");
  choice.is_hint = true;
  EXPECT_EQ(choice.of(usual)->host(), usual.host());
}

TEST(Interfaces, ThisHostHasLoopback) {
  const auto all = interfaces_of_this_host();
  EXPECT_TRUE(std::any_of(all.begin(), all.end(),
                          [](const Interface& each) { return each.address.is_loopback(); }));
}

TEST(Ports, ARangeIsReadAndKept) {
  EXPECT_EQ(PortRange::parse("port_range", "").first, 0);
  const PortRange range = PortRange::parse("port_range", "30000-30100");
  EXPECT_EQ(range.first, 30000);
  EXPECT_EQ(range.last, 30100);
  EXPECT_EQ(PortRange::parse("port_range", "7:9").last, 9);
  EXPECT_EQ(PortRange::parse("port_range", "7").last, 7);
  for (const char* text : {"0-5", "1-65536", "70000-5", "-", "5-", "a", "5-6-7", "-5"}) {
    const Error error = thrown_by([&] { PortRange::parse("port_range", text); });
    expect_text(error, "port_range: cannot read \"" + std::string(text) + "\"");
  }
  const Error backwards = thrown_by([] { PortRange::parse("port_range", "30010-30000"); });
  EXPECT_EQ(backwards.code(), ErrorCode::kInvalidArgument);
  expect_text(backwards,
              "port_range: the first port of \"30010-30000\" is larger than the last: give "
              "30000-30010");
}

TEST(Ports, ThoseThatAreTakenArePassedAndNoneIsAnError) {
  const TcpAddress host = at("127.0.0.1:0");
  const Fd first = listen_tcp(host);
  const int port = TcpAddress::local(first.get()).port();
  const Error error = thrown_by([&] { listen_in_range(host, {port, port}); });
  EXPECT_EQ(error.code(), ErrorCode::kSystem);
  expect_text(error, "no port from " + std::to_string(port));
  expect_text(error, "TUTTI_PORT_RANGE");
  const int last = std::min(port + 100, 65535);
  const Fd second = listen_in_range(host, {port, last});
  EXPECT_GT(TcpAddress::local(second.get()).port(), port);
  EXPECT_LE(TcpAddress::local(second.get()).port(), last);
}

}  // namespace
}  // namespace tutti::net
