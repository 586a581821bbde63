// Work over a state that this test drives by hand.
#include "tutti/work.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tutti/backend.h"
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
