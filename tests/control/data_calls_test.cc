// Who wants a data connection, by what comes of the calls for it: no socket, one thread.
#include "control/hosts/data_calls.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "net/events.h"

namespace tutti::control {
namespace {

constexpr GroupId kGroup = 7;

struct Caller {
  explicit Caller(int rank)
      : calls(
            events, WorldRank(rank), shortage,
            [this](const Hello& hello, Call::OnOutcome on_outcome) {
              made.push_back(hello);
              outcome = std::move(on_outcome);
              return std::unique_ptr<Call>();
            },
            [this] { ++told; }) {}
  net::Secured try_take(int peer) { return calls.try_take(kGroup, WorldRank(peer), 0); }
  void run() { events.run(Clock::now()); }

  net::Events events;
  Shortage shortage;
  std::vector<Hello> made;
  Call::OnOutcome outcome;
  int told = 0;
  DataCalls calls;
};

TEST(DataCalls, WhoWantsAConnectionCallsForItOnce) {
  Caller caller(0);
  EXPECT_FALSE(caller.try_take(1));
  EXPECT_FALSE(caller.try_take(1));
  caller.run();
  ASSERT_EQ(caller.made.size(), 1u);
  EXPECT_EQ(caller.made[0].to, WorldRank(1));
  EXPECT_EQ(caller.told, 0);
}

// That rank holds the connection for made: it would name this one when it ends.
TEST(DataCalls, AChangedAnswerIsToldAtOnceAndNotCalledForAgain) {
  Caller caller(0);
  EXPECT_FALSE(caller.try_take(1));
  caller.run();
  caller.outcome({.error_number = EPROTO});
  EXPECT_EQ(caller.told, 1);
  try {
    caller.try_take(1);
    FAIL() << "there is no connection";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated) << error.what();
  }
  EXPECT_EQ(caller.calls.sweep(Clock::now() + std::chrono::seconds(1)), Clock::time_point::max());
  EXPECT_EQ(caller.made.size(), 1u);
}

TEST(DataCalls, OnlyRefusalsInARowSayThatNobodyIsThere) {
  Caller caller(0);
  EXPECT_FALSE(caller.try_take(1));
  caller.run();
  auto now = Clock::now();
  // The third answer is another one: it counts from the beginning.
  for (const int answer : {ECONNREFUSED, ECONNREFUSED, ECONNRESET, ECONNREFUSED, ECONNREFUSED}) {
    caller.outcome({.error_number = answer});
    EXPECT_FALSE(caller.try_take(1)) << "so far somebody may come";
    caller.calls.sweep(now += std::chrono::seconds(1));
  }
  EXPECT_EQ(caller.made.size(), 6u) << "each is called for again";
  EXPECT_EQ(caller.told, 0);
  caller.outcome({.error_number = ECONNREFUSED});
  EXPECT_EQ(caller.told, 1);
  EXPECT_THROW(caller.try_take(1), Error);
  EXPECT_EQ(caller.calls.sweep(now + std::chrono::seconds(1)), Clock::time_point::max());
}

}  // namespace
}  // namespace tutti::control
