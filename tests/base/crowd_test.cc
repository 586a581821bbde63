// Many threads that wait for what one of them moves.
#include "base/crowd.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <thread>
#include <vector>

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

/// Whoever looks carries all letters that the outside world has posted to their boxes.
class Office {
 public:
  explicit Office(std::size_t threads) : boxes_(threads) {}

  void post(std::size_t to) {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(to);
      full_.store(true);
    }
    ring(bell);
  }
  /// Waits for that many letters in the box; gave_up after `limit`, also if a letter is found then:
  /// nobody had told.
  WaitResult await(std::size_t box, int letters, std::chrono::nanoseconds limit = 20s) {
    Until patience(asked_, Clock::now() + limit);
    Box& own = boxes_[box];
    const auto done = [&] { return own.letters.load() >= letters; };
    const auto ready = [&] {
      ++own.looks;
      if (!done()) carry();
      return done();
    };
    const Waiter waiter{&abort_word, &bell, {0, 0ns, 0ns}};
    const WaitResult result = wait_among(crowd, waiter, patience, ready, done);
    return Clock::now() < patience.end ? result : WaitResult::gave_up;
  }
  /// Until one of `threads` sleeps at the bell, the others stand by and no patience is due; or
  /// until `is_over`.
  void await_all_asleep(std::uint32_t threads, const std::atomic<bool>* is_over = nullptr) const {
    while (crowd.standing() != threads - 1 || bell.sleepers.load() != 1 ||
           asked_.load() < static_cast<int>(threads)) {
      if (is_over != nullptr && is_over->load()) return;
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(2ms);  // from the last look into the futex
  }
  std::vector<int> looks() const {
    std::vector<int> all;
    for (const Box& box : boxes_) all.push_back(box.looks.load());
    return all;
  }

  std::atomic<std::uint64_t> abort_word{0};
  Doorbell bell;
  Crowd crowd;
  bool forgets_to_wake = false;

 private:
  struct alignas(64) Box {
    std::atomic<int> letters{0};
    std::atomic<int> looks{0};
  };
  struct Until final : Patience {
    Until(std::atomic<int>& asked_in, Clock::time_point end_in) : asked(asked_in), end(end_in) {}
    Verdict ask(Clock::time_point now, Clock::time_point* next) override {
      ++asked;
      *next = end;
      return now < end ? Verdict::keep_waiting : Verdict::give_up;
    }
    std::atomic<int>& asked;
    const Clock::time_point end;
  };

  void carry() {
    if (!full_.load()) return;
    std::deque<std::size_t> taken;
    {
      const std::lock_guard lock(mutex_);
      taken.swap(posted_);
      full_.store(false);
    }
    if (taken.empty()) return;
    for (const std::size_t to : taken) ++boxes_[to].letters;
    if (!forgets_to_wake) crowd.wake_done();
    ring(bell);  // another's letter may be the lookout's
  }

  std::vector<Box> boxes_;
  std::atomic<int> asked_{0};
  std::mutex mutex_;
  std::deque<std::size_t> posted_;
  std::atomic<bool> full_{false};
};

/// `count` threads, joined at the end.
class Threads {
 public:
  template <class Body>
  Threads(std::size_t count, Body body) {
    for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([=] { body(i); });
  }
  ~Threads() {
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }
  void join(std::size_t i) { threads_[i].join(); }

 private:
  std::vector<std::thread> threads_;
};

TEST(Crowd, AMessageWakesTheLookoutAndWhomItIsFor) {
  constexpr std::uint32_t kThreads = 40;
  Office office(kThreads);
  Threads threads(kThreads, [&](std::size_t i) { office.await(i, 1); });
  office.await_all_asleep(kThreads);
  for (std::uint32_t i = 0; i + 1 < kThreads; ++i) {
    const std::vector<int> before = office.looks();
    office.post(i);
    threads.join(i);
    office.await_all_asleep(kThreads - 1 - i);
    const std::vector<int> after = office.looks();
    int woken = 0;
    for (std::size_t k = 0; k < kThreads; ++k) woken += before[k] != after[k] ? 1 : 0;
    // Only the lookout and the addressee, or a new lookout if these are one.
    EXPECT_LE(woken, 2) << "message " << i;
  }
  office.post(kThreads - 1);
}

/// Letters go round a ring of threads, several at a time.
TEST(Crowd, LosesNoWake) {
  constexpr std::size_t kThreads = 16;
  constexpr std::size_t kUnderWay = 5;
  constexpr int kLetters = 500;  // to each
  Office office(kThreads);
  std::atomic<int> failed{0};
  {
    const Threads threads(kThreads, [&](std::size_t i) {
      const std::size_t next = (i + 1) % kThreads;
      for (int letter = 1; letter <= kLetters; ++letter) {
        if (office.await(i, letter) != WaitResult::ready) ++failed;
        if (letter < kLetters || next >= kUnderWay) office.post(next);
      }
    });
    for (std::size_t i = 0; i < kUnderWay; ++i) office.post(i);
  }
  EXPECT_EQ(failed.load(), 0);
  EXPECT_EQ(office.crowd.standing(), 0u);
  EXPECT_EQ(office.bell.sleepers.load(), 0u);
}

/// The test above would find a wake that is forgotten.
TEST(Crowd, AForgottenWakeIsFound) {
  Office office(2);
  office.forgets_to_wake = true;
  std::atomic<bool> has_given_up{false};
  const Threads threads(2, [&](std::size_t i) {
    while (i == 1 && office.bell.sleepers.load() == 0) std::this_thread::yield();
    EXPECT_EQ(office.await(i, 1, i == 0 ? 20s : 300ms),
              i == 0 ? WaitResult::ready : WaitResult::gave_up);
    if (i == 1) has_given_up.store(true);
    if (i == 1) office.post(0);
  });
  office.await_all_asleep(2, &has_given_up);
  office.post(1);
}

TEST(Crowd, AnAbortReachesAll) {
  constexpr std::uint32_t kThreads = 20;
  Office office(kThreads);
  std::atomic<int> aborted{0};
  {
    const Threads threads(kThreads, [&](std::size_t i) {
      if (office.await(i, 1) == WaitResult::aborted) ++aborted;
    });
    office.await_all_asleep(kThreads);
    office.abort_word.store(1);
    ring(office.bell);
  }
  EXPECT_EQ(aborted.load(), static_cast<int>(kThreads));
}

TEST(Crowd, OneWhoGivesUpIsFollowedByAnotherLookout) {
  Office office(2);
  std::atomic<bool> has_lookout{false}, has_given_up{false};
  Threads threads(2, [&](std::size_t i) {
    if (i == 1) {
      while (!has_lookout.load()) std::this_thread::yield();
      EXPECT_EQ(office.await(1, 1), WaitResult::ready);
    } else {
      EXPECT_EQ(office.await(0, 1, 300ms), WaitResult::gave_up);
      has_given_up.store(true);
    }
  });
  while (office.bell.sleepers.load() == 0 && !has_given_up.load()) std::this_thread::yield();
  has_lookout.store(true);
  threads.join(0);
  office.post(1);
}

}  // namespace
}  // namespace tutti
