// Whole messages, as every rank is told them: who called what, and what the others do meanwhile.
#include <atomic>
#include <regex>
#include <thread>

#include "ranks.h"
#include "tutti/init.h"
#include "tutti/objects.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using Told = std::vector<std::string>;

/// Line `line` of a program.
Where at(int line) { return {"role.cc", line}; }

/// Without what differs from run to run: who the ranks are to the machine, and times.
std::string steady(const std::string& text) {
  const std::string without_pids =
      std::regex_replace(text, std::regex(R"( \((world rank \d+, )?pid [^)]*\))"), "");
  return std::regex_replace(without_pids, std::regex(R"(, waiting [0-9.]+ s for)"),
                            ", waiting for");
}

/// What each rank's `call` throws.
Told told(int world_size, const std::function<void(ProcessGroup&)>& call) {
  const auto body = [&](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    return std::string(thrown_by([&] { call(world); }).what());
  };
  Told texts;
  for (const auto& rank : test_kit::collect_ranks(world_size, body)) {
    EXPECT_EQ(rank.failure, "");
    texts.push_back(steady(rank.result));
  }
  return texts;
}

const std::string kSameOrder = ". Every rank must call the same operations in the same order";

TEST(Told, ACallThatIsMadeOfOthersIsNamed) {
  const std::string cause =
      "the ranks disagree about operation #1: rank 0 called all_gather(i32 x 2) for the colors of "
      "split at role.cc:3; rank 1 called broadcast(u64 x 1, root 0) for the length of "
      "broadcast_object at role.cc:4" +
      kSameOrder;
  EXPECT_EQ(
      told(2,
           [](ProcessGroup& world) {
             std::string plan;
             if (world.rank() == 0) {
               (void)world.split({.color = 0}, at(3));
             } else {
               broadcast_object(world, plan, {}, at(4));
             }
           }),
      (Told{"all_gather #1 (rank 0) for the colors of split at role.cc:3: " + cause,
            "broadcast #1 (rank 1) for the length of broadcast_object at role.cc:4: " + cause}));
}

TEST(Told, SendrecvIsNamed) {
  on_ranks(1, [](ProcessGroup& world) {
    std::array<float, 4> x = {};
    const Error error = thrown_by([&] { world.sendrecv(x, x, {.to = 0, .from = 0}, at(5)); });
    EXPECT_TRUE(std::string(error.what()).starts_with("recv (rank 0) for sendrecv at role.cc:5: "))
        << error.what();
  });
}

TEST(Told, AMonitoredBarrierIsCalledSo) {
  const MonitoredBarrierOptions options{.timeout = milliseconds(100), .wait_all_ranks = false};
  const std::string cause =
      "after 0.1 s in rank 0's monitored_barrier #1 at role.cc:6: rank 1 had not entered; it has "
      "completed no collective yet. If it is only slow, give a longer timeout";
  const Told texts = told(2, [&](ProcessGroup& world) {
    if (world.rank() == 0) world.monitored_barrier(options, at(6));
    while (!world.error()) std::this_thread::sleep_for(milliseconds(1));
    world.barrier({}, at(7));
  });
  EXPECT_EQ(texts, (Told{"monitored_barrier #1 (rank 0) at role.cc:6: " + cause,
                         "barrier (rank 1) at role.cc:7: " + cause}));
}

TEST(Told, CountsThatDiffer) {
  const std::string cause =
      "the ranks disagree about operation #1: rank 0 called reduce_scatterv(i32 x 5, sum) at "
      "role.cc:8; rank 1 called reduce_scatterv(i32 x 5, sum) at role.cc:8 (their counts differ)" +
      kSameOrder;
  EXPECT_EQ(told(2,
                 [](ProcessGroup& world) {
                   const std::size_t first = world.rank() == 0 ? 2 : 1;
                   std::vector<int> all(5), part(world.rank() == 0 ? 2 : 4);
                   world.reduce_scatterv(all, part, std::array{first, 5 - first}, {}, at(8));
                 }),
            (Told{"reduce_scatterv #1 (rank 0) at role.cc:8: " + cause,
                  "reduce_scatterv #1 (rank 1) at role.cc:8: " + cause}));
}

/// Of two ranks that disagree nobody can say which is wrong.
TEST(Told, EqualSidesAreBothNamed) {
  test_kit::collect_ranks(2, [](const test_kit::Rank& me) -> std::string {
    ProcessGroup world = init_process_group(me.init);
    std::vector<int> x(2 + static_cast<std::size_t>(me.rank));
    const Error error = thrown_by([&] { world.all_reduce(x); });
    EXPECT_EQ(error.code(), ErrorCode::kCollectiveMismatch);
    EXPECT_EQ(error.context().culprits, (std::vector<int>{0, 1})) << error.what();
    return {};
  });
}

