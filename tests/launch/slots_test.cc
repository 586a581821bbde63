// The hosts that a person names.
#include "launch/slots.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

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
  EXPECT_EQ(text_of(parse_hostfile("hosts", "me@a:4\n[::1]:2\n[::1]\nfd00::1\n")),
            "a=4 [::1]=3 fd00::1=1 ")
      << "MPICH's";
  EXPECT_EQ(text_of(parse_hostfile("hosts", "a max_slots=4\nb max-slots=3 slots=2\n")), "a=4 b=2 ");
}

TEST(Hostfile, NamesTheLineThatIsNone) {
  EXPECT_EQ(refusal_of([] { parse_hostfile("hosts", "a slots=2\nb slots=x\n"); }),
            "hosts:2: cannot read \"slots=x\"; a line is: name slots=8");
  for (const char* const text : {"a:", "a:0", "a:x", "[::1]:x"}) {
    EXPECT_EQ(refusal_of([&] { parse_hostfile("hosts", text); }),
              "hosts:1: cannot read \"" + std::string(text) + "\"; a line is: name slots=8");
  }
  EXPECT_EQ(refusal_of([] { parse_hostfile("hosts", "a 8\n"); }),
            "hosts:1: cannot read \"8\"; a line is: name slots=8");
  EXPECT_EQ(refusal_of([] { parse_hostfile("hosts", "# nobody\n"); }), "hosts: names no host");
  for (const char* const text : {"@\n", ":2 localhost\n"}) {
    EXPECT_EQ(refusal_of([&] { parse_hostfile("hosts", text); }), "hosts:1: no name of a host");
  }
}

TEST(Hostfile, IsReadWholeOrRefused) {
  const std::string file = testing::TempDir() + "tutti_hosts_" + std::to_string(::getpid());
  const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
  write("a\nb");
  EXPECT_EQ(read_hostfile("--hostfile", file), "a\nb");
  write(std::string(std::size_t{1} << 20, '#'));
  EXPECT_EQ(read_hostfile("--hostfile", file).size(), std::size_t{1} << 20);
  EXPECT_NE(refusal_of([] {
              read_hostfile("--hostfile", "/dev/zero");
            }).find("is longer than 1048576 bytes"),
            std::string::npos);
  EXPECT_EQ(refusal_of([] { read_hostfile("--hostfile", "/"); }),
            "--hostfile /: cannot be read: Is a directory");
  std::filesystem::remove(file);
  EXPECT_EQ(refusal_of([&] { read_hostfile("--hostfile", file); }),
            "--hostfile " + file + ": cannot be read: No such file or directory");
}

/// What is no text may be in such a file, and no end of it.
TEST(Hostfile, IsQuotedInBoundsAndWithoutControlCharacters) {
  EXPECT_EQ(refusal_of([] { parse_hostfile("hosts", "a \x1b[31mred"); }),
            "hosts:1: cannot read \"\\x1b[31mred\"; a line is: name slots=8");
  EXPECT_EQ(refusal_of([] { parse_hostfile("hosts", "a " + std::string(5000, 'x')); }),
            "hosts:1: cannot read \"" + std::string(80, 'x') + "...\"; a line is: name slots=8");
  EXPECT_NE(refusal_of([] {
              parse_host_list("-H", "\x1b]0;x\x07:y");
            }).find("-H \\x1b]0;x\\x07:y: \"\\x1b]0;x\\x07:y\" is no host"),
            std::string::npos);
  const std::string stranger = "\x1b." + std::string(5000, 'x') + ".invalid";
  const std::string text = refusal_of([&] { ranks_on({{stranger, 1}}, 1, false); });
  EXPECT_TRUE(text.starts_with("host \\x1b.xxx")) << text;
  EXPECT_LT(text.size(), 400u);
  std::vector<HostSlots> many;
  for (int i = 0; i < 200; ++i) many.push_back({"127.0.0." + std::to_string(i), 1});
  EXPECT_LT(refusal_of([&] { ranks_on(many, 256, false); }).size(), 400u);
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
