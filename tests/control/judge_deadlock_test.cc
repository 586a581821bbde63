// The judge of deadlocks over made-up worlds: no board, no thread, no clock.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "control/judge/deadlock.h"
#include "control/scene.h"

namespace tutti::control {
namespace {

/// Ranks that wait in group 1, unless said otherwise; those that were not told to do not wait.
class World {
 public:
  explicit World(int size) : facts(static_cast<std::size_t>(size)) {}

  WaitFacts& of(int rank) { return facts[static_cast<std::size_t>(rank)]; }
  /// `rank` waits for all of `awaited`; once more: or for all of those.
  World& all(int rank, const std::vector<int>& awaited, GroupId group = 1) {
    return wait(rank, {.group = group, .awaited = world_ranks(awaited)});
  }
  /// The same for any of them.
  World& any(int rank, const std::vector<int>& awaited, GroupId group = 1) {
    return wait(rank, {.group = group, .one_suffices = true, .awaited = world_ranks(awaited)});
  }
  /// Each of the ranks waits for the next, the last for the first.
  World& ring(const std::vector<int>& ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) all(ranks[i], {ranks[(i + 1) % ranks.size()]});
    return *this;
  }
  /// Every rank has looked once more.
  World& look() {
    for (WaitFacts& rank : facts) ++rank.looks;
    return *this;
  }

  std::vector<WaitFacts> facts;

