// What init_method may say, and what is wrong with the rest.
#include "rendezvous/init_method.h"

#include <gtest/gtest.h>

#include "ranks.h"

namespace tutti::rendezvous {
namespace {

TEST(InitMethod, SaysWhereAndWho) {
  EXPECT_EQ(parse_init_method("").kind, InitMethod::Kind::env);
  EXPECT_EQ(parse_init_method("env://").kind, InitMethod::Kind::env);
  const InitMethod env = parse_init_method("env://?rank=1&world_size=2");
  EXPECT_EQ(env.rank, 1);
  EXPECT_EQ(env.world_size, 2);
  const InitMethod plain = parse_init_method("tcp://node-1.cluster:29500");
  EXPECT_EQ(plain.kind, InitMethod::Kind::tcp);
  EXPECT_EQ(plain.host, "node-1.cluster");
  EXPECT_EQ(plain.port, 29500);
  EXPECT_FALSE(plain.rank || plain.world_size || plain.is_rank_auto);
  const InitMethod full = parse_init_method("tcp://[2001:db8::1]:1/?world_size=4&rank=3");
  EXPECT_EQ(full.host, "2001:db8::1");
  EXPECT_EQ(full.port, 1);
  EXPECT_EQ(full.rank, 3);
  EXPECT_EQ(full.world_size, 4);
  const InitMethod numbered = parse_init_method("tcp://10.0.0.1:65535?rank=auto&world_size=4");
  EXPECT_TRUE(numbered.is_rank_auto);
  EXPECT_FALSE(numbered.rank);
}

TEST(InitMethod, OfAFile) {
  const InitMethod plain = parse_init_method("file:///shared/my job");
  EXPECT_EQ(plain.kind, InitMethod::Kind::file);
  EXPECT_EQ(plain.path, "/shared/my job");
  const InitMethod full = parse_init_method("file:///shared/job?rank=3&world_size=4");
  EXPECT_EQ(full.path, "/shared/job");
  EXPECT_EQ(full.rank, 3);
  EXPECT_EQ(full.world_size, 4);
}

struct Wrong {
  const char* text;
  const char* why;
};

class InitMethodWrong : public testing::TestWithParam<Wrong> {};

TEST_P(InitMethodWrong, IsShownWithWhatIsWrongAndARemedy) {
  const Error error = thrown_by([&] { parse_init_method(GetParam().text); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, std::string("init_method '") + GetParam().text + "': ");
  expect_text(error, GetParam().why);
  const std::string text = error.what();
  EXPECT_TRUE(text.find("write tcp://HOST:PORT") != std::string::npos ||
              text.find("give the one at which") != std::string::npos ||
              text.find("write file:///PATH") != std::string::npos)
      << text;
}

INSTANTIATE_TEST_SUITE_P(
    All, InitMethodWrong,
    testing::Values(
        Wrong{"tcp", "it names no way to meet"}, Wrong{"node-1:29500", "it names no way to meet"},
        Wrong{"tcp:/node-1:29500", "it names no way to meet"},
        Wrong{"http://node-1:29500", "there is no way to meet 'http://'"},
        Wrong{"TCP://node-1:29500", "there is no way to meet 'TCP://'"},
        Wrong{"env://node-1", "'node-1' after env://"}, Wrong{"tcp://", "there is no port"},
        Wrong{"tcp://node-1", "there is no port"}, Wrong{"tcp://:29500", "there is no host"},
        Wrong{"tcp://node-1:", "there is no port"},
        Wrong{"tcp://node-1:0", "port 0 is out of range, from 1 to 65535"},
        Wrong{"tcp://node-1:65536", "port 65536 is out of range, from 1 to 65535"},
        Wrong{"tcp://node-1:99999999999", "port 99999999999 is out of range"},
        Wrong{"tcp://node-1:-1", "port -1 is out of range"},
        Wrong{"tcp://node-1:29500x", "port '29500x' is no whole number"},
        Wrong{"tcp://::1:29500", "'::1' has colons"},
        Wrong{"tcp://[::1:29500", "the bracket before the host is not closed"},
        Wrong{"tcp://[]:29500", "there is no host"},
        Wrong{"tcp://[::1]29500", "there is no port after the bracket"},
        Wrong{"tcp://[node-1]:29500", "'[node-1]' is no IPv6 address"},
        Wrong{"tcp://me@node-1:29500", "there is a user in the host 'me@node-1'"},
        Wrong{"tcp://node 1:29500", "'node 1' is no name of a host"},
        Wrong{"tcp://0.0.0.0:29500", "'0.0.0.0' is all addresses of a host"},
        Wrong{"tcp://[::]:29500", "'::' is all addresses of a host"},
        Wrong{"tcp://node-1:29500/store", "there is a path, '/store', after the port"},
        Wrong{"tcp://node-1:29500?", "'' has no value"},
        Wrong{"tcp://node-1:29500?rank", "'rank' has no value"},
        Wrong{"tcp://node-1:29500?rank=", "there is no rank"},
        Wrong{"tcp://node-1:29500?rank=one", "rank 'one' is no whole number"},
        Wrong{"tcp://node-1:29500?rank=-1", "rank -1 is out of range"},
        Wrong{"tcp://node-1:29500?rank=0&rank=1", "rank is given twice"},
        Wrong{"tcp://node-1:29500?rank=auto&rank=1", "rank is given twice"},
        Wrong{"tcp://node-1:29500?world_size=0", "world_size 0 is out of range, from 1 to"},
        Wrong{"tcp://node-1:29500?world_size=2&world_size=2", "world_size is given twice"},
        Wrong{"tcp://node-1:29500?rank=2&world_size=2", "rank 2 is out of range: world_size 2"},
        Wrong{"tcp://node-1:29500?world_sise=2", "did you mean 'world_size'?"},
        Wrong{"tcp://node-1:29500?timeout=5", "there is no parameter 'timeout'"},
        Wrong{"env://?rank=auto", "at tcp:// only"}, Wrong{"file://", "is one from the root"},
        Wrong{"file://shared/job", "'shared/job' stands where the path begins"},
        Wrong{"file:///shared/", "'/shared/' is a folder, not a file"},
        Wrong{"file:///shared/job?rank=auto&world_size=2", "at tcp:// only"}));

}  // namespace
}  // namespace tutti::rendezvous
