// One step of DistributedDataParallel, from forward to the end of backward.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "ddp/torch/data_parallel_impl.h"
#include "ddp/torch/tensor.h"

namespace tutti::detail {

void DataParallel::Impl::set_synchronise(bool on) {
  synchronise = on;
  if (watch) watch->enable(on);
}

void DataParallel::Impl::forward_begins(Where where) {
  called_at = where.line != 0 ? where : made_at;
  end_broken_step();
  if (at::GradMode::is_enabled()) look_at_model();
  refuse_contest(watch->follow_parameters());
  step_began = Clock::now();
  if (!synchronise || !options.broadcast_buffers || !module->is_training()) return;
  if (tensors.buffers.empty()) return;
  if (attendance) take_turn({ddp::Turn::forward, false, agreed_digest()});
  copy_buffers();
  stats.exposed += Clock::now() - step_began;
}

/// The graphs of earlier forwards have saved BatchNorm's running statistics; no backward uses them.
/// So buffers are written past their version counters, as BatchNorm itself does it.
void DataParallel::Impl::copy_buffers() {
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& buffer : tensors.buffers) buffers.push_back(ddp::without_history(buffer));
  ProcessGroup ranks = group();
  ddp::broadcast_tensors(ranks, buffers, root(), at(for_buffers));
}

void DataParallel::Impl::forward_ended(const std::vector<at::Tensor>& outputs) {
  if (!at::GradMode::is_enabled()) return;
  watch->watch_outputs(outputs, latest);
  if (!looks_for_unused()) return;
  unreached.clear();
  if (++forwards == 1) unreached = watch->unreached_from(outputs);
}

void DataParallel::Impl::begin_exchange() {
  reorder_buckets();
  shares_parameters = watch->shares_parameters();
  stats.overlaps = overlap != ddp::Overlap::none && !shares_parameters;
  if (options.static_graph) plan->begin_graph(trained->set);
}

/// What will get no gradient is marked at once, so that its buckets need not wait for the end.
/// After several forwards only the end tells what they have not reached.
void DataParallel::Impl::backward_began(const ddp::TrainedPtr& from) try {
  if (plan->reducer.in_step()) {  // it had been taken for a nested one
    if (from) backward_reached(from);
    return;
  }
  if (!from) look_at_model();
  began_from = from ? from : latest;
  const ddp::TrainedPtr now = without_frozen(began_from);
  if (attendance) say_backward(now);
  meet_after_giving_up();
  agree(now);
  begin_exchange();
  used.assign(plan->count(), 1);
  for (std::size_t place = 0; place < plan->count(); ++place) {
    const bool is_unused = options.static_graph && plan->graph.is_unused(place);
    if (!is_trained(place) || is_unused) mark_without_gradient(place);
  }
  if (!looks_for_unused()) return;
  for (const std::size_t parameter : unreached) {
    const std::size_t place = plan->place_of(parameter);
    if (place != ddp::Plan::kNoPlace && is_trained(place)) mark_without_gradient(place);
  }
} catch (...) {
  start_over();
  throw;
}

void DataParallel::Impl::backward_reached(const ddp::TrainedPtr& from) {
  if (from == began_from) return;
  const ddp::TrainedPtr now = without_frozen(from);
  if (now->refusal.empty() && now->set == trained->set) return;
  const std::string change = ddp::change_of(tensors.names, trained->set, now->set);
  start_over();
  if (!now->refusal.empty()) refuse(now->refusal);
  fail(ErrorCode::kInvalidArgument,
       str("one backward goes through two forwards that train different parameters: from one to "
           "the other ",
           change, "; call backward for each of them"));
}

/// What was kept local before, or is not reached.
void DataParallel::Impl::mark_without_gradient(std::size_t place) {
  const at::NoGradGuard no_grad;
  const at::Tensor& gradient = plan->tensor(place).grad();
  const at::Tensor& view = plan->view(place);
  plan->take_turn(place);
  used[place] = gradient.defined() ? 1 : 0;
  if (!gradient.defined()) {
    view.zero_();
  } else if (!plan->holds_view(place)) {
    view.copy_(gradient);
  }
  plan->reducer.mark_ready(place);
}

