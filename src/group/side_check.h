// Asynchronous operations of a backend that does not check itself.
//
// Each *launches* in the order of submission: its barrier on the side group has passed, then the
// backend is asked to start it. Launching happens in the thread of whoever helps: such an operation
// makes progress while somebody waits for it, for a later one, or closes the group.
#pragma once

#include <atomic>
#include <memory>

#include "control/membership.h"
#include "tutti/backend.h"

namespace tutti::group {

/// The native barrier on the side group that stands for `request`, which must outlive it.
Request side_barrier(const Request& request) noexcept;

class SideCheck final : public WorkState {
 public:
  /// `before`: the asynchronous operation submitted before this one, if it may not have launched.
  SideCheck(Request request, Backend& side, Backend& backend, control::Membership& membership,
            std::shared_ptr<SideCheck> before);
  ~SideCheck() override;

  bool help(Deadline::Clock::time_point until) override;
  /// Helps until it has launched or failed.
  void launch();

 private:
  using Clock = Deadline::Clock;
  /// Waits until this thread is the only helper (true), or the operation is done or `until` has
  /// come.
  bool take(Clock::time_point until);
  bool try_launch(Clock::time_point until);
  bool advance(Clock::time_point until);
  /// The others would wait for this rank: fails the group too.
  void fail(const Error& failure) noexcept;
  Backend& backend_;
  control::Membership& membership_;
  std::shared_ptr<SideCheck> before_;
  Work check_;  // the barrier
  Work real_;
  std::atomic<bool> taken_{false};
  std::atomic<bool> launched_{false};
};

}  // namespace tutti::group