/// Returns once the board shows that it is in a close, or waits in a barrier.
void await_call_of_rank_1(ProcessGroup& world) {
  for (int tries = 0; tries < 4000; ++tries) {
    int x = 0;
    const std::string text =
        thrown_by([&] { world.recv(x, 1, {.tag = 99, .timeout = milliseconds(5)}); }).what();
    if (text.find("is in close") != std::string::npos ||
        text.find(", waiting ") != std::string::npos) {
      return;
    }
  }
  ADD_FAILURE() << "rank 1 has not called";
}

/// Two groups of both ranks, of which rank 1 takes the second first; they live until both ranks
/// have been told.
Told told_of_crossed_groups(const std::function<void(ProcessGroup& own, int rank)>& call) {
  std::atomic<int> done{0};
  return told(2, [&](ProcessGroup& world) {
    ProcessGroup first = world.new_group({0, 1}, at(10)), second = world.new_group({0, 1}, at(11));
    const int rank = world.rank();
    if (rank == 0) await_call_of_rank_1(world);
    const Error error = thrown_by([&] { call(rank == 0 ? first : second, rank); });
    done.fetch_add(1);
    while (done.load() < 2) std::this_thread::yield();
    throw Error(error);
  });
}

milliseconds budget_of(int rank) { return milliseconds(rank == 0 ? 200 : 5000); }

TEST(Told, GroupsClosedInAnotherOrder) {
  EXPECT_EQ(told_of_crossed_groups(
                [](ProcessGroup& own, int rank) { own.close(budget_of(rank), at(12 + rank)); }),
            (Told{"close of group world/0-1 (rank 0) at role.cc:12: rank 1 has not left after 0.2 "
                  "s; rank 1 has completed no collective yet and meanwhile is in close at "
                  "role.cc:13 of the group made by new_group({0, 1}) at role.cc:11 (#2)",
                  "close of group world/0-1#2 (rank 1) at role.cc:13: rank 0 has not left after "
                  "5 s; rank 0 has completed no collective yet and gave up close at "
                  "role.cc:12 (rank 1 had not left) of the group made by new_group({0, 1}) at "
                  "role.cc:10"}));
}

TEST(Told, BarriersOfTwoGroupsInAnotherOrder) {
  const std::string ending = ". If it is only slow, give a longer timeout";
  EXPECT_EQ(told_of_crossed_groups([](ProcessGroup& own, int rank) {
              own.barrier({.timeout = budget_of(rank)}, at(14 + rank));
            }),
            (Told{"barrier #1 of group world/0-1 (rank 0) at role.cc:14: after 0.2 s in rank 0's "
                  "barrier #1 at role.cc:14: rank 1 had not entered; it has completed no "
                  "collective yet and meanwhile is in barrier #1 at role.cc:15 of the group made "
                  "by new_group({0, 1}) at role.cc:11 (#2), waiting for world rank 0" +
                      ending,
                  "barrier #1 of group world/0-1#2 (rank 1) at role.cc:15: after 5 s in rank "
                  "1's barrier #1 at role.cc:15: rank 0 had not entered; it has completed no "
                  "collective yet and was in barrier #1 at role.cc:14 of the group made by "
                  "new_group({0, 1}) at role.cc:10, waiting for world rank 1, when that failed" +
                      ending}));
}

TEST(Told, AnEmptyGroupSaysInWhatCall) {
  ProcessGroup empty;
  int x = 0;
  const Error error = thrown_by([&] { empty.all_reduce(x, {}, at(20)); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_STREQ(error.what(),
               "all_reduce at role.cc:20: this group is empty: the calling rank is not a member of "
               "it, or it has been moved from. Ask is_member() first.");
  EXPECT_EQ(error.context().op, "all_reduce");
  EXPECT_EQ(error.context().call_site, "role.cc:20");
  expect_text(thrown_by([&] { (void)empty.rank(); }), "rank: this group is empty");
}

TEST(Told, ASendToOneselfFindsItsRecv) {
  on_ranks(2, [](ProcessGroup& world) {
    const std::vector<int> sent(3000, 7 + world.rank());
    std::vector<int> got(sent.size());
    expect_text(thrown_by([&] { world.send(sent, world.rank()); }), "must find its recv posted");
    Work received = world.recv(got, world.rank(), async);
    world.send(sent, world.rank());
    received.wait();
    EXPECT_EQ(got, sent);
  });
}

}  // namespace
}  // namespace tutti