 private:
  World& wait(int rank, WaitPart part) {
    WaitFacts& own = of(rank);
    own.version = 10 + static_cast<std::uint64_t>(rank);
    own.since = kStart;
    own.parts.push_back(std::move(part));
    return *this;
  }
};

std::vector<int> numbers(const std::vector<WorldRank>& ranks) {
  std::vector<int> all;
  for (const auto [rank] : ranks) all.push_back(rank);
  return all;
}

std::vector<std::vector<int>> knots(const World& world) {
  std::vector<std::vector<int>> all;
  for (const Knot& knot : find_knots(world.facts)) all.push_back(numbers(knot.ranks()));
  return all;
}

using Knots = std::vector<std::vector<int>>;

// ---- who is stuck ------------------------------------------------------------------------------

struct Situation {
  std::string what;
  World world;
  Knots knots;
};

World changed(World world, const std::function<void(World&)>& change) {
  change(world);
  return world;
}

std::vector<Situation> situations() {
  const auto ring3 = [] { return World(3).ring({0, 1, 2}); };
  std::vector<Situation> all = {
      {"nobody waits", World(4), {}},
      {"no ranks at all", World(0), {}},
      {"one waits for one that computes", World(2).all(0, {1}), {}},
      {"a rank waits for itself", World(2).all(1, {1}), {{1}}},
      {"any of itself", World(1).any(0, {0}), {{0}}},
      {"two wait for each other", World(2).ring({0, 1}), {{0, 1}}},
      {"three in a circle", ring3(), {{0, 1, 2}}},
      {"the other way round", World(3).ring({2, 1, 0}), {{0, 1, 2}}},
      {"two circles", World(4).ring({0, 2}).ring({1, 3}), {{0, 2}, {1, 3}}},
      {"a chain that ends at one that computes", World(4).all(0, {1}).all(1, {2}).all(2, {3}), {}},
      {"a chain that leads into a circle", World(4).all(0, {1}).ring({1, 2, 3}), {{1, 2, 3}}},
      {"several chains into one circle",
       World(6).all(0, {4}).all(1, {4}).all(2, {1}).all(3, {5}).ring({4, 5}),
       {{4, 5}}},
      {"all of a collective's missing members: one in a circle will do",
       World(4).all(0, {1, 3}).all(1, {0}),
       {{0, 1}}},
      {"none of the missing members waits", World(4).all(0, {2, 3}).all(1, {2, 3}), {}},
      {"the missing member waits for somebody else who computes",
       World(4).all(0, {2}).all(1, {2}).all(2, {3}),
       {}},
      {"a collective crossed with a receive",
       World(3).all(0, {2}).all(1, {2}).all(2, {0}),
       {{0, 2}}},
      {"one circle of two through a collective is told",
       World(3).all(0, {1, 2}).all(1, {0}).all(2, {0}),
       {{0, 1}}},
      {"any of two, one computes", World(3).any(0, {1, 2}).all(1, {0}), {}},
      {"any of two, both wait for it",
       World(3).any(0, {1, 2}).all(1, {0}).all(2, {0}),
       {{0, 1, 2}}},
      {"any of two, one waits for one that computes",
       World(4).any(0, {1, 2}).all(1, {0}).all(2, {3}),
       {}},
      {"any of one is all of one", World(2).any(0, {1}).any(1, {0}), {{0, 1}}},
      {"all of nobody: its data are on their way", World(2).all(0, {}).all(1, {0}), {}},
      {"any of all others, all of whom wait so",
       World(4).any(0, {1, 2, 3}).any(1, {0, 2, 3}).any(2, {0, 1, 3}).any(3, {0, 1, 2}),
       {{0, 1, 2, 3}}},
      {"the same with one that computes",
       World(4).any(0, {1, 2, 3}).any(1, {0, 2, 3}).any(2, {0, 1, 3}),
       {}},
      {"any, and a circle beside it", World(4).any(0, {1, 3}).all(1, {2}).all(2, {1}), {{1, 2}}},
      {"any of a circle's members: stuck, but not of the knot",
       World(3).any(0, {1, 2}).ring({1, 2}),
       {{1, 2}}},
      {"wait_any: one of the waits may end", World(3).all(0, {1}).all(0, {2}).all(1, {0}), {}},
      {"wait_any: none may end",
       World(3).all(0, {1}).all(0, {2}).all(1, {0}).all(2, {0}),
       {{0, 1, 2}}},
      {"wait_any of a collective and a receive from any",
       World(4).all(0, {1, 2}).any(0, {2, 3}).ring({1, 0}).all(2, {0}).all(3, {0}),
       {{0, 1, 2, 3}}},
      {"wait_any with a part that cannot be judged",
       World(2).all(0, {1}).all(0, {}).all(1, {0}),
       {}},
      {"two threads have called on one of them",
       changed(ring3(), [](World& world) { world.of(1).has_several_threads = true; }),
       {}},
      {"one of them has ended",
       changed(ring3(), [](World& world) { world.of(2).is_running = false; }),
       {}},
      {"one of them shows no wait: it has a bound of its own, or is in another library",
       changed(ring3(), [](World& world) { world.of(0).version = 0; }),
       {}},
      {"one could not be read",
       changed(ring3(), [](World& world) { world.of(1).version = 0; }),
       {}},
      {"a dead rank is no part of any",
       changed(World(3).any(0, {1, 2}).all(1, {0}).all(2, {0}),
               [](World& world) { world.of(2).is_running = false; }),
       {}},
      {"groups do not matter", World(2).all(0, {1}, 5).all(1, {0}, 6), {{0, 1}}},
  };
  return all;
}

TEST(JudgeDeadlock, Situations) {
  for (const Situation& situation : situations())
    EXPECT_EQ(knots(situation.world), situation.knots) << situation.what;
}

TEST(JudgeDeadlock, RingsOfEverySize) {
  for (const int size : {2, 3, 4, 7, 64, 255, 1000}) {
    const World world = World(size).ring(range(0, size));
    EXPECT_EQ(knots(world), Knots{range(0, size)}) << size;
    World open = world;
    open.of(size / 2).version = 0;
    EXPECT_TRUE(knots(open).empty()) << size << ", with one that computes";
  }
}

TEST(JudgeDeadlock, AThousandMembersOfACollective) {
  // All but the last are in it; that one waits for rank 17.
  World world(1000);
  for (int rank = 0; rank < 999; ++rank) world.all(rank, {999});
  EXPECT_TRUE(knots(world).empty());
  world.all(999, {17});
  EXPECT_EQ(knots(world), (Knots{{17, 999}}));
  // Any of a thousand.
  World receivers(1000);
  for (int rank = 0; rank < 999; ++rank) receivers.any(rank, range(rank + 1, 1000));
  EXPECT_TRUE(knots(receivers).empty());
  receivers.any(999, range(0, 999));
  EXPECT_EQ(knots(receivers).size(), 1u);
}

/// What "stuck" means, as plainly as it can be said, over all sets of ranks.
std::vector<bool> stuck_plainly(const World& world) {
  std::vector<bool> stuck(world.facts.size());
  for (std::size_t i = 0; i < stuck.size(); ++i) stuck[i] = !world.facts[i].parts.empty();
  for (bool changes = true; changes;) {
    changes = false;
    for (std::size_t i = 0; i < stuck.size(); ++i) {
      if (!stuck[i]) continue;
      bool can_end = false;
      for (const WaitPart& part : world.facts[i].parts) {
        int free = 0;
        for (const WorldRank rank : part.awaited) free += stuck[rank.index()] ? 0 : 1;
        can_end |= part.one_suffices ? free > 0 : free == static_cast<int>(part.awaited.size());
      }
      if (can_end) changes = true, stuck[i] = false;
    }
  }
  return stuck;
}

TEST(JudgeDeadlock, RandomWorlds) {
  std::mt19937 random(1);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  int with_knots = 0;
  for (int round = 0; round < 5000; ++round) {
    const int size = 2 + below(8);
    World world(size);
    for (int rank = 0; rank < size; ++rank) {
      if (below(8) == 0) continue;
      for (int parts = below(6) == 0 ? 2 : 1; parts > 0; --parts) {
        std::vector<int> awaited;
        for (int other = 0; other < size; ++other)
          if (other != rank && below(3) == 0) awaited.push_back(other);
        if (awaited.empty()) awaited.push_back((rank + 1) % size);
        below(2) == 0 ? world.all(rank, awaited) : world.any(rank, awaited);
      }
    }
    const std::vector<bool> stuck = stuck_plainly(world);
    const std::vector<Knot> found = find_knots(world.facts);
    EXPECT_EQ(!found.empty(), std::find(stuck.begin(), stuck.end(), true) != stuck.end());
    with_knots += found.empty() ? 0 : 1;
    for (const Knot& knot : found) {
      const std::vector<WorldRank> ranks = knot.ranks();
      const auto is_in = [&](WorldRank rank) {
        return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
      };
      for (const Knot::Link& link : knot.links) {
        EXPECT_TRUE(stuck[link.rank.index()]);
        EXPECT_FALSE(link.awaited.empty());
        EXPECT_TRUE(std::all_of(link.awaited.begin(), link.awaited.end(), is_in));
        for (const WaitPart& part : world.facts[link.rank.index()].parts) {
          const auto free = std::count_if(part.awaited.begin(), part.awaited.end(),
                                          [&](WorldRank rank) { return !is_in(rank); });
          EXPECT_TRUE(part.one_suffices ? free == 0 : free < std::ssize(part.awaited));
        }
      }
    }
  }
  EXPECT_GT(with_knots, 1000);
  EXPECT_LT(with_knots, 4900);
}

TEST(JudgeDeadlock, ACircleIsToldInItsOrderFromTheLowestRank) {
  const std::vector<Knot> found = find_knots(World(5).ring({3, 1, 4, 2}).facts);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].is_circle());
  std::vector<int> order;
  for (const Knot::Link& link : found[0].links) order.push_back(link.rank.value);
  EXPECT_EQ(order, (std::vector<int>{1, 4, 2, 3}));
  EXPECT_EQ(found[0].ranks(), world_ranks({1, 2, 3, 4}));
}