void DataParallel::Impl::gradient_kept(std::size_t parameter) {
  if (tensors.parameters[parameter].requires_grad()) kept_local[parameter] = 1;
}

void DataParallel::Impl::gradient_complete(std::size_t parameter) try {
  const std::string& name = tensors.names[parameter];
  if (!tensors.parameters[parameter].requires_grad()) {
    if (trained->set[parameter] == 0) return;  // frozen after forward: it has got nothing
    fail(ErrorCode::kInvalidArgument,
         str(name, " was frozen while backward ran; freeze it before or after"));
  }
  const std::size_t place = plan->place_of(parameter);
  if (place == ddp::Plan::kNoPlace) {
    fail(ErrorCode::kInvalidArgument,
         str(name,
             " got a gradient, but required none when forward was called; thaw parameters before "
             "forward"));
  }
  if (!options.static_graph || is_last_gradient(place)) take_gradient(place);
} catch (...) {
  start_over();
  throw;
}

/// While the graph is not known its end will say.
bool DataParallel::Impl::is_last_gradient(std::size_t place) {
  switch (plan->graph.count(place)) {
    case ddp::StaticGraph::Gradient::last:
      return true;
    case ddp::StaticGraph::Gradient::not_last:
      return false;
    case ddp::StaticGraph::Gradient::too_many:
      break;
  }
  fail(ErrorCode::kInvalidArgument,
       str("static_graph: ", name_at(place), " has got more gradients in this backward (",
           plan->graph.now(place), ") than in the first one (", plan->graph.learned(place),
           "); leave static_graph out if steps differ"));
}

void DataParallel::Impl::take_gradient(std::size_t place) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = plan->tensor(place).mutable_grad();
  const at::Tensor& view = plan->view(place);
  const std::string& name = name_at(place);
  plan->take_turn(place);
  if (!gradient.defined()) {
    view.zero_();
  } else if (gradient.layout() != at::kStrided) {
    fail(ErrorCode::kUnsupported,
         str("the gradient of ", name, " is sparse; make it dense (Embedding: sparse(false))"));
  } else if (gradient.requires_grad()) {
    fail(ErrorCode::kUnsupported,
         str("the gradient of ", name,
             " has a graph of its own: backward with create_graph cannot be averaged over ranks; "
             "compute such terms with torch::autograd::grad"));
  } else if (gradient.sizes() != view.sizes() || gradient.scalar_type() != view.scalar_type() ||
             gradient.device() != view.device()) {
    const bool has_moved = gradient.device() != view.device();
    fail(ErrorCode::kInvalidArgument,
         str("the gradient of ", name, " is ", ddp::describe(gradient), " on ", gradient.device(),
             ", and ", ddp::describe(view), " on ", view.device(),
             " is exchanged for it: the model's ", has_moved ? "device" : "type",
             " has changed. Change it by to() of the wrapper, and zero_grad() afterwards"));
  } else if (!plan->holds_view(place)) {
    view.copy_(gradient);
  }
  if (options.gradients_as_views && !plan->holds_view(place)) gradient = ddp::without_history(view);
  if (plan->reducer.mark_ready(place) == ddp::Reducer::Mark::repeated) {
    fail(ErrorCode::kInvalidArgument,
         str(name,
             " got a second gradient in one backward. It is used both inside and outside of a "
             "checkpointed block, or in two of them, or find_unused_parameters took it for unused "
             "because only the loss uses it: use it in one place, inside forward, or set "
             "static_graph if every step does the same"));
  }
}

void DataParallel::Impl::backward_ended(bool nested) try {
  ddp::Reducer& reducer = plan->reducer;
  if (reducer.all_ready()) {
    finish();
    return;
  }
  if (nested) return;  // judged at the end of the outermost backward
  if (options.static_graph && !plan->graph.is_known()) return learn_graph();
  if (!looks_for_unused()) fail_incomplete();
  for (const std::size_t place : reducer.missing()) mark_without_gradient(place);
  finish();
} catch (...) {
  start_over();
  throw;
}

