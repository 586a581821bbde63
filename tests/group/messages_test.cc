// Messages that belong together, and groups that come out of one call.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "ranks.h"
#include "tutti/process_group.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

TEST(Batch, NoOrderDeadlocks) {
  on_ranks(3, [](ProcessGroup& world) {
    // Everybody lists sends first, to everybody, itself included, with more than any ring holds.
    constexpr std::size_t kCount = 200'000;
    const auto ranks = static_cast<std::size_t>(world.world_size());
    std::vector<std::vector<int>> out(ranks), in(ranks);
    std::vector<Message> messages;
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      out[peer].assign(kCount, world.rank() * 10 + static_cast<int>(peer));
      in[peer].assign(kCount, -1);
      messages.push_back(Message::send(out[peer], static_cast<int>(peer)));
    }
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      messages.push_back(Message::recv(in[peer], static_cast<int>(peer)));
    }
    world.batch(messages);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      EXPECT_EQ(in[peer], std::vector<int>(kCount, static_cast<int>(peer) * 10 + world.rank()));
    }
  });
}

TEST(Batch, NothingIsPostedIfOneIsWrong) {
  on_ranks(2, [](ProcessGroup& world) {
    int x = world.rank(), y = -1;
    const std::array<Message, 2> messages = {Message::recv(y, 1 - world.rank()),
                                             Message::send(x, 7)};
    const Error error = thrown_by([&] { world.batch(messages); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, "peer 7 is out of range");
    world.sendrecv(x, y, {.to = 1 - world.rank(), .from = 1 - world.rank()});
    EXPECT_EQ(y, 1 - world.rank());
  });
}

TEST(Batch, AsynchronousOnesComeBackOneByOne) {
  on_ranks(2, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    int a = world.rank(), b = world.rank() + 10, c = -1, d = -1;
    const std::array<Message, 4> messages = {
        Message::recv(d, other, {.tag = 2}), Message::recv(c, other, {.tag = 1}),
        Message::send(a, other, {.tag = 1}), Message::send(b, other, {.tag = 2})};
    std::vector<Work> works = world.batch(messages, async);
    ASSERT_EQ(works.size(), 4u);
    wait_all(works);
    EXPECT_EQ(c, other);
    EXPECT_EQ(d, other + 10);
  });
}

TEST(SendRecv, ARing) {
  on_ranks(4, [](ProcessGroup& world) {
    const int right = (world.rank() + 1) % 4, left = (world.rank() + 3) % 4;
    std::vector<double> out(50'000, world.rank()), in(50'000);
    world.sendrecv(out, in, {.to = right, .from = left});
    EXPECT_EQ(in, std::vector<double>(50'000, left));
  });
}

TEST(Waiting, ForAnyReturnsTheOneThatHasEnded) {
  on_ranks(2, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    std::array<int, 2> in = {-1, -1};
    std::vector<Work> works;
    works.push_back(world.recv(in[0], other, {.tag = 0}, async));
    works.push_back(world.recv(in[1], other, {.tag = 1}, async));
    world.send(5, other, {.tag = 1, .buffered = true});
    EXPECT_EQ(wait_any(works), 1u);
    EXPECT_EQ(in[1], 5);
    EXPECT_FALSE(works[0].done());
    world.barrier();
    world.send(6, other, {.tag = 0, .buffered = true});
    wait_all(works);
    EXPECT_EQ(in[0], 6);
    std::vector<Work> none;
    EXPECT_EQ(thrown_by([&] { wait_any(none); }).code(), ErrorCode::kInvalidArgument);
    wait_all(none);
  });
}

TEST(Waiting, ForAllThrowsTheFirstFailureAndLeavesNothingBehind) {
  on_ranks(2, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    std::array<int, 2> in = {-1, -1};
    std::vector<Work> works;
    works.push_back(world.recv(in[0], other, {.tag = 0, .timeout = 20ms}, async));
    works.push_back(world.recv(in[1], other, {.tag = 1}, async));
    world.send(5, other, {.tag = 1, .buffered = true});
    EXPECT_EQ(thrown_by([&] { wait_all(works); }).code(), ErrorCode::kTimeout);
    EXPECT_EQ(in[1], 5) << "the second one has ended as well";
    world.barrier();
  });
}

TEST(Split, ByColorInTheOrderOfTheKeys) {
  on_ranks(5, [](ProcessGroup& world) {
    // Ranks 0, 2, 4 in reverse order; 1 alone; 3 in none.
    const int color = world.rank() == 3 ? -1 : world.rank() % 2;
    ProcessGroup group = world.split({.color = color, .key = -world.rank()});
    EXPECT_EQ(group.is_member(), world.rank() != 3);
    if (!group.is_member()) return;
    const auto ranks = group.world_ranks();
    const std::vector<int> got(ranks.begin(), ranks.end());
    EXPECT_EQ(got, color == 0 ? (std::vector<int>{4, 2, 0}) : (std::vector<int>{1}));
    EXPECT_EQ(group.all_reduce_value(world.rank()), color == 0 ? 6 : 1);
    ProcessGroup again = group.split({});
    EXPECT_EQ(again.world_size(), group.world_size());
  });
}

}  // namespace
}  // namespace tutti
