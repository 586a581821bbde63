#include "ddp/torch/autograd.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

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

/// Runs a function behind a node.
class After final : public autograd::FunctionPostHook {
 public:
  explicit After(std::function<void()> run) : run_(std::move(run)) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    run_();
    return outputs;
  }

 private:
  std::function<void()> run_;
};

}  // namespace

struct BackwardWatch::State : std::enable_shared_from_this<State> {
  struct Hook {
    at::Tensor parameter;
    NodePtr accumulator;  // the tensor itself holds it only weakly
    std::uintptr_t key;
  };
  BackwardEvents events;
  std::vector<Hook> hooks;
  bool enabled = true;
  int outermost = kNoTask;

  /// Something happened in a task. The first time since the last task ended, it is taken for the
  /// outermost one and asked to call back when it is over.
  void enter_task(const TrainedPtr& trained) {
    if (outermost != kNoTask) {
      if (trained) events.reached(trained);
      return;
    }
    outermost = autograd::get_current_graph_task_id();
    autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
      if (const auto state = weak.lock()) state->leave_task();
    });
    events.began(trained);
  }

  void leave_task() {
    outermost = kNoTask;
    // After the outermost task no node is being evaluated; after an inner one the node that ran it
    // is.
    events.ended(static_cast<bool>(autograd::get_current_node()));
  }

  void gradient(std::size_t parameter) {
    if (!enabled) {
      events.kept(parameter);
      return;
    }
    enter_task(nullptr);
    events.gradient(parameter);
  }
};

BackwardWatch::BackwardWatch(const std::vector<at::Tensor>& parameters, BackwardEvents events)
    : state_(std::make_shared<State>()) {
  state_->events = std::move(events);
  for (const at::Tensor& parameter : parameters) state_->hooks.push_back({parameter, {}, 0});
  follow_parameters();
}

BackwardWatch::~BackwardWatch() {
  for (const State::Hook& hook : state_->hooks) {
    if (hook.accumulator) hook.accumulator->del_post_hook(hook.key);
  }
}

void BackwardWatch::follow_parameters() {
  State* const state = state_.get();  // outlives its hooks
  for (std::size_t parameter = 0; parameter < state->hooks.size(); ++parameter) {
    State::Hook& hook = state->hooks[parameter];
    if (!hook.parameter.requires_grad()) continue;  // it has no accumulator, or keeps what it had
    NodePtr accumulator = autograd::impl::grad_accumulator(hook.parameter);
    if (accumulator == hook.accumulator) continue;
    if (hook.accumulator) hook.accumulator->del_post_hook(hook.key);
    hook.key = accumulator->add_post_hook(
        std::make_unique<After>([state, parameter] { state->gradient(parameter); }));
    hook.accumulator = std::move(accumulator);
  }
}

void BackwardWatch::enable(bool on) { state_->enabled = on; }

void BackwardWatch::watch_outputs(const std::vector<at::Tensor>& outputs,
                                  const TrainedPtr& trained) {
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.grad_fn()) continue;
    output.register_hook([weak = std::weak_ptr(state_), trained](const at::Tensor&) {
      const auto state = weak.lock();
      if (state && state->enabled && reaches_all_leaves()) state->enter_task(trained);
    });
  }
}

bool BackwardWatch::task_open() const { return state_->outermost != kNoTask; }
void BackwardWatch::forget_task() { state_->outermost = kNoTask; }

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
