// Where there is no memory for a watch.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <new>

#include "net/events.h"
#include "refused_memory.h"

namespace tutti::net {
namespace {

TEST(EventsMemory, AWatchThatIsRefusedLeavesNothing) {
  Events events;
  std::array<int, 2> ends = {-1, -1};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Fd out(ends[0]), in(ends[1]);
  ASSERT_EQ(::write(in.get(), "x", 1), 1);
  int calls = 0;
  for (std::size_t allocation = 1;; ++allocation) {
    const Events::Call call = [&calls] { ++calls; };
    std::unique_ptr<Events::Watched> watched;
    refuse_own_memory(allocation);
    try {
      watched = events.watch(out.get(), call);
    } catch (const std::bad_alloc&) {
    }
    refuse_own_memory(0);
    if (!watched) continue;
    EXPECT_GT(allocation, 2u) << "none was refused";
    watched->arm(Events::Want::read);
    events.run(Events::Clock::now());
    EXPECT_EQ(calls, 1);
    return;
  }
}

TEST(EventsMemory, WhatIsPostedIsNotForgotten) {
  Events events;
  int calls = 0;
  refuse_own_memory(1);
  events.post([&calls] { ++calls; });
  refuse_own_memory(0);
  events.run(Events::Clock::now());
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace tutti::net