/// Only now is it known which gradients were the last ones.
void DataParallel::Impl::learn_graph() {
  for (const std::size_t place : plan->graph.by_last_gradient()) {
    if (!is_trained(place)) continue;  // marked when it began
    if (plan->graph.now(place) > 0) {
      take_gradient(place);
    } else if (kept_local[plan->parameter(place)] == 0) {
      mark_without_gradient(place);
    } else {
      fail(ErrorCode::kInvalidArgument,
           str("static_graph: ", name_at(place),
               " got a gradient inside no_sync and none in this backward; leave static_graph out "
               "if backwards differ"));
    }
  }
  finish();
  plan->graph.learn();
}

Names DataParallel::Impl::names_of_plan() const {
  Names names;
  for (std::size_t place = 0; place < plan->count(); ++place) names.push_back(name_at(place));
  return names;
}

void DataParallel::Impl::fail_incomplete() {
  Names missing;
  if (options.static_graph) {
    missing = plan->graph.missing(names_of_plan());
  } else {
    for (const std::size_t place : plan->reducer.missing()) missing.push_back(name_at(place));
  }
  const std::string listed = ddp::listed(missing, kListBytes);
  if (options.static_graph) {
    fail(ErrorCode::kInvalidArgument,
         str("static_graph: this backward gave fewer gradients than the first one to ", listed,
             "; leave static_graph out if steps differ"));
  }
  fail(ErrorCode::kInvalidArgument,
       str("backward ended without a gradient for ", missing.size(), " of ", plan->count(),
           " parameters: ", listed,
           ". If the model uses them in some steps only, set find_unused_parameters; if in none, "
           "requires_grad_(false)"));
}

/// What makes a mean of the ranks' gradients.
ReduceOp DataParallel::Impl::mean() const {
  const bool is_of_all = !attendance || join_options.divide_by_world || !attendance->has_shadows();
  if (is_of_all) return ReduceOp::avg;
  return ReduceOp::premul_sum(1.0 / attendance->count());
}

/// The thread that waits for a bucket reduces it where nothing is gained by overlap; that is so for
/// the last one wherever no rank computes on a device. It is so for all where another wrapper has a
/// parameter, too: in a backward through both the gradient may lie in our bucket, and the other one
/// copies it from there before either waits.
bool DataParallel::Impl::is_left_to_wait(std::size_t bucket) const {
  if (shares_parameters) return true;
  if (hook.function || overlap == ddp::Overlap::whole) return false;
  return overlap == ddp::Overlap::none || bucket + 1 == plan->buckets.size();
}

void DataParallel::Impl::launch(std::size_t bucket) {
  if (!is_left_to_wait(bucket)) start(bucket);
}

void DataParallel::Impl::start(std::size_t bucket) {
  if (bucket == 0) first_launch = Clock::now();
  ddp::Bucket& due = plan->buckets[bucket];
  ProcessGroup ranks = group();
  due.packed.reset();
  const auto* const packs = hook.function.target<ddp::Compress>();
  if (packs != nullptr && due.is_on_device() && ddp::Compress::takes(due.dtype)) {
    due.work = start_packed(due, packs->dtype(), ranks);
  } else {
    due.work = ddp::start_mean(
        hook, {due.take(), mean(), bucket, plan->buckets.size(), at(due.purpose)}, ranks);
  }
}

/// What a hook of Tutti's does to memory of the CPU, on the device: the same bits.
Work DataParallel::Impl::start_packed(ddp::Bucket& due, DType dtype, ProcessGroup& ranks) {
  const at::NoGradGuard no_grad;
  due.turns.take();
  const at::Tensor full = due.dtype == DType::f64 ? due.flat.to(at::kFloat) : due.flat;
  due.packed = full.to(ddp::scalar_of_dtype(dtype));
  return ranks.all_reduce(due.packed, {.op = mean()}, async, at(due.purpose));
}

