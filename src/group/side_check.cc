#include "group/side_check.h"

#include <utility>

namespace tutti::group {

namespace {

using Clock = Deadline::Clock;

/// Gives up at a fixed time.
class Until final : public Patience {
 public:
  explicit Until(Clock::time_point end) noexcept : end_(end) {}
  Verdict ask(Clock::time_point now, Clock::time_point* next) override {
    *next = end_;
    return now >= end_ ? Verdict::give_up : Verdict::keep_waiting;
  }

 private:
  const Clock::time_point end_;
};

/// For Work::wait_for: the time left until `until`.
std::chrono::nanoseconds left_until(Clock::time_point until) {
  if (until == Clock::time_point::max()) return std::chrono::nanoseconds::max();
  return std::max(std::chrono::nanoseconds(until - Clock::now()), std::chrono::nanoseconds(0));
}

}  // namespace

Request side_barrier(const Request& request) noexcept {
  Request barrier;
  barrier.op = Op::barrier;
  barrier.group = request.group;
  barrier.seq = request.seq;
  barrier.chain = request.chain;
  barrier.arrive = request.arrive;
  barrier.stall = request.stall;
  barrier.where = request.where;
  barrier.stands_for = &request;
  return barrier;
}

SideCheck::SideCheck(Request request, Backend& side, Backend& backend,
                     control::Membership& membership, std::shared_ptr<SideCheck> before)
    : WorkState(std::move(request)),
      backend_(backend),
      membership_(membership),
      before_(std::move(before)),
      check_(side.start(side_barrier(this->request()))) {}

SideCheck::~SideCheck() = default;

bool SideCheck::take(Clock::time_point until) {
  bool mine = false;
  Until patience(until);
  // The helper inside may have to be woken itself by an abort: the abort word must not end this
  // wait.
  static constexpr std::atomic<std::uint64_t> kNeverAborted{0};
  Waiter waiter = membership_.waiter();
  waiter.abort_word = &kNeverAborted;
  wait(waiter, patience, [&] {
    if (done()) return true;
    mine = !taken_.exchange(true, std::memory_order_acquire);
    return mine;
  });
  return mine;
}

bool SideCheck::try_launch(Clock::time_point until) {
  if (launched_.load(std::memory_order_relaxed)) return true;
  if (before_) {
    if (!before_->advance(until)) return false;
    before_.reset();
  }
  if (!check_.wait_for(left_until(until))) return false;
  begin();
  Request real = request();
  real.observer = nullptr;  // told by this state
  real_ = backend_.start(std::move(real));
  launched_.store(true, std::memory_order_release);
  return true;
}

void SideCheck::fail(const Error& failure) noexcept {
  if (membership_.abort_word().load(std::memory_order_acquire) == 0) {
    membership_.fail({failure.code(), failure.what(), {membership_.rank()}, {}});
  }
  end(failure);
}

bool SideCheck::advance(Clock::time_point until) {
  if (launched_.load(std::memory_order_acquire) || done()) return true;
  if (!take(until)) return launched_.load(std::memory_order_acquire) || done();
  bool launched = true;
  try {
    launched = done() || try_launch(until);
  } catch (const Error& failure) {
    fail(failure);
  }
  taken_.store(false, std::memory_order_seq_cst);
  membership_.notify(membership_.rank());
  return launched;
}

void SideCheck::launch() { advance(Clock::time_point::max()); }

bool SideCheck::help(Clock::time_point until) {
  if (!advance(until)) return false;
  if (done()) return true;
  if (!take(until)) return done();
  try {
    if (!done() && real_.wait_for(left_until(until))) {
      membership_.leave(request());
      end();
    }
  } catch (const Error& failure) {
    fail(failure);
  }
  taken_.store(false, std::memory_order_seq_cst);
  membership_.notify(membership_.rank());
  return done();
}

}  // namespace tutti::group
