#include "c10d/work.h"

#include <ATen/core/ivalue.h>

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <string_view>
#include <utility>

#include "c10d/error.h"
#include "c10d/group.h"
#include "c10d/helpers.h"

namespace tutti::python {

using c10::ivalue::Future;

namespace {

constexpr std::string_view kPrefix = "tutti:";  // of the titles

/// Of a Work in this process: no other one has it.
std::atomic<std::uint64_t> next_key = 1;

}  // namespace

/// What outlives the Work when that goes before its operation ends.
struct Work::State : std::enable_shared_from_this<State> {
  /// What may take Python's lock when it is freed: in a thread of torch's, or by a helper.
  struct Held {
    Operands operands;
    Tensors outputs;
    std::optional<std::vector<Tensors>> lists;  // the result, where that is several
    c10::intrusive_ptr<Future> future;          // null until somebody asks for it
  };

  void one_ended(const Error* error) {
    if (error != nullptr) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = as_torch(*error);
    }
    if (left.fetch_sub(1) == 1) end();
  }

  void end() {
    if (!failure) {
      try {
        held.operands.copy_back();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    bool is_for_helper = false;
    {
      const std::lock_guard lock(mutex);
      has_ended = true;
      is_for_helper = is_abandoned || held.future;
    }
    if (record_end) record_end();
    if (!failure) hooks->call(key);
    if (is_for_helper) run_by_helper([self = shared_from_this()] { self->follow_up(); });
  }

  void follow_up() {
    complete_future();
    Held freed;
    const std::lock_guard lock(mutex);
    if (is_abandoned) freed = std::move(held);
  }

  /// Once it has ended, by the first who comes.
  void complete_future() {
    c10::intrusive_ptr<Future> future;
    c10::IValue result;
    {
      const std::lock_guard lock(mutex);
      if (!held.future || std::exchange(is_future_complete, true)) return;
      future = held.future;
      result = held.lists ? c10::IValue(*held.lists) : c10::IValue(held.outputs);
    }
    if (failure) {
      future->setError(failure);
    } else {
      future->markCompleted(std::move(result));
    }
  }

  Held held;
  std::deque<MessageInfo> infos;
  std::function<void()> record_end;  // torch's profiler
  std::shared_ptr<const CompletionHooks> hooks;
  const std::uint64_t key = next_key.fetch_add(1);
  std::atomic<std::size_t> left = 0;

  std::mutex mutex;
  std::exception_ptr failure;  // constant once it has ended
  bool has_ended = false, is_abandoned = false, is_future_complete = false;
};

Work::Work(std::shared_ptr<Group> group, std::shared_ptr<const CompletionHooks> hooks,
           const Operation& operation, const Tensors& inputs)
    : c10d::Work(-1, operation.type, operation.title, inputs),
      group_(std::move(group)),
      state_(std::make_shared<State>()),
      title_(std::string_view(operation.title).substr(kPrefix.size())),
      seq_(operation.seq),
      timeout_(operation.timeout) {
  state_->record_end = std::move(recordFunctionEndCallback_);
  state_->hooks = std::move(hooks);
}

Work::~Work() {
  for (tutti::Work& work : works_) std::move(work).detach();
  State::Held freed;
  const std::lock_guard lock(state_->mutex);
  // A helper that is yet to complete the future frees the rest.
  const bool is_done_with =
      state_->has_ended && (!state_->held.future || state_->is_future_complete);
  if (is_done_with) {
    freed = std::move(state_->held);
  } else {
    state_->is_abandoned = true;
  }
}

Operands& Work::operands() { return state_->held.operands; }
Tensors& Work::outputs() { return state_->held.outputs; }
void Work::set_lists(const std::vector<Tensors>& lists) { state_->held.lists = lists; }
MessageInfo& Work::add_info() { return state_->infos.emplace_back(); }

void Work::begin(std::vector<tutti::Work> works) {
  if (works.empty()) {
    state_->end();
    return;
  }
  state_->left = works.size();
  works_.reserve(works.size());
  for (tutti::Work& work : works) {
    works_.push_back(
        std::move(work).then([state = state_](const Error* error) { state->one_ended(error); }));
  }
}

bool Work::isCompleted() {
  const std::lock_guard lock(state_->mutex);
  return state_->has_ended;
}

bool Work::isSuccess() const {
  const std::lock_guard lock(state_->mutex);
  return state_->has_ended && !state_->failure;
}

std::exception_ptr Work::exception() const {
  const std::lock_guard lock(state_->mutex);
  return state_->has_ended ? state_->failure : nullptr;
}

int Work::sourceRank() const { return state_->infos.empty() ? -1 : state_->infos.front().rank; }

Tensors Work::result() { return state_->held.outputs; }

#ifdef C10D_BACKEND_HAS_HOOKS
std::uint64_t Work::getCompletionKey() const { return state_->key; }
#endif

bool Work::wait(std::chrono::milliseconds timeout) {
  const Group::Inside inside(*group_);
  Deadline deadline;
  if (timeout != kNoTimeout) deadline = Deadline::after(*Timeout(timeout));
  for (tutti::Work& work : works_) {
    try {
      const bool has_ended = timeout == kNoTimeout
                                 ? (work.wait(), true)
                                 : work.wait_for(deadline.left(Deadline::Clock::now()));
      TORCH_CHECK(has_ended, "tutti: Timed out: rank ", (*group_)->rank(), " has waited ",
                  timeout.count(), " ms for ", title_, " of ", group_->name(),
                  ", which goes on: wait again, or let it end by the timeout of the group, whose "
                  "error names who is late");
    } catch (const Error& error) {  // torch's is thrown below
      group_->note(error);
    }
  }
  const bool has_begun = isCompleted();
  if (!has_begun) awaited_too_early_ = true;
  TORCH_CHECK(has_begun,
              "tutti: part of a coalesced call, which has not ended: wait for the "
              "Work of the whole call. If an exception has left that call, the next call on this "
              "group ends it, and is no part of it");
  inside.pause_at_end();  // the future may call back
  // Who has waited may look at the future next.
  state_->complete_future();
  c10::intrusive_ptr<Future> future;
  {
    const std::lock_guard lock(state_->mutex);
    future = state_->held.future;
  }
  if (future) future->wait();
  if (state_->failure) std::rethrow_exception(state_->failure);
  return true;
}

c10::intrusive_ptr<Future> Work::getFuture() {
  c10::intrusive_ptr<Future> future;
  bool has_ended = false;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->held.future) {
      const c10::TypePtr list = c10::ListType::ofTensors();
      state_->held.future = c10::make_intrusive<Future>(
          state_->held.lists ? c10::TypePtr(c10::ListType::create(list)) : list);
    }
    future = state_->held.future;
    has_ended = state_->has_ended;
  }
  if (has_ended) state_->complete_future();
  return future;
}

}  // namespace tutti::python
