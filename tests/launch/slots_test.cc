// The hosts that a person names.
#include "launch/slots.h"

#include <gtest/gtest.h>

#include "launch/refusal.h"
#include "net/process_info.h"

namespace tutti::launch {
namespace {

std::string text_of(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& host : hosts) text += host.name + "=" + std::to_string(host.slots) + " ";
  return text;
}

TEST(HostList, IsMpiruns) {
  EXPECT_EQ(text_of(parse_host_list("-H", "a:2,b:3")), "a=2 b=3 ");
  EXPECT_EQ(text_of(parse_host_list("-H", "a,b,a")), "a=2 b=1 ");
  EXPECT_EQ(text_of(parse_host_list("-H", "me@a:2, 10.0.0.1:4")), "a=2 10.0.0.1=4 ");
  EXPECT_EQ(text_of(parse_host_list("-H", "[::1]:4,[fd00::2]")), "[::1]=4 [fd00::2]=1 ");
}

TEST(HostList, NamesTheEntryThatIsNone) {
  for (const char* const text : {"", "a,,b", ":2", "a:", "a:0", "a:-1", "a:two", "a:99999999999"}) {
    EXPECT_NE(refusal_of([&] { parse_host_list("-H", text); }).find("is no host; write NAME"),
              std::string::npos)
        << text;
  }
}

TEST(Hostfile, IsMpiruns) {
  EXPECT_EQ(text_of(parse_hostfile("hosts",
                                   "# two nodes\n\na slots=8  # fast\r\nme@b\tslots=4 "
                                   "max_slots=6\nb slots=1\nc\n")),
            "a=8 b=5 c=1 ");
}

TEST(Hostfile, NamesTheLineThatIsNone) {
  EXPECT_EQ(refusal_of([] { parse_hostfile("hosts", "a slots=2\nb slots=x\n"); }),
            "hosts:2: cannot read \"slots=x\"; a line is: name slots=8");
  EXPECT_EQ(refusal_of([] { parse_hostfile("hosts", "a 8\n"); }),
            "hosts:1: cannot read \"8\"; a line is: name slots=8");
  EXPECT_EQ(refusal_of([] { parse_hostfile("hosts", "# nobody\n"); }), "hosts: names no host");
  EXPECT_EQ(refusal_of([] { parse_hostfile("hosts", "@\n"); }), "hosts:1: no name of a host");
}

TEST(ThisHost, HasSeveralNames) {
  EXPECT_TRUE(is_this_host("localhost"));
  EXPECT_TRUE(is_this_host("127.0.0.1"));
  EXPECT_TRUE(is_this_host(net::own_host_name()));
  EXPECT_TRUE(is_this_host(net::own_host_name() + ".example.org"));
  EXPECT_FALSE(is_this_host("192.0.2.7")) << "an address for documents, which no host has";
  EXPECT_FALSE(is_this_host("no-such-host.invalid"));
}

TEST(Ranks, AreCountedOnTheSlots) {
  EXPECT_EQ(ranks_on({}, std::nullopt, false), 1);
  EXPECT_EQ(ranks_on({}, 7, false), 7);
  const std::vector<HostSlots> here = {{"localhost", 2}, {"127.0.0.1", 2}};
  EXPECT_EQ(ranks_on(here, std::nullopt, false), 4);
  EXPECT_EQ(ranks_on(here, 3, false), 3);
  EXPECT_EQ(ranks_on(here, 5, true), 5);
  EXPECT_EQ(refusal_of([&] { ranks_on(here, 5, false); }),
            "not enough slots: 5 ranks asked, hosts localhost:2 127.0.0.1:2 give 4; more with "
            "--oversubscribe");
  EXPECT_NE(refusal_of([&] {
              ranks_on({{"192.0.2.7", 2}}, 2, false);
            }).find("host 192.0.2.7 is not this one"),
            std::string::npos);
}

}  // namespace
}  // namespace tutti::launch
