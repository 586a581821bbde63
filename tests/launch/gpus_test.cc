#include "launch/gpus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "launch/placement.h"
#include "launch/refusal.h"

namespace tutti::launch {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// A folder that stands in for the root of a host with GPUs.
class FakeHost {
 public:
  FakeHost(int devices, int known) {
    char name[] = "/tmp/tutti-gpus-XXXXXX";
    root_ = ::mkdtemp(name);
    fs::create_directories(root_ + "/dev");
    for (const char* const other : {"nvidiactl", "nvidia-uvm", "null"})
      std::ofstream(root_ + "/dev/" + other) << "";
    for (int i = 0; i < devices; ++i)
      std::ofstream(root_ + "/dev/nvidia" + std::to_string(i + 3)) << "";
    for (int i = 0; i < known; ++i) {
      fs::create_directories(root_ + "/proc/driver/nvidia/gpus/0000:0" + std::to_string(i) +
                             ":00.0");
    }
  }
  ~FakeHost() { fs::remove_all(root_); }
  Gpus gpus(const Environment& environment = {}) const { return visible_gpus(environment, root_); }
  Gpus gpus_with(const std::string& visible) const {
    return gpus({{"CUDA_VISIBLE_DEVICES", visible}});
  }

 private:
  std::string root_;
};

TEST(VisibleGpus, AreNumberedAsCudaDoes) {
  EXPECT_EQ(FakeHost(2, 8).gpus().names, (Names{"0", "1"})) << "a container with two of eight";
  EXPECT_EQ(FakeHost(0, 3).gpus().names, (Names{"0", "1", "2"})) << "the driver's word alone";
}

TEST(VisibleGpus, EndAtTheFirstEntryThatIsNone) {
  const FakeHost host(4, 4);
  EXPECT_EQ(host.gpus_with("2,0").names, (Names{"2", "0"}));
  EXPECT_EQ(host.gpus_with("1, 3").names, (Names{"1", "3"}));
  EXPECT_EQ(host.gpus_with("3,-1,0").names, (Names{"3"}));
  EXPECT_EQ(host.gpus_with("0,4,1").names, (Names{"0"}));
  EXPECT_EQ(host.gpus_with("GPU-1a2b,MIG-3c").names, (Names{"GPU-1a2b", "MIG-3c"}));
  EXPECT_TRUE(host.gpus_with("").names.empty());
  EXPECT_TRUE(host.gpus_with("99999999999999999999").names.empty());
}

TEST(VisibleGpus, SayWhyThereAreNone) {
  EXPECT_EQ(refusal_of([] { ranks_by_gpus("-n", FakeHost(0, 0).gpus(), 0); }),
            "-n gpu: there is no GPU: no driver of NVIDIA has a GPU here (neither /dev/nvidia0 nor "
            "/proc/driver/nvidia/gpus is there); give a number, 'auto' or 'cpu'");
  EXPECT_EQ(refusal_of([] { ranks_by_gpus("-n", FakeHost(2, 2).gpus_with("-1"), 0); }),
            "-n gpu: there is no GPU: CUDA_VISIBLE_DEVICES=-1 hides all 2; give a number, 'auto' "
            "or 'cpu'");
  EXPECT_EQ(FakeHost(0, 0).gpus_with("GPU-1a2b").names, Names{}) << "a name makes no GPU";
}

TEST(RanksByGpus, AreAsManyAsThereAre) {
  const Gpus six = {{"0", "1", "2", "3", "4", "5"}, ""};
  EXPECT_EQ(ranks_by_gpus("-n", six, 0), 6);
  EXPECT_EQ(ranks_by_gpus("-n", six, 3), 2);
  EXPECT_EQ(refusal_of([&] { ranks_by_gpus("-n", six, 4); }),
            "-n gpu --gpus-per-rank 4: 6 GPUs cannot be dealt out so; give -n 1");
}

TEST(ShareGpus, GivesEachRankNeighbours) {
  const Gpus gpus = {{"4", "5", "GPU-a", "7", "0"}, ""};
  EXPECT_EQ(share_gpus(gpus, 2, 2), (Names{"4,5", "GPU-a,7"}));
  EXPECT_EQ(share_gpus(gpus, 5, 1), (Names{"4", "5", "GPU-a", "7", "0"}));
}

TEST(ShareGpus, RefusesWithTheArithmetic) {
  EXPECT_EQ(refusal_of([] {
              share_gpus({{"0", "3"}, ""}, 3, 1);
            }),
            "--gpus-per-rank 1: 3 ranks need 3 GPUs, and 2 can be seen here: 0,3");
  EXPECT_EQ(refusal_of([] {
              share_gpus({{}, "the reason"}, 1, 1);
            }),
            "--gpus-per-rank 1: 1 rank needs 1 GPU, and there is none: the reason");
}

TEST(ShareGpus, ARankFindsItsOwn) {
  Placement placement = place_on_host({0, 1}, "here", std::vector<Binding>(2));
  const Environment inherited = {{"CUDA_VISIBLE_DEVICES", "2,3"}};
  EXPECT_EQ(rank_variables(inherited, placement, 1, {}).at("CUDA_VISIBLE_DEVICES"), "2,3");
  placement.ranks[1].gpus = "3";
  EXPECT_EQ(rank_variables(inherited, placement, 1, {}).at("CUDA_VISIBLE_DEVICES"), "3");
}

}  // namespace
}  // namespace tutti::launch
