// Callbacks of Work::then: they run where an operation has just ended, so they must not wait. Nor
// must those of on_failure, which run on the thread that finds out who has died.
#pragma once

#include <optional>

#include "base/wait.h"
#include "control/callers.h"
#include "tutti/backend.h"

namespace tutti::group {

/// Whether this thread is inside a callback.
bool inside_callback() noexcept;
/// Whether it is inside one of an operation of `group`.
bool inside_callback_of(GroupId group) noexcept;
/// The operation that `work` waits for, through callbacks; null: of a Work that was empty.
WorkState* operation_behind(WorkState* work) noexcept;
/// "all_reduce #7 at train.cc:30"
std::string place_of(const Request& request);
/// Throws kInvalidArgument about `call`, which blocks, if it is.
void refuse_in_callback(const ErrorContext& call);
/// Runs one that is of no operation.
void run_callback(const std::function<void()>& callback);

/// One callback and the operation whose end it waits for. Ends when the callback has returned.
class Callback final : public WorkState {
 public:
  using Function = std::function<void(const Error* failure)>;
  enum class Of { program, library };
  /// `before`: null for one that has ended. One of the program may start what others wait for.
  static std::shared_ptr<Callback> make(std::shared_ptr<WorkState> before, Function function,
                                        Of whose);
  Callback(std::shared_ptr<WorkState> before, Function function, Of whose);

  bool help(Deadline::Clock::time_point until) override;
  bool cancel() override { return before_ != nullptr && before_->cancel(); }
  WorkState* before() const noexcept { return before_.get(); }

 private:
  void run() noexcept;

  const std::shared_ptr<WorkState> before_;
  const bool is_of_program_;
  Function function_;
  std::optional<control::PendingCallback> pending_;  // until the program's has run
  Doorbell bell_;  // of those who wait while another thread runs the callback
};

}  // namespace tutti::group
