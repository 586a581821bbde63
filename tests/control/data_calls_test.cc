// Who wants a data connection, by what comes of the calls for it: no socket, one thread.
#include "control/hosts/data_calls.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

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
            [this] { ++told; }) {
    calls.expect(kGroup);
  }
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
  // The third answer is another one: it counts from the beginning.
  for (const int answer : {ECONNREFUSED, ECONNREFUSED, ECONNRESET, ECONNREFUSED, ECONNREFUSED}) {
    caller.outcome({.error_number = answer});
    EXPECT_FALSE(caller.try_take(1)) << "so far somebody may come";
    caller.calls.sweep(Clock::now() + std::chrono::seconds(1));
  }
  EXPECT_EQ(caller.made.size(), 6u) << "each is called for again";
  EXPECT_EQ(caller.told, 0);
  caller.outcome({.error_number = ECONNREFUSED});
  EXPECT_EQ(caller.told, 1);
  EXPECT_THROW(caller.try_take(1), Error);
  EXPECT_EQ(caller.calls.sweep(Clock::now() + std::chrono::seconds(1)), Clock::time_point::max());
}

/// Two ends of a connection.
struct Pair {
  Pair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    near = net::Fd(ends[0]);
    far = net::Fd(ends[1]);
  }
  bool has_ended() const {
    char byte = 0;
    return ::recv(far.get(), &byte, 1, 0) == 0;
  }
  net::Fd near, far;
};

const Hello kFromOne{
    .role = Role::data, .from = WorldRank(1), .to = WorldRank(0), .group = kGroup, .lane = 0};

TEST(DataCalls, WhatComesOfACallForAGroupThatIsGoneIsDropped) {
  Caller caller(0);
  EXPECT_FALSE(caller.try_take(1));
  caller.run();
  ASSERT_EQ(caller.made.size(), 1u);
  caller.calls.forget(kGroup);
  caller.run();
  Pair pair;
  caller.outcome({.socket = std::move(pair.near)});
  EXPECT_TRUE(pair.has_ended());
  EXPECT_FALSE(caller.calls.has_come(kGroup, WorldRank(1), 0));
  EXPECT_EQ(caller.calls.sweep(Clock::now() + std::chrono::seconds(1)), Clock::time_point::max());
  EXPECT_EQ(caller.made.size(), 1u) << "nobody is called for it";
  EXPECT_EQ(caller.told, 0);
}

TEST(DataCalls, AConnectionThatNobodyTookGoesWithItsGroup) {
  Caller caller(0);
  caller.calls.expect(kGroup + 1);
  Pair pair, other;
  EXPECT_EQ(caller.calls.on_hello(kFromOne), Answer::welcome);
  caller.calls.on_guest(kFromOne, std::move(pair.near));
  Hello of_other = kFromOne;
  of_other.group = kGroup + 1;
  caller.calls.on_guest(of_other, std::move(other.near));
  EXPECT_TRUE(caller.calls.has_come(kGroup, WorldRank(1), 0));
  EXPECT_FALSE(pair.has_ended());
  caller.calls.forget(kGroup);
  caller.run();
  EXPECT_TRUE(pair.has_ended());
  EXPECT_FALSE(other.has_ended()) << "it is of another group";
}

// A refusal would have it call again and again, as long as it has the group.
TEST(DataCalls, WhoCallsForAGroupThatIsGoneFindsThatThisEndHasEnded) {
  Caller caller(0);
  caller.calls.forget(kGroup);
  caller.run();
  Pair pair;
  EXPECT_EQ(caller.calls.on_hello(kFromOne), Answer::welcome);
  caller.calls.on_guest(kFromOne, std::move(pair.near));
  EXPECT_TRUE(pair.has_ended());
  EXPECT_FALSE(caller.calls.has_come(kGroup, WorldRank(1), 0));
  EXPECT_EQ(caller.told, 0);
}

}  // namespace
}  // namespace tutti::control
