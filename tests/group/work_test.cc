// Work over a state that this test drives by hand.
#include "tutti/work.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ranks.h"
#include "tutti/backend.h"
#include "tutti/log.h"
#include "tutti/observer.h"

namespace tutti {
namespace {

using Clock = Deadline::Clock;

/// Ends when it has been helped `helps_needed` times without limit of time.
class ScriptedState final : public WorkState {
 public:
  explicit ScriptedState(Request request = {}, std::optional<Error> failure = {})
      : WorkState(std::move(request)), failure_(std::move(failure)) {}
  bool help(Clock::time_point until) override {
    ++helps;
    last_until = until;
    if (until != Clock::time_point::max()) return done();
    if (!done()) {
      begin();
      if (failure_) {
        end(*failure_);
      } else {
        end();
      }
    }
    return true;
  }
  int helps = 0;
  Clock::time_point last_until = {};

 private:
  std::optional<Error> failure_;
};

class CountingObserver final : public Observer {
 public:
  void entered(const Request&) noexcept override { ++entered_count; }
  void left(const Request&, const Error* failure) noexcept override {
    ++left_count;
    failed = failure != nullptr;
  }
  int entered_count = 0, left_count = 0;
  bool failed = false;
};

const Error kLost(ErrorCode::kPeerLost, "rank 2 is lost");

/// What the destructor of a Work under way logs where an exception unwinds past it, or none does.
std::string logged_by_destructor(bool unwinds) {
  std::string logged;
  set_log_callback([&](LogLevel, std::string_view line) { logged += line; });
  Request request;
  request.op = Op::all_reduce;
  request.seq = 3;
  const auto state = std::make_shared<ScriptedState>(request);
  try {
    const Work work(state);
    if (unwinds) throw std::runtime_error("of the program");
  } catch (const std::runtime_error&) {
  }
  set_log_callback({});
  EXPECT_TRUE(state->done());
  return logged;
}

TEST(Work, AnExceptionThatItHoldsUpIsSaid) {
  EXPECT_NE(logged_by_destructor(true).find("an exception unwinds past a Work, whose destructor "
                                            "waits for all_reduce #3"),
            std::string::npos)
      << logged_by_destructor(true);
  EXPECT_EQ(logged_by_destructor(false), "");
}

TEST(Work, EmptyIsDone) {
  Work work;
  EXPECT_TRUE(work.done());
  EXPECT_TRUE(work.wait_for(std::chrono::nanoseconds(0)));
  EXPECT_FALSE(work.error().has_value());
  work.wait();
}

TEST(Work, WaitHelpsUntilDone) {
  auto state = std::make_shared<ScriptedState>();
  Work work(state);
  EXPECT_FALSE(work.done());
  EXPECT_EQ(state->helps, 0) << "done must not block or help";
  work.wait();
  EXPECT_TRUE(work.done());
  EXPECT_EQ(state->last_until, Clock::time_point::max());
}

TEST(Work, WaitForIsBoundedAndItsEndIsNoFailure) {
  auto state = std::make_shared<ScriptedState>(Request(), kLost);
  Work work(state);
  const Clock::time_point before = Clock::now();
  EXPECT_FALSE(work.wait_for(std::chrono::milliseconds(10)));
  EXPECT_GE(state->last_until, before + std::chrono::milliseconds(10));
  EXPECT_LT(state->last_until, before + std::chrono::seconds(10));
  EXPECT_FALSE(work.error().has_value());
  EXPECT_THROW(work.wait(), Error);
}

TEST(Work, ThrowsTheFailureEachTime) {
  Work work(std::make_shared<ScriptedState>(Request(), kLost));
  for (int times = 0; times < 3; ++times) {
    try {
      work.wait();
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    }
  }
  ASSERT_TRUE(work.error().has_value());
  EXPECT_EQ(work.error()->code(), ErrorCode::kPeerLost);
  EXPECT_TRUE(work.done());
}

TEST(Work, DestructorWaitsAndNeverThrows) {
  auto state = std::make_shared<ScriptedState>();
  { const Work work(state); }
  EXPECT_TRUE(state->done());
  auto failing = std::make_shared<ScriptedState>(Request(), kLost);
  testing::internal::CaptureStderr();
  { const Work work(failing); }
  EXPECT_TRUE(failing->done());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("rank 2 is lost"), std::string::npos) << said;
}

TEST(Work, DestructorIsSilentAboutAFailureThatWasThrown) {
  testing::internal::CaptureStderr();
  {
    Work work(std::make_shared<ScriptedState>(Request(), kLost));
    EXPECT_THROW(work.wait(), Error);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Work, DetachedIsNotWaitedFor) {
  auto state = std::make_shared<ScriptedState>();
  { Work(state).detach(); }
  EXPECT_EQ(state->helps, 0);
}

TEST(Work, AssignmentWaitsForWhatItReplaces) {
  auto first = std::make_shared<ScriptedState>(), second = std::make_shared<ScriptedState>();
  Work work(first);
  work = Work(second);
  EXPECT_TRUE(first->done());
  EXPECT_FALSE(second->done());
  work.wait();
  EXPECT_TRUE(second->done());
}

TEST(Work, TellsTheObserverOnce) {
  CountingObserver observer;
  Request request;
  request.observer = &observer;
  Work work(std::make_shared<ScriptedState>(request, kLost));
  EXPECT_THROW(work.wait(), Error);
  EXPECT_THROW(work.wait(), Error);
  EXPECT_EQ(observer.entered_count, 1);
  EXPECT_EQ(observer.left_count, 1);
  EXPECT_TRUE(observer.failed);
}

TEST(WorkThen, RunsOnceWhenTheOperationEnds) {
  int calls = 0;
  auto state = std::make_shared<ScriptedState>();
  Work after = Work(state).then([&](const Error* failure) {
    EXPECT_EQ(failure, nullptr);
    ++calls;
  });
  EXPECT_FALSE(after.done());
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(after.wait_for(std::chrono::milliseconds(1)));
  after.wait();
  after.wait();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(after.done());
}

TEST(WorkThen, RunsAtOnceIfItHasEnded) {
  int calls = 0;
  auto state = std::make_shared<ScriptedState>();
  Work work(state);
  work.wait();
  const Work after = std::move(work).then([&](const Error*) { ++calls; });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(after.done());
  const Work of_nothing = Work().then([&](const Error*) { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(WorkThen, IsToldOfAFailureWhichGoesOn) {
  std::string told;
  Work after =
      Work(std::make_shared<ScriptedState>(Request(), kLost)).then([&](const Error* failure) {
        told = failure != nullptr ? failure->what() : "";
      });
  const Error error = thrown_by([&] { after.wait(); });
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(told, "rank 2 is lost");
}

TEST(WorkThen, WhatTheCallbackThrowsGoesToItsWork) {
  auto state = std::make_shared<ScriptedState>();
  Work after = Work(state).then([](const Error*) { throw std::out_of_range("no such bucket"); });
  const Error error = thrown_by([&] { after.wait(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, "no such bucket");
  EXPECT_FALSE(state->error().has_value());
  Work kept = Work().then([](const Error*) { throw kLost; });
  EXPECT_EQ(thrown_by([&] { kept.wait(); }).code(), ErrorCode::kPeerLost);
}

TEST(WorkThen, Chains) {
  std::vector<int> order;
  Work last = Work(std::make_shared<ScriptedState>())
                  .then([&](const Error*) { order.push_back(1); })
                  .then([&](const Error*) { order.push_back(2); });
  last.wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(WorkThen, WaitingInsideIsRefusedAndDroppingDoesNotWait) {
  auto other = std::make_shared<ScriptedState>();
  Work after = Work(std::make_shared<ScriptedState>()).then([&](const Error*) {
    Work dropped(other);
    std::array<Work, 1> works = {Work(other)};
    EXPECT_EQ(thrown_by([&] { wait_any(works); }).code(), ErrorCode::kInvalidArgument);
    dropped.wait();
  });
  testing::internal::CaptureStderr();
  const Error error = thrown_by([&] { after.wait(); });
  EXPECT_NE(testing::internal::GetCapturedStderr().find("dropped inside a callback"),
            std::string::npos);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, "Work::wait blocks");
  EXPECT_EQ(other->helps, 0);
}

TEST(Work, KeepsAliveWhatTheOperationNeeds) {
  auto owned = std::make_shared<std::vector<float>>(3);
  const std::weak_ptr<std::vector<float>> watched = owned;
  Request request;
  request.keep_alive = std::move(owned);
  {
    Work work(std::make_shared<ScriptedState>(std::move(request)));
    EXPECT_FALSE(watched.expired());
    work.wait();
  }
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace tutti