TEST(JudgeDeadlock, TheGroupsInWhichItsRanksWait) {
  const World world = World(5)
                          .all(0, {1}, 7)
                          .all(1, {2}, 8)
                          .any(1, {2}, 9)
                          .all(2, {3}, 7)
                          .all(3, {0}, 11)
                          .all(4, {0}, 10);
  const std::vector<Knot> found = find_knots(world.facts);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(groups_of(found[0], world.facts), (std::vector<GroupId>{7, 8, 11, 9}))
      << "one of each rank first";
}

// ---- twice -------------------------------------------------------------------------------------

struct Watch {
  std::optional<Knot> look(const World& world, std::chrono::nanoseconds waited, int rank = 0) {
    return look_for_deadlock(WorldRank(rank), world.facts, clock, kStart + waited, 1s);
  }
  DeadlockClock clock;
};

TEST(JudgeDeadlock, CountsOnceAllHaveLookedAndItHasLasted) {
  World world = World(2).ring({0, 1});
  Watch watch;
  EXPECT_FALSE(watch.look(world, 2s)) << "the first reading";
  EXPECT_FALSE(watch.look(world, 3s)) << "nobody has looked since";
  world.look().look();
  EXPECT_FALSE(watch.look(world, 3s)) << "a look may have begun before";
  world.of(0).looks += 5;
  EXPECT_FALSE(watch.look(world, 3s)) << "one of them has";
  world.look();
  EXPECT_FALSE(watch.look(world, 999ms)) << "it has not lasted";
  EXPECT_TRUE(watch.look(world, 1s));
  EXPECT_FALSE(watch.look(world, 2s)) << "each once";
}

