// How many devices of CUDA a process may see.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "device/visible.h"
#include "tutti/init.h"

namespace tutti::device {
namespace {

namespace fs = std::filesystem;

int listed(const std::string& visible) { return count_visible(&visible, "/nowhere"); }

TEST(VisibleDevices, TheVariableCountsUpToWhatIsNoDevice) {
  EXPECT_EQ(listed(""), 0);
  EXPECT_EQ(listed("0"), 1);
  EXPECT_EQ(listed("3,1, 2"), 3);
  EXPECT_EQ(listed("0,-1,1"), 1);
  EXPECT_EQ(listed("-1"), 0);
  EXPECT_EQ(listed("NoDevFiles"), 0);
  EXPECT_EQ(listed("GPU-5ebe9f43,MIG-1f2e,0"), 3);
}

TEST(VisibleDevices, WithoutItTheNodesCountThenWhatTheDriverHas) {
  const fs::path root = fs::temp_directory_path() / ("tutti_visible_" + std::to_string(::getpid()));
  EXPECT_EQ(count_visible(nullptr, root), 0);
  fs::create_directories(root / "proc/driver/nvidia/gpus/0000:3b:00.0");
  fs::create_directories(root / "proc/driver/nvidia/gpus/0000:5e:00.0");
  fs::create_directories(root / "dev");
  EXPECT_EQ(count_visible(nullptr, root), 2);
  for (const char* const name : {"nvidia1", "nvidiactl", "nvidia-uvm", "null"}) {
    std::ofstream(root / "dev" / name) << "";
  }
  EXPECT_EQ(count_visible(nullptr, root), 1);
  fs::remove_all(root);
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
