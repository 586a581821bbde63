// How many devices of CUDA a process may see.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "device/visible.h"
#include "tutti/init.h"

namespace tutti::device {
namespace {

std::size_t listed(const std::string& list) { return visible_devices(&list, "/nowhere").size(); }

/// What `tutti run` says of a host with devices: tests/launch/gpus_test.cc.
TEST(VisibleDevices, OfAHostThatShowsNoneTheListIsBelieved) {
  EXPECT_EQ(listed(""), 0U);
  EXPECT_EQ(listed("0"), 1U);
  EXPECT_EQ(listed("3,1, 2"), 3U);
  EXPECT_EQ(listed("0,-1,1"), 1U);
  EXPECT_EQ(listed("-1"), 0U);
  EXPECT_EQ(listed("NoDevFiles"), 0U);
  EXPECT_EQ(listed("GPU-5ebe9f43,MIG-1f2e,0"), 3U);
  EXPECT_TRUE(visible_devices(nullptr, "/nowhere").empty());
}

TEST(VisibleDevices, TheRanksOfAHostTakeThemInTurn) {
  const auto say = [](const char* rank, const char* visible) {
    ::setenv("RANK", rank, 1);
    ::setenv("LOCAL_RANK", rank, 1);
    ::setenv("WORLD_SIZE", "4", 1);
    ::setenv("LOCAL_WORLD_SIZE", "4", 1);
    ::setenv("CUDA_VISIBLE_DEVICES", visible, 1);
  };
  say("3", "0,1");
  EXPECT_EQ(local_rank(), 3);
  EXPECT_EQ(local_world_size(), 4);
  EXPECT_EQ(local_device(), 1);
  say("2", "5");
  EXPECT_EQ(local_device(), 0);
  say("2", "");
  EXPECT_EQ(local_device(), 0);
  for (const char* const name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"}) {
    ::unsetenv(name);
  }
}

}  // namespace
}  // namespace tutti::device
