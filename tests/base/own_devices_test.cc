#include <gtest/gtest.h>

#include <vector>

#include "device/own.h"

namespace tutti::device {
namespace {

using Ranks = std::vector<SeenDevices>;

TEST(OwnDevices, AreSaidInOneLine) {
  const SeenDevices seen{2, 4, "node-1", "GPU-5ebe, 1", true};
  EXPECT_EQ(SeenDevices::parse(seen.text()), seen);
  EXPECT_EQ(SeenDevices::parse("").count, 0);
  EXPECT_EQ(SeenDevices::parse("what is this").count, 0);
}

TEST(OwnDevices, AreEnoughForNccl) {
  const SeenDevices both{2, 2, "a", "all", true};
  EXPECT_EQ(why_no_nccl(Ranks{both, both}), "");
  EXPECT_EQ(why_no_nccl(Ranks{both}), "");
  // The launcher has given each its own.
  const Ranks each = {{1, 2, "a", "0", true},
                      {1, 2, "a", "1", true},
                      {1, 2, "b", "0", true},
                      {1, 2, "b", "1", true}};
  EXPECT_EQ(why_no_nccl(each), "");
}

TEST(OwnDevices, AreNotAndThatIsSaid) {
  const SeenDevices one{1, 2, "a", "all", true};
  EXPECT_EQ(why_no_nccl(Ranks{one, one}),
            "ranks 0 and 1 of a share its 1 device, and NCCL wants one for each");
  SeenDevices none = one;
  none.count = 0;
  EXPECT_EQ(why_no_nccl(Ranks{one, none}),
            "ranks 0 and 1 of a share its 1 device, and NCCL wants one for each");
  EXPECT_EQ(why_no_nccl(Ranks{none, one}), "rank 0 sees no device");
  SeenDevices without = one;
  without.has_nccl = false;
  EXPECT_EQ(why_no_nccl(Ranks{without}),
            "rank 0 has no NCCL that can be used (tutti backends says why)");
}

}  // namespace
}  // namespace tutti::device