TEST(JudgeDeadlock, OverHostsCountsOnceAllHaveLookedTwice) {
  World world = World(2).ring({0, 1});
  world.of(1).is_elsewhere = true;
  Watch watch;
  EXPECT_FALSE(watch.look(world, 2s));
  EXPECT_FALSE(watch.look(world.look().look().look(), 3s)) << "what was under way has arrived";
  world.of(0).looks += 5;
  world.of(1).looks += 2;
  EXPECT_FALSE(watch.look(world, 3s)) << "one has not looked at it";
  ++world.of(1).looks;
  EXPECT_TRUE(watch.look(world, 3s));

  ++world.of(1).version;
  EXPECT_FALSE(watch.look(world, 4s));
  world.of(1).since = kStart + 1ms;
  EXPECT_FALSE(watch.look(world.look().look().look(), 4s)) << "the next wait begins anew";
  EXPECT_TRUE(watch.look(world.look().look().look(), 4s));
}

TEST(JudgeDeadlock, IsToldByItsLowestRank) {
  World world = World(3).ring({1, 2});
  for (const int rank : {0, 2}) {
    Watch watch;
    watch.look(world, 1s, rank);
    EXPECT_FALSE(watch.look(World(world).look().look().look(), 2s, rank)) << rank;
  }
  Watch watch;
  watch.look(world, 1s, 1);
  EXPECT_TRUE(watch.look(world.look().look().look(), 2s, 1));
}

/// What happens between the readings; afterwards nobody is told.
TEST(JudgeDeadlock, NotIfAnythingHasChangedMeanwhile) {
  const std::vector<std::pair<std::string, std::function<void(World&)>>> changes = {
      {"a wait ended and another began", [](World& world) { ++world.of(1).version; }},
      {"a wait ended", [](World& world) { world.of(1).version = 0; }},
      {"a second thread called", [](World& world) { world.of(1).has_several_threads = true; }},
      {"a rank died", [](World& world) { world.of(1).is_running = false; }},
      {"a wait goes to somebody else",
       [](World& world) {
         world.of(1).parts[0].awaited = world_ranks({2}), ++world.of(1).version;
       }},
      {"a rank is stopped", [](World& world) { world.of(1).looks = 0; }},
      {"a wait has begun just now", [](World& world) { world.of(1).since = kStart + 4s; }},
      {"a time that cannot be", [](World& world) { world.of(1).since = Clock::time_point::max(); }},
  };
  for (const auto& [what, change] : changes) {
    World world = World(3).ring({0, 1});
    Watch watch;
    EXPECT_FALSE(watch.look(world, 2s));
    world.look().look().look();
    change(world);
    EXPECT_FALSE(watch.look(world, 4s)) << what;
  }
}

