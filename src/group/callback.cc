#include "group/callback.h"

#include <fmt/format.h>

#include <utility>

#include "control/membership.h"
#include "control/program_wait.h"
#include "group/check.h"

namespace tutti::group {

namespace {

thread_local bool inside = false;
thread_local GroupId inside_group = 0;  // the innermost; 0: it is of no operation

/// This thread is inside a callback while it lives.
class Inside {
 public:
  explicit Inside(GroupId group) noexcept
      : outer_(std::exchange(inside, true)), outer_group_(std::exchange(inside_group, group)) {}
  ~Inside() {
    inside = outer_;
    inside_group = outer_group_;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  const bool outer_;
  const GroupId outer_group_;
};

/// Of the same group: its failure is that of the callback's own Work.
Request request_after(const WorkState* before) noexcept {
  Request request;
  if (before != nullptr) request.group = before->request().group;
  return request;
}

Error failure_of_callback(WorkState* before, std::string_view thrown) {
  const std::string text = fmt::format("the callback given to Work::then threw: {}", thrown);
  WorkState* const operation = operation_behind(before);
  if (operation == nullptr) return Error(ErrorCode::kInvalidArgument, text);
  const Request& request = operation->request();
  const auto* const awaits = dynamic_cast<control::ProgramAwaits*>(operation);
  if (awaits != nullptr)
    return make_error(ErrorCode::kInvalidArgument, request, awaits->membership().self(), text);
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{}: {}.", place_of(request), text),  // of a plugin
               {.op = call_name(request), .seq = request.seq, .call_site = name_of(request.where)});
}

}  // namespace

bool inside_callback() noexcept { return inside; }

bool inside_callback_of(GroupId group) noexcept { return inside && inside_group == group; }

WorkState* operation_behind(WorkState* work) noexcept {
  while (const auto* const callback = dynamic_cast<const Callback*>(work))
    work = callback->before();
  return work;
}

std::string place_of(const Request& request) {
  std::string text = call_name(request);
  if (request.seq != 0) text += fmt::format(" #{}", request.seq);
  const std::string line = name_of(request.where);
  return line.empty() ? text : text + " at " + line;
}

void refuse_in_callback(const ErrorContext& call) {
  if (!inside) return;
  const std::string who = call.rank < 0 ? "" : heading(call) + ": ";
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}{} blocks, and a callback given to Work::then or on_failure must not: "
                          "start an asynchronous operation there, or wait elsewhere",
                          who, call.op),
              call);
}

void run_callback(const std::function<void()>& callback) {
  const Inside guard(0);
  callback();
}

std::shared_ptr<Callback> Callback::make(std::shared_ptr<WorkState> before, Function function,
                                         Of whose) {
  auto callback = std::make_shared<Callback>(std::move(before), std::move(function), whose);
  if (callback->before_ == nullptr) {
    callback->run();
  } else {
    callback->before_->when_done([callback] { callback->run(); });
  }
  return callback;
}

Callback::Callback(std::shared_ptr<WorkState> before, Function function, Of whose)
    : WorkState(request_after(before.get())),
      before_(std::move(before)),
      is_of_program_(whose == Of::program),
      function_(std::move(function)) {
  if (is_of_program_) pending_.emplace();
}

void Callback::run() noexcept {
  std::optional<Error> failure = before_ ? before_->error() : std::nullopt;
  {
    const Inside guard(request().group);
    try {
      function_(failure ? &*failure : nullptr);
    } catch (const Error& thrown) {
      failure = thrown;
    } catch (const std::exception& thrown) {
      failure = failure_of_callback(before_.get(), thrown.what());
    } catch (...) {
      failure = failure_of_callback(before_.get(), "something that is not an exception");
    }
    function_ = nullptr;  // what it owns goes here, where nothing may block
  }
  pending_.reset();
  if (failure) {
    end(*std::move(failure));
  } else {
    end();
  }
  ring(bell_);
}

bool Callback::help(Deadline::Clock::time_point until) {
  if (before_ && !before_->done()) {
    std::optional<control::PendingCallback::Aside> aside;
    if (is_of_program_) aside.emplace();
    if (!before_->help(until)) return done();
  }
  return wait_until(bell_, until, [this] { return done(); });
}

}  // namespace tutti::group