void DataParallel::Impl::unpack(ddp::Bucket& due) {
  const at::NoGradGuard no_grad;
  due.flat.copy_(due.packed);
  due.packed.record_stream(*ddp::current_stream(due.packed));  // it was made on a hook's
  due.packed.reset();
}

void DataParallel::Impl::wait(std::size_t bucket) {
  ddp::Bucket& due = plan->buckets[bucket];
  const bool is_left = is_left_to_wait(bucket);
  if (is_left && hook.function) start(bucket);
  if (is_left && !hook.function) {
    if (bucket == 0) first_launch = Clock::now();
    group().all_reduce(due.take(), {.op = mean()}, at(due.purpose));
    return;
  }
  // On a device this puts the mean before what the stream of the launch is given next; the turn,
  // before what the current one is: that on which backward was called.
  std::exchange(due.work, Work()).wait();
  due.turns.take();
  if (due.packed.defined()) unpack(due);
}

/// Begins nothing: what was left to the wait is not under way on this rank.
void DataParallel::Impl::drop(std::size_t bucket) noexcept try {
  Work work = std::exchange(plan->buckets[bucket].work, Work());
  if (!work.is_empty()) work.wait();
} catch (...) {  // the step is lost anyway; the rank that caused it has the first failure
}

void DataParallel::Impl::finish() {
  const auto computed = Clock::now();
  plan->reducer.finish();
  exchange_used();
  const auto done = Clock::now();
  for (std::size_t place = 0; place < plan->count(); ++place) {
    if (role == Role::stands_still) {
      plan->tensor(place).mutable_grad().reset();
    } else {
      hand_out(place);
    }
  }
  std::fill(kept_local.begin(), kept_local.end(), 0);
  unreached.clear();
  forwards = 0;
  if (plan->count() != 0) count_step(computed, done);
}

void DataParallel::Impl::count_step(Clock::time_point computed, Clock::time_point done) {
  ++(role == Role::trains ? stats.steps : stats.shadowed);
  stats.communicate += done - first_launch;
  stats.exposed += done - computed;
  stats.total += Clock::now() - step_began;
  ProcessGroup ranks = group();
  arrivals.note(done - computed, ranks, at(for_arrivals));
}

/// Tells `used` of all ranks, where they may have gradients for different parameters.
void DataParallel::Impl::exchange_used() {
  const bool all_in = !attendance || !attendance->has_shadows();
  const bool is_graph = options.static_graph && exchanged == trained->set && all_in;
  if (is_graph && !plan->graph_used.empty()) {
    check_graph_used();
    used = plan->graph_used;
  } else if (may_lack_gradients()) {
    group().all_reduce(Buffer(used), ReduceOp::max, at(for_used));
    if (is_graph) plan->graph_used = used;
  }
}

/// What has a gradient on this rank had one on some rank in the first step.
void DataParallel::Impl::check_graph_used() {
  if (ddp::contains(plan->graph_used, used)) return;
  Names names;
  for (std::size_t place = 0; place < plan->count(); ++place) {
    if (used[place] > plan->graph_used[place]) names.push_back(name_at(place));
  }
  fail(ErrorCode::kInvalidArgument,
       str("static_graph: there is a gradient now, and was none on any rank in the first step, of ",
           ddp::listed(names, kListBytes), "; leave static_graph out if steps differ"));
}

/// A parameter for which no rank has a gradient gets none.
void DataParallel::Impl::hand_out(std::size_t place) {
  if (used[place] == 0 || plan->holds_view(place)) return;
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = plan->tensor(place).mutable_grad();
  if (options.gradients_as_views) {
    gradient = ddp::without_history(plan->view(place));
  } else if (gradient.defined()) {
    gradient.copy_(plan->view(place));
  } else {
    gradient = ddp::without_history(plan->view(place).clone());
  }
}

void DataParallel::Impl::start_over() noexcept {
  plan->reducer.reset();
  watch->forget_task();
  unreached.clear();
  forwards = 0;
  must_agree = true;
}

}  // namespace tutti::detail
