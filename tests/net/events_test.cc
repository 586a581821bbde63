// Many sockets under one watch.
#include "net/events.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

namespace tutti::net {
namespace {

using namespace std::chrono_literals;
using Want = Events::Want;

struct Pair {
  Pair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    one = Fd(ends[0]);
    other = Fd(ends[1]);
  }
  void send() const { EXPECT_EQ(::write(other.get(), "x", 1), 1); }
  void receive() const {
    char byte = 0;
    EXPECT_EQ(::read(one.get(), &byte, 1), 1);
  }
  Fd one, other;
};

Events::Clock::time_point now() { return Events::Clock::now(); }

/// Runs until nothing has happened for a moment.
void run_all(Events& events) {
  for (int i = 0; i < 3; ++i) events.run(now() + 2ms);
}

TEST(Events, CallOnceForEachArming) {
  Events events;
  const Pair pair;
  int calls = 0;
  const auto watched = events.watch(pair.one.get(), [&] { ++calls; });
  pair.send();
  run_all(events);
  EXPECT_EQ(calls, 0) << "nobody has armed it";
  watched->arm(Want::read);
  run_all(events);
  EXPECT_EQ(calls, 1) << "what was there before counts, and once";
  watched->arm(Want::read);
  watched->arm(Want::read);
  run_all(events);
  EXPECT_EQ(calls, 2);
  pair.receive();
  watched->arm(Want::read);
  run_all(events);
  EXPECT_EQ(calls, 2) << "there is nothing to read";
  pair.send();
  run_all(events);
  EXPECT_EQ(calls, 3);
}

TEST(Events, ArmingAgainAddsToWhatIsWanted) {
  Events events;
  const Pair pair;
  int calls = 0;
  const auto watched = events.watch(pair.one.get(), [&] { ++calls; });
  watched->arm(Want::read);
  run_all(events);
  EXPECT_EQ(calls, 0);
  watched->arm(Want::write);
  run_all(events);
  EXPECT_EQ(calls, 1);
}

TEST(Events, TheEndOfAConnectionIsSomethingToRead) {
  Events events;
  Pair pair;
  int calls = 0;
  const auto watched = events.watch(pair.one.get(), [&] { ++calls; });
  watched->arm(Want::read);
  pair.other.reset();
  run_all(events);
  EXPECT_EQ(calls, 1);
}

TEST(Events, WhatIsPostedIsCalledInOrder) {
  Events events;
  std::string order;
  events.post([&] {
    order += 'a';
    events.post([&] { order += 'c'; });
  });
  events.post([&] { order += 'b'; });
  run_all(events);
  EXPECT_EQ(order, "abc");
}

TEST(Events, ReturnWhenTheTimeHasCome) {
  Events events;
  const auto began = now();
  events.run(began + 20ms);
  EXPECT_GE(now() - began, 20ms);
  events.run(began);  // long past
}

TEST(Events, ACallMayEndWhatItWatches) {
  Events events;
  const Pair pair;
  std::unique_ptr<Events::Watched> watched;
  int calls = 0;
  watched = events.watch(pair.one.get(), [&] {
    watched.reset();
    ++calls;
  });
  watched->arm(Want::write);
  run_all(events);
  EXPECT_EQ(calls, 1);
}

TEST(Events, WhatOneCallThrowsStopsNoOther) {
  Events events;
  const Pair one, other;
  int calls = 0;
  auto throwing = events.watch(one.one.get(), [] { throw std::runtime_error("one"); });
  const auto counting = events.watch(other.one.get(), [&] { ++calls; });
  throwing->arm(Want::write);
  counting->arm(Want::write);
  events.post([] { throw std::runtime_error("posted"); });
  events.post([&] { ++calls; });
  EXPECT_THROW(events.run(now() + 1s), std::runtime_error);
  EXPECT_EQ(calls, 2);
  throwing.reset();  // does not wait for its call for ever
  run_all(events);
}

TEST(Events, WhoThrowsIsCalledAgain) {
  Events events;
  const Pair pair;
  int calls = 0;
  const auto watched = events.watch(pair.one.get(), [&] {
    if (++calls == 1) throw std::runtime_error("not yet");
  });
  watched->arm(Want::write);
  EXPECT_THROW(events.run(now() + 1s), std::runtime_error);
  run_all(events);
  EXPECT_EQ(calls, 2) << "nobody has armed it a second time";
}

TEST(Events, WhoThrowsAndHasEndedIsNotCalledAgain) {
  Events events;
  const Pair pair;
  std::unique_ptr<Events::Watched> watched;
  watched = events.watch(pair.one.get(), [&] {
    watched.reset();
    throw std::runtime_error("gone");
  });
  watched->arm(Want::write);
  EXPECT_THROW(events.run(now() + 1s), std::runtime_error);
  run_all(events);
}

TEST(Events, NoCallRunsOnceTheWatchHasEnded) {
  Events events;
  std::atomic<bool> stops{false};
  std::thread runner([&] {
    while (!stops.load()) events.run(now() + 10ms);
  });
  for (int i = 0; i < 200; ++i) {
    const Pair pair;
    auto alive = std::make_unique<std::atomic<int>>(0);
    auto watched = events.watch(pair.one.get(), [&] {
      alive->fetch_add(1);
      std::this_thread::yield();
      alive->fetch_add(1);
    });
    watched->arm(Want::write);
    while (i % 2 == 0 && alive->load() == 0) std::this_thread::yield();
    watched.reset();
    EXPECT_EQ(alive->load() % 2, 0);
    alive.reset();
  }
  stops.store(true);
  runner.join();
}

TEST(Events, NothingIsLostBetweenAnArmingAndTheEvent) {
  Events events;
  std::atomic<bool> stops{false};
  std::thread runner([&] {
    while (!stops.load()) events.run(now() + 10ms);
  });
  const Pair pair;
  std::atomic<int> calls{0};
  const auto watched = events.watch(pair.one.get(), [&] { calls.fetch_add(1); });
  for (int i = 1; i <= 2000; ++i) {
    std::thread sender;
    if (i % 100 == 0) {
      sender = std::thread([&] { pair.send(); });
    } else {
      pair.send();
    }
    watched->arm(Want::read);
    while (calls.load() < i) std::this_thread::yield();
    if (sender.joinable()) sender.join();
    pair.receive();
  }
  EXPECT_EQ(calls.load(), 2000);
  stops.store(true);
  runner.join();
}

}  // namespace
}  // namespace tutti::net
