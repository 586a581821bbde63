#include "ddp/torch/autograd.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tutti::ddp {
namespace {

namespace autograd = torch::autograd;

// A shared_ptr in older versions of libtorch 2, an intrusive_ptr in newer ones.
using NodePtr = decltype(autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

constexpr int kNoTask = -1;  // ids of tasks count from 0

/// False in autograd::grad and in backward to named inputs, which may pass the parameters by.
bool reaches_all_leaves() {
  const auto* const only = autograd::get_current_graph_task_exec_info();
  return only == nullptr || only->empty();
}

}  // namespace

struct BackwardWatch::State : std::enable_shared_from_this<State> {
  struct Hook {
    at::Tensor parameter;
    NodePtr accumulator;  // the tensor itself holds it only weakly
    std::uintptr_t key;
  };
  class After;
  class Task;
  std::shared_ptr<const Follower> self;
  BackwardEvents events;
  std::vector<Hook> hooks;
  std::mutex turn;  // the parts of backward that several devices run
  bool enabled = true;
  bool is_over = false;  // the watch has gone; a device's thread may come yet
  int outermost = kNoTask;
  int given_up = kNoTask;      // a device's thread may still be in it
  std::weak_ptr<Task> alive;   // as long as that task is: its callback goes with it
  int came_through = kNoTask;  ///< the last task that came through watched outputs, enabled or not

  bool is_in_task() const noexcept { return outermost != kNoTask && !alive.expired(); }

  /// An output gets its gradient.
  void reached_output(const TrainedPtr& trained) {
    const std::lock_guard lock(turn);
    if (is_over) return;
    came_through = autograd::get_current_graph_task_id();
    if (enabled && came_through != given_up) enter_task(trained);
  }

  /// Something happened in a task. The first time since the last task ended, it is taken for the
  /// outermost one and asked to call back when it is over.
  void enter_task(const TrainedPtr& trained) {
    if (is_in_task()) {
      if (trained) events.reached(trained);
      return;
    }
    if (outermost != kNoTask) events.broken();
    outermost = autograd::get_current_graph_task_id();
    call_back();
    events.began(trained);
  }
  void call_back();

  void forget_task() {
    if (outermost != kNoTask) given_up = std::exchange(outermost, kNoTask);
  }
  /// What is under way goes into gradients that the program may change from here on.
  void lose_task(int task) {
    const std::lock_guard lock(turn);
    if (is_over || outermost != task) return;
    forget_task();
    events.broken();
  }
  void leave_task() {
    const std::lock_guard lock(turn);
    if (is_over) return;
    outermost = kNoTask;
    // After the outermost task no node is being evaluated; after an inner one the node that ran it
    // is.
    events.ended(static_cast<bool>(autograd::get_current_node()));
  }

  /// Whether this backward is of another model that has the parameter too: it came through that
  /// one's outputs, and not through ours.
  bool is_of_another(std::size_t parameter) const;

  void gradient(std::size_t parameter) {
    const std::lock_guard lock(turn);
    if (is_over) return;
    if (is_of_another(parameter) || autograd::get_current_graph_task_id() == given_up) return;
    if (!enabled) {
      events.kept(parameter);
      return;
    }
    enter_task(nullptr);
    events.gradient(parameter);
  }
};

/// Held by the callback at the end of a task: gone without a call where an exception has ended it,
/// before backward() throws that, unless a device's thread holds the task for longer.
class BackwardWatch::State::Task {
 public:
  Task(std::weak_ptr<State> state, int id) noexcept : state_(std::move(state)), id_(id) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() {
    if (!is_queued) return;
    if (const auto state = state_.lock()) state->lose_task(id_);
  }
  void end() {
    if (const auto state = state_.lock()) state->leave_task();
  }
  bool is_queued = false;

 private:
  const std::weak_ptr<State> state_;
  const int id_;
};

void BackwardWatch::State::call_back() {
  const auto task = std::make_shared<Task>(weak_from_this(), outermost);
  alive = task;
  autograd::Engine::get_default_engine().queue_callback([task] { task->end(); });
  task->is_queued = true;
}

/// Runs behind an accumulator.
class BackwardWatch::State::After final : public autograd::FunctionPostHook {
 public:
  After(State* state, std::size_t parameter)  // which outlives it
      : state_(state), parameter_(parameter) {}
  const State& state() const noexcept { return *state_; }
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    state_->shared_from_this()->gradient(parameter_);  // this may go meanwhile
    return outputs;
  }

  /// The first watch of this accumulator for which `is_one` holds.
  template <class IsOne>
  static const State* find(const autograd::Node& accumulator, const IsOne& is_one) {
    for (const auto& hook : accumulator.post_hooks()) {
      const auto* const after = dynamic_cast<const After*>(hook.get());
      if (after != nullptr && is_one(after->state())) return &after->state();
    }
    return nullptr;
  }
  static const Follower* other_follower(const autograd::Node& accumulator, const Follower& self) {
    const State* const other =
        find(accumulator, [&](const State& state) { return state.self->ranks != self.ranks; });
    return other != nullptr ? other->self.get() : nullptr;
  }