TEST(JudgeDeadlock, StartsAnewAfterAChange) {
  World world = World(2).ring({0, 1});
  Watch watch;
  watch.look(world, 2s);
  world.look().look().look();
  ++world.of(1).version;
  EXPECT_FALSE(watch.look(world, 2s));
  world.look().look();
  EXPECT_FALSE(watch.look(world, 3s));
  EXPECT_TRUE(watch.look(world.look(), 3s));
}

TEST(JudgeDeadlock, AnotherKnotIsToldAsWell) {
  World world = World(3).ring({0, 1});
  Watch watch;
  watch.look(world, 2s);
  EXPECT_TRUE(watch.look(world.look().look().look(), 2s));
  World other = World(3).ring({0, 2});
  watch.look(other, 5s);
  EXPECT_TRUE(watch.look(other.look().look().look(), 5s));
}

TEST(JudgeDeadlock, AWarningIsNotRepeatedWhileTheSameWaitsLast) {
  World world = World(2).ring({0, 1});
  Watch watch;
  watch.look(world, 2s);
  EXPECT_TRUE(watch.look(world.look().look().look(), 2s));
  ++world.of(0).version;  // something else moved meanwhile
  watch.look(world, 3s);
  EXPECT_FALSE(watch.look(world.look().look().look(), 4s));
}

TEST(JudgeDeadlock, NeverIfThatIsHowLongItMustLast) {
  World world = World(2).ring({0, 1});
  DeadlockClock clock;
  look_for_deadlock(WorldRank(0), world.facts, clock, kStart + 1h, std::chrono::nanoseconds::max());
  world.look().look().look();
  EXPECT_FALSE(look_for_deadlock(WorldRank(0), world.facts, clock, kStart + 1h,
                                 std::chrono::nanoseconds::max()));
}

TEST(JudgeDeadlock, StandsUntilItIsEntered) {
  World world = World(2).ring({0, 1});
  Watch watch;
  watch.look(world, 2s);
  EXPECT_TRUE(still_stands(watch.clock, world.facts));
  for (const auto& change : std::vector<std::function<void(World&)>>{
           [](World& now) { ++now.of(0).version; }, [](World& now) { now.of(1).version = 0; },
           [](World& now) { now.of(1).is_running = false; },
           [](World& now) { now.of(0).has_several_threads = true; }}) {
    EXPECT_FALSE(still_stands(watch.clock, changed(world, change).facts));
  }
}

// ---- whom a wait awaits ------------------------------------------------------------------------

/// The members show that their collective waits for that member.
Scene& waits(Scene& scene, int member, int for_whom) {
  scene.line(member).waiting_in = static_cast<std::uint32_t>(scene.line(member).entered);
  scene.line(member).waiting_for = for_whom;
  return scene;
}

TEST(JudgeAwaited, OfACollectiveThatNeedsAllThoseThatHaveNotCalledIt) {
  Scene scene(4, 1);
  scene.enters(0, 5).enters(1, 5).enters(2, 4).ends(2);
  EXPECT_EQ(awaited_in(scene.facts, 5, true).members, (std::vector<int>{2, 3}));
  scene.line(3).queued = 5;
  EXPECT_EQ(awaited_in(scene.facts, 5, true).members, (std::vector<int>{2}))
      << "it will come by itself";
  scene.all_enter(5);
  EXPECT_TRUE(awaited_in(scene.facts, 5, true).members.empty());
}

TEST(JudgeAwaited, BehindOthersInItsQueue) {
  Scene scene(3);
  scene.enters(0, 1).enters(1, 2);
  scene.line(0).queued = 3;
  EXPECT_EQ(awaited_in(scene.facts, 3, true).members, (std::vector<int>{1, 2}));
  EXPECT_EQ(awaited_in(scene.facts, 4, true).members, (std::vector<int>{1, 2}))
      << "a call that is not queued";
}

TEST(JudgeAwaited, OfARootedOneWhomItWaitsFor) {
  Scene scene(4);
  waits(scene.enters(0, 3), 0, 2);
  EXPECT_EQ(awaited_in(scene.facts, 3, false).members, (std::vector<int>{2}));
  waits(scene.enters(2, 3), 2, 1);
  EXPECT_EQ(awaited_in(scene.facts, 3, false).members, (std::vector<int>{1}))
      << "who is awaited in turn";
  scene.line(1).queued = 3;
  EXPECT_TRUE(awaited_in(scene.facts, 3, false).members.empty()) << "called, and not entered yet";
  scene.enters(1, 3).ends(1);
  EXPECT_TRUE(awaited_in(scene.facts, 3, false).members.empty())
      << "ended: its data are on their way";
}

