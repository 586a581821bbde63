// What something between two hosts holds up, having acknowledged it in the peer's place, is on its
// way: nobody who waits for it is in a deadlock.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "ranks.h"
#include "secret_file.h"
#include "soak/fault_proxy.h"
#include "tutti/init.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

/// On the wire: a header, and a payload of less than a line behind it.
constexpr std::uint64_t kHeader = 64, kAnnouncement = 2 * kHeader;
/// A circle is told in half of it.
constexpr auto kHeldFor = 1500ms;

/// Rank 0 calls rank 1, each on a host of its own: a connection is made by who sends first.
void talk(ProcessGroup& world, std::size_t count) {
  for (int round = 0; round < 2; ++round) {
    std::vector<int> data(count, round);
    if (world.rank() == 0) {
      world.send(data, 1);
      data.assign(count, -1);
      world.recv(data, 1);
    } else {
      world.recv(data, 0);
      world.send(data, 0);
    }
    EXPECT_EQ(data, std::vector<int>(count, round));
    world.barrier();
  }
}

/// `fault`: before the door of rank 1.
void expect_no_deadlock(const soak::Fault& fault, std::size_t count) {
  const SecretFile secret("a secret of this test");
  InitOptions init;
  init.settings = {
      {"deadlock_after", "50ms"}, {"security", "opportunistic"}, {"secret_file", secret.path()}};
  const auto body = [&](const test_kit::Rank& me) {
    InitOptions own = me.init;
    const auto store =
        std::make_shared<soak::DoorStore>(own.store, me.rank == 1 ? fault : soak::Fault());
    own.store = store;
    ProcessGroup world = init_process_group(own);
    talk(world, count);
    world.close();
    if (me.rank == 1) {
      EXPECT_TRUE(store->proxy()->has_struck());
    }
    return std::string();
  };
  for (const auto& outcome : test_kit::collect_ranks(2, body, {.init = init, .hosts = {0, 1}}))
    EXPECT_EQ(outcome.failure, "") << "rank " << outcome.rank;
}

soak::Fault held_up(bool is_inward, std::uint64_t offset) {
  return {.harm = soak::Harm::delay,
          .is_inward = is_inward,
          .offset = offset,
          .delay = kHeldFor,
          .is_of_messages = true};
}

TEST(HeldUp, AnAnnouncement) { expect_no_deadlock(held_up(true, 0), 10); }
TEST(HeldUp, AMatch) { expect_no_deadlock(held_up(false, 0), 10); }
TEST(HeldUp, AnAnnouncementBehindAMatch) { expect_no_deadlock(held_up(false, kHeader), 10); }

/// The rank that has matched is in a barrier, and the other one in the send.
TEST(HeldUp, AMatchOfWhoHasGoneOn) { expect_no_deadlock(held_up(true, kAnnouncement), 10); }

TEST(HeldUp, OfALargeMessage) {
  expect_no_deadlock(held_up(true, 0), 10'000);
  expect_no_deadlock(held_up(true, 3 * kHeader), 10'000);
  expect_no_deadlock(held_up(false, 0), 10'000);
}

}  // namespace
}  // namespace tutti