 private:
  State* const state_;
  const std::size_t parameter_;
};

bool BackwardWatch::State::is_of_another(std::size_t parameter) const {
  const int task = autograd::get_current_graph_task_id();
  if (is_in_task() || came_through == task) return false;
  return After::find(*hooks[parameter].accumulator, [&](const State& other) {
           return &other != this && (other.is_in_task() || other.came_through == task);
         }) != nullptr;
}

std::optional<Contest> BackwardWatch::contest_of(const std::vector<at::Tensor>& parameters,
                                                 const Follower& self) {
  for (std::size_t parameter = 0; parameter < parameters.size(); ++parameter) {
    if (!parameters[parameter].requires_grad()) continue;
    const NodePtr accumulator = autograd::impl::grad_accumulator(parameters[parameter]);
    if (const Follower* const other = State::After::other_follower(*accumulator, self))
      return Contest{parameter, *other};
  }
  return std::nullopt;
}

BackwardWatch::BackwardWatch(const std::vector<at::Tensor>& parameters, Follower self,
                             BackwardEvents events)
    : state_(std::make_shared<State>()) {
  state_->self = std::make_shared<const Follower>(std::move(self));
  state_->events = std::move(events);
  for (const at::Tensor& parameter : parameters) state_->hooks.push_back({parameter, {}, 0});
  follow_parameters();
}

BackwardWatch::~BackwardWatch() {
  {
    const std::lock_guard lock(state_->turn);
    state_->is_over = true;
  }
  for (const State::Hook& hook : state_->hooks) {
    if (hook.accumulator) hook.accumulator->del_post_hook(hook.key);
  }
}

std::optional<Contest> BackwardWatch::follow_parameters() {
  State* const state = state_.get();  // outlives its hooks
  for (std::size_t parameter = 0; parameter < state->hooks.size(); ++parameter) {
    State::Hook& hook = state->hooks[parameter];
    if (!hook.parameter.requires_grad()) continue;  // it has no accumulator, or keeps what it had
    NodePtr accumulator = autograd::impl::grad_accumulator(hook.parameter);
    if (accumulator == hook.accumulator) continue;
    if (const Follower* const other = State::After::other_follower(*accumulator, *state->self))
      return Contest{parameter, *other};
    if (hook.accumulator) hook.accumulator->del_post_hook(hook.key);
    hook.key = accumulator->add_post_hook(std::make_unique<State::After>(state, parameter));
    hook.accumulator = std::move(accumulator);
  }
  return std::nullopt;
}

bool BackwardWatch::shares_parameters() const {
  const auto is_other = [this](const State& state) { return &state != state_.get(); };
  return std::ranges::any_of(state_->hooks, [&](const State::Hook& hook) {
    return hook.accumulator && State::After::find(*hook.accumulator, is_other) != nullptr;
  });
}

void BackwardWatch::enable(bool on) { state_->enabled = on; }

void BackwardWatch::watch_outputs(const std::vector<at::Tensor>& outputs,
                                  const TrainedPtr& trained) {
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.grad_fn()) continue;
    output.register_hook([weak = std::weak_ptr(state_), trained](const at::Tensor&) {
      const auto state = weak.lock();
      if (state && reaches_all_leaves()) state->reached_output(trained);
    });
  }
}

bool BackwardWatch::in_backward() { return autograd::get_current_graph_task_id() != kNoTask; }
bool BackwardWatch::task_open() const { return state_->outermost != kNoTask; }
std::unique_lock<std::mutex> BackwardWatch::hold() { return std::unique_lock(state_->turn); }
void BackwardWatch::forget_task() { state_->forget_task(); }

std::vector<std::size_t> BackwardWatch::unreached_from(
    const std::vector<at::Tensor>& outputs) const {
  std::unordered_set<autograd::Node*> reached;
  std::vector<autograd::Node*> open;
  const auto reach = [&](autograd::Node* node) {
    if (node != nullptr && reached.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined()) reach(autograd::impl::gradient_edge(output).function.get());
  }
  while (!open.empty()) {
    autograd::Node* node = open.back();
    open.pop_back();
    for (const autograd::Edge& edge : node->next_edges()) reach(edge.function.get());
  }
  std::vector<std::size_t> unreached;
  for (std::size_t parameter = 0; parameter < state_->hooks.size(); ++parameter) {
    if (!reached.contains(state_->hooks[parameter].accumulator.get())) {
      unreached.push_back(parameter);
    }
  }
  return unreached;
}

at::Tensor without_history(const at::Tensor& view) { return view.variable_data(); }

}  // namespace tutti::ddp
