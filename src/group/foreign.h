// What a backend that does not check itself is given to do, and when.
//
// Beside it stands a *side* group of the same ranks, which native makes. For a collective the ranks
// first *meet* there, with its number and chain (for a v-variant they exchange its counts), so that
// all ranks are known to be in it and to mean the same. A message is first *matched* there with its
// other half; what the side can carry itself (a buffered message, one to oneself) ends there.
// Deaths, deadlines, blame and abort are the side group's as well.
//
// Blocking operations run in the caller's thread. Asynchronous ones run in a thread that this group
// starts with the first of them: collectives in order of submission, messages when they are
// matched, also while a collective waits for ranks that have not come.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "control/membership.h"
#include "control/progress.h"
#include "group/side.h"
#include "tutti/backend.h"

namespace tutti::group {

/// Threads   run and start of collectives: one at a time. Messages: any.
class Foreign final : private control::Driver {
 public:
  /// `check` false: collectives go to the backend unchecked.
  Foreign(Backend& backend, Side& side, control::Membership& membership, bool check);
  ~Foreign() override;

  void run(const Request& request);
  Work start(Request request);
  /// Waits until no collective is under way any more, before `request`, which is not for here.
  void finish_before(const Request& request) { wait_for_collectives(request); }
  /// Ends what is under way in order until the deadline; throws kTimeout if something is left.
  void drain(Deadline deadline);

 private:
  class Check;
  class Collective;
  class Message;
  class Entry;
  class Queued;

  Step step() noexcept override;
  void ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) noexcept override;

  void wait_for_the_aborted() noexcept;
  void run_collective(const Request& request);
  void run_message(const Request& request);
  template <class Call>
  void in_backend(const Request& request, Call&& call);
  void fail(const Error& failure, const Request& request) noexcept;
  void ensure_thread();
  std::optional<control::WaitPart> awaited_in(const Request& collective) const;
  void wait_for_collectives(const Request& request);
  bool failed() const noexcept { return membership_.abort_word().load() != 0; }

  Backend& backend_;
  Side& side_;
  control::Membership& membership_;
  const bool check_;
  std::atomic<std::size_t> collectives_pending_{0};
  std::atomic<std::size_t> messages_pending_{0};
  std::atomic<std::size_t> with_own_timeout_{0};  // of the collectives

  std::mutex mutex_;
  std::list<std::shared_ptr<Collective>> new_collectives_;  // mutex_
  std::list<std::shared_ptr<Message>> new_messages_;        // mutex_

  // The thread's own.
  std::list<std::shared_ptr<Collective>> collectives_;
  std::list<std::shared_ptr<Message>> messages_;

  std::atomic<bool> has_thread_{false};
  control::ProgressThread thread_;
};

}  // namespace tutti::group