TEST(JudgeAwaited, NobodyWhereThatIsNotKnown) {
  Scene scene(3);
  scene.enters(0, 3);
  EXPECT_TRUE(awaited_in(scene.facts, 3, false).members.empty()) << "it has shown nothing yet";
  waits(scene, 0, 7);
  EXPECT_TRUE(awaited_in(scene.facts, 3, false).members.empty()) << "garbage";
  waits(scene, 0, 0);
  EXPECT_TRUE(awaited_in(scene.facts, 3, false).members.empty()) << "itself";
  waits(scene, 0, 1);
  waits(scene.enters(1, 3), 1, 2);
  waits(scene.enters(2, 3), 2, 1);
  EXPECT_TRUE(awaited_in(scene.facts, 3, false).members.empty())
      << "two of them in a circle: stale";
  Scene behind(2);
  waits(behind.enters(0, 3), 0, 1);
  waits(behind.enters(1, 4), 1, 0);
  EXPECT_TRUE(awaited_in(behind.facts, 3, false).members.empty())
      << "its own call: its peer is ahead";
  waits(scene, 2, -1);
  EXPECT_TRUE(awaited_in(scene.facts, 3, false).members.empty());
}

/// Rank 1 has stopped since it began to wait for rank 2, which has gone on to where it needs all.
TEST(JudgeAwaited, NobodyWhereWhoIsAwaitedInTurnHasDoneItsPart) {
  Scene scene(5);
  waits(scene.enters(0, 2), 0, 1);
  waits(scene.enters(1, 2), 1, 2);
  EXPECT_EQ(awaited_in(scene.facts, 2, false).members, (std::vector<int>{2}));
  waits(scene.enters(2, 2), 2, 3);
  scene.enters(3, 1);
  EXPECT_EQ(awaited_in(scene.facts, 2, false).members, (std::vector<int>{3}));
  waits(scene.ends(2).enters(2, 4), 2, -1);
  scene.enters(3, 3).enters(4, 4);
  EXPECT_TRUE(awaited_in(scene.facts, 2, false).members.empty());
}

TEST(JudgeAwaited, WhichOperationsNeedAll) {
  Request request = collective_at(1);
  for (const Op op :
       {Op::all_reduce, Op::all_gather, Op::reduce_scatter, Op::all_to_all, Op::barrier}) {
    request.op = op;
    EXPECT_TRUE(needs_all(request, 0)) << name_of(op);
  }
  request.root = 1;
  for (const Op op : {Op::reduce, Op::gather}) {
    request.op = op;
    EXPECT_FALSE(needs_all(request, 0)) << name_of(op);
    EXPECT_TRUE(needs_all(request, 1)) << name_of(op);
  }
  for (const Op op :
       {Op::broadcast, Op::scatter, Op::scan, Op::exclusive_scan, Op::send, Op::recv}) {
    request.op = op;
    EXPECT_FALSE(needs_all(request, 1)) << name_of(op);
  }
}

TEST(JudgeAwaited, AMessageMayComeFromAllThatHaveNotLeft) {
  Scene scene(5, 1);
  EXPECT_EQ(possible_senders(scene.facts), (std::vector<int>{0, 2, 3, 4}));
  scene.leaves(2).absent(3);
  EXPECT_EQ(possible_senders(scene.facts), (std::vector<int>{0, 3, 4})) << "rank 3 may come yet";
  scene.of(3).has_left_world = true;
  EXPECT_EQ(possible_senders(scene.facts), (std::vector<int>{0, 4}));
  EXPECT_EQ(possible_senders(Scene(1).facts), (std::vector<int>{0})) << "only from itself";
}

}  // namespace
}  // namespace tutti::control
