// The reducer's bookkeeping (ddp/reducer.h) tied to libtorch's backward and to a group.
//
// A forward *trains* the parameters that require a gradient when it is called; the same tensor
// under two names counts once. The backward that follows *exchanges* these, less what was frozen
// in between, and whatever else has gradients that no_sync kept local. When it begins, the ranks
// *agree*: if it is not what the backward before exchanged, they pass a barrier whose purpose names
// the change. Ranks that have made another change, or none, disagree with it, and everybody is told
// who changed what.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "ddp/model_check.h"
#include "ddp/parameter_set.h"
#include "ddp/torch/autograd.h"
#include "ddp/torch/plan.h"
#include "ddp/torch/registered.h"
#include "ddp/torch/tensor.h"
#include "tutti/torch.h"

namespace tutti::detail {
namespace {

using c10::str;
using Clock = std::chrono::steady_clock;
using Names = std::vector<std::string>;

constexpr std::size_t kListBytes = 400;  // of names in an error
constexpr std::size_t kPlans = 4;        // sets of parameters whose buckets are kept

/// What a model has when it is wrapped.
struct Tensors {
  std::vector<at::Tensor> parameters;  // each once
  Names names;                         // of these
  std::unordered_map<const void*, std::size_t> index;
  std::vector<ddp::NamedParameter> named;
  std::vector<at::Tensor> buffers;
  ddp::ModelDescription description;
};

std::vector<ddp::NamedParameter> named(const torch::nn::Module& module) {
  std::vector<ddp::NamedParameter> all;
  const auto parameters = module.named_parameters();
  for (const auto& item : parameters) {
    all.push_back({item.key(), item.value().unsafeGetTensorImpl()});
  }
  return all;
}

Tensors tensors_of(const torch::nn::Module& module) {
  Tensors tensors;
  tensors.named = named(module);
  const auto parameters = module.named_parameters();
  for (const auto& item : parameters) {
    const at::Tensor& tensor = item.value();
    const auto [place, is_new] =
        tensors.index.emplace(tensor.unsafeGetTensorImpl(), tensors.parameters.size());
    tensors.description.push_back(
        is_new ? str("parameter ", item.key(), " ", ddp::describe(tensor),
                     tensor.requires_grad() ? "" : " without gradient")
               : str("parameter ", item.key(), " shared with ", tensors.names[place->second]));
    if (!is_new) continue;
    ddp::dtype_of_tensor(tensor, item.key());
    tensors.parameters.push_back(tensor);
    tensors.names.push_back(item.key());
  }
  const auto buffers = module.named_buffers();
  for (const auto& item : buffers) {
    if (!item.value().defined()) continue;
    tensors.description.push_back(str("buffer ", item.key(), " ", ddp::describe(item.value())));
    ddp::dtype_of_tensor(item.value(), item.key());
    tensors.buffers.push_back(item.value());
  }
  return tensors;
}

}  // namespace

struct DataParallel::Impl {
  Impl(const ProcessGroup& group, const DataParallelOptions& the_options, Where where);

  // ---- who it is ----
  ProcessGroup group() const;
  std::string name() const;
  Purpose purpose(const std::string& what, std::uint64_t key = 0) const;
  /// The line of the latest forward, with what an operation is for.
  Where at(const Purpose& purpose) const { return called_at.with(purpose); }
  [[noreturn]] void fail(ErrorCode code, const std::string& what) const;
  [[noreturn]] void refuse(const std::string& change) const;

  // ---- what is trained ----
  void attach(std::shared_ptr<torch::nn::Module> wrapped);
  void check_model();
  void look_at_model();
  ddp::TrainedPtr without_frozen(const ddp::TrainedPtr& from) const;
  void agree(const ddp::TrainedPtr& now);
  void use_plan(const ddp::ParameterSet& set);
  void make_buckets(ddp::Plan& of, std::span<const std::size_t> ready_order);
  void reorder_buckets();

  // ---- one step ----
  void set_synchronise(bool on);
  void forward_begins(Where where);
  void forward_ended(const std::vector<at::Tensor>& outputs);
  void backward_began(const ddp::TrainedPtr& from);
  void backward_reached(const ddp::TrainedPtr& from);
  void gradient_complete(std::size_t parameter);
  void gradient_kept(std::size_t parameter);
  void take_gradient(std::size_t place);
  void mark_without_gradient(std::size_t place);
  void backward_ended(bool nested);
  void launch(std::size_t bucket);
  void wait(std::size_t bucket);
  void finish();
  void hand_out(std::size_t place);
  void start_over() noexcept;

  const std::string& name_at(std::size_t place) const {
    return tensors.names[plan->parameter(place)];
  }

  const BorrowedGroup borrowed;
  const int rank;
  const DataParallelOptions options;
  const Where made_at;
  const Purpose for_buffers, for_used;
  Where called_at;
  std::shared_ptr<torch::nn::Module> module;
  Tensors tensors;
  std::vector<ddp::Registered> seen;        // in the latest forward
  ddp::TrainedPtr latest;                   // by it
  std::optional<ddp::BackwardWatch> watch;  // none if attach failed

  ddp::TrainedPtr began_from;  // the forward whose outputs the latest backward reached first

  // What the ranks have agreed upon, for the latest backward.
  ddp::TrainedPtr trained;
  ddp::ParameterSet exchanged;
  std::vector<std::unique_ptr<ddp::Plan>> plans;  // the latest first
  ddp::Plan* plan = nullptr;                      // the latest

  bool synchronise = true;
  ddp::ParameterSet kept_local;        // with gradients that were not exchanged yet
  bool must_agree = false;             // a step was given up: did all ranks give it up?
  int forwards = 0;                    // since the last step
  std::vector<std::size_t> unreached;  // by the only forward since then, where asked for
  std::vector<std::uint8_t> used;      // by place, in this step: 0 if there is no gradient

  DataParallelStats stats;
  Clock::time_point step_began = {};
  Clock::time_point first_launch = {};
};

// ---- who it is ---------------------------------------------------------------------------------

DataParallel::Impl::Impl(const ProcessGroup& group, const DataParallelOptions& the_options,
                         Where where)
    : borrowed(group, where, "DistributedDataParallel"),
      rank(group.rank()),
      options(the_options),
      made_at(where),
      for_buffers(purpose("the buffers")),
      for_used(purpose("the unused parameters")),
      called_at(where) {}

ProcessGroup DataParallel::Impl::group() const {
  ProcessGroup group = borrowed.lock();
  if (!group.is_member()) {
    fail(ErrorCode::kClosed,
         "its group has been destroyed; keep the ProcessGroup for as long as the wrapper is used");
  }
  return group;
}

std::string DataParallel::Impl::name() const {
  const std::string line = name_of(made_at);
  const std::string name = str("DistributedDataParallel ", borrowed.number());
  return line.empty() ? name : str(name, " (", line, ")");
}

Purpose DataParallel::Impl::purpose(const std::string& what, std::uint64_t key) const {
  const auto number = static_cast<std::uint64_t>(borrowed.number());
  return {hash_combine(hash_combine(hash_text(what), number), key), str(what, " of ", name())};
}

void DataParallel::Impl::fail(ErrorCode code, const std::string& what) const {
  ErrorContext context;
  context.rank = rank;
  context.call_site = name_of(called_at);
  throw Error(code, str(name(), ", rank ", rank, ": ", what), std::move(context));
}

void DataParallel::Impl::refuse(const std::string& change) const {
  fail(ErrorCode::kInvalidArgument,
       str(change, " after the model was wrapped; change it before, or wrap it again"));
}

// ---- what is trained ---------------------------------------------------------------------------

/// If it fails nothing is followed any more: the old plans are for tensors of another type.
void DataParallel::Impl::attach(std::shared_ptr<torch::nn::Module> wrapped) {
  watch.reset();
  plan = nullptr;
  plans.clear();
  module = std::move(wrapped);
  tensors = tensors_of(*module);
  latest.reset();
  look_at_model();
  check_model();
  use_plan(latest->set);
  trained = latest;
  exchanged = latest->set;
  kept_local.assign(exchanged.size(), 0);
  watch.emplace(tensors.parameters,
                ddp::BackwardEvents{[this](const ddp::TrainedPtr& from) { backward_began(from); },
                                    [this](const ddp::TrainedPtr& from) { backward_reached(from); },
                                    [this](std::size_t parameter) { gradient_complete(parameter); },
                                    [this](std::size_t parameter) { gradient_kept(parameter); },
                                    [this](bool nested) { backward_ended(nested); }});
  watch->enable(synchronise);
}

/// Compares the model over the ranks and gives them rank 0's values.
void DataParallel::Impl::check_model() {
  ddp::ModelDescription description = tensors.description;
  description.push_back(str("options bucket_bytes ", options.bucket_bytes,
                            " find_unused_parameters ", options.find_unused_parameters,
                            " broadcast_buffers ", options.broadcast_buffers));
  ProcessGroup ranks = group();
  const Purpose for_check = purpose("the comparison of models");
  ddp::check_same_model(ranks, name(), description, at(for_check));
  const Purpose for_parameters = purpose("the parameters");
  ddp::broadcast_tensors(ranks, tensors.parameters, at(for_parameters));
  ddp::broadcast_tensors(ranks, tensors.buffers, at(for_buffers));
}

/// What a forward trains from here on. Allocates nothing while that does not change.
void DataParallel::Impl::look_at_model() {
  if (latest && ddp::is_as(*module, seen)) return;
  seen = ddp::registered(*module);
  ddp::Trained now;
  now.set.assign(tensors.parameters.size(), 0);
  now.refusal = ddp::change_of(tensors.named, named(*module));
  for (const ddp::Registered& parameter : seen) {
    const auto known = tensors.index.find(parameter.tensor.unsafeGetTensorImpl());
    if (known == tensors.index.end()) continue;  // undefined, or the refusal names it
    if (parameter.requires_grad) now.set[known->second] = 1;
  }
  latest = std::make_shared<const ddp::Trained>(std::move(now));
}

/// What a backward trains that begins now. Allocates nothing if nothing was frozen since forward.
ddp::TrainedPtr DataParallel::Impl::without_frozen(const ddp::TrainedPtr& from) const {
  std::shared_ptr<ddp::Trained> rest;
  for (std::size_t i = 0; i < from->set.size(); ++i) {
    if (from->set[i] == 0 || tensors.parameters[i].requires_grad()) continue;
    if (!rest) rest = std::make_shared<ddp::Trained>(*from);
    rest->set[i] = 0;
  }
  return rest ? ddp::TrainedPtr(std::move(rest)) : from;
}

void DataParallel::Impl::agree(const ddp::TrainedPtr& now) {
  const bool same = now->refusal.empty() && now->set == trained->set;
  if (same && exchanged == now->set && ddp::contains(now->set, kept_local)) return;
  ddp::ParameterSet wanted = now->set;
  ddp::add(wanted, kept_local);
  if (same && wanted == exchanged) return;

  std::string change = now->refusal;
  if (change.empty()) change = ddp::change_of(tensors.names, trained->set, now->set);
  if (change.empty()) change = ddp::change_of(tensors.names, exchanged, wanted);
  const std::uint64_t key = ddp::digest(wanted, ddp::digest(now->set, hash_text(now->refusal)));
  Purpose for_change = purpose("the parameters", key);
  for_change.text += ", where " + change;
  group().barrier({}, at(for_change));
  if (!now->refusal.empty()) refuse(now->refusal);
  use_plan(wanted);
  trained = now;
  exchanged = std::move(wanted);
}

/// Changes to the plan that exchanges this, made if no recent backward has had it.
void DataParallel::Impl::use_plan(const ddp::ParameterSet& set) {
  auto found = std::find_if(plans.begin(), plans.end(),
                            [&](const auto& known) { return known->set() == set; });
  if (found == plans.end()) {
    if (plans.size() == kPlans) plans.pop_back();
    auto made = std::make_unique<ddp::Plan>(
        set, tensors.parameters,
        ddp::ReducerActions{[this](std::size_t bucket) { launch(bucket); },
                            [this](std::size_t bucket) { wait(bucket); }});
    make_buckets(*made, ddp::reverse_order(made->count()));
    plans.push_back(std::move(made));
    found = plans.end() - 1;
  }
  std::rotate(plans.begin(), found, found + 1);
  plan = plans.front().get();
  stats.buckets = plan->buckets.size();
  stats.bytes = plan->byte_count();
}

void DataParallel::Impl::make_buckets(ddp::Plan& of, std::span<const std::size_t> ready_order) {
  const ddp::BucketLimits limits{std::min(std::size_t{1} << 20, options.bucket_bytes),
                                 options.bucket_bytes};
  ProcessGroup ranks = group();
  of.make_buckets(ready_order, limits, ranks, [&](std::size_t bucket, std::size_t count) {
    return purpose(str("bucket ", bucket + 1, " of ", count));
  });
}

/// Once, after a plan's first step: gradients travel in the order in which rank 0 computed them.
/// Where parameters may be unused that changes: the first guess is kept.
void DataParallel::Impl::reorder_buckets() {
  if (plan->reordered || options.find_unused_parameters || plan->count() == 0) return;
  if (plan->reducer.finished_steps() == 0) return;
  const auto& observed = plan->reducer.observed_order();
  std::vector<std::uint64_t> order(observed.begin(), observed.end());
  const Purpose for_order = purpose("the order of gradients");
  group().broadcast(Buffer(order), {}, at(for_order));
  make_buckets(*plan, std::vector<std::size_t>(order.begin(), order.end()));
  plan->reordered = true;
  stats.buckets = plan->buckets.size();
  stats.bytes = plan->byte_count();
}

// ---- one step ----------------------------------------------------------------------------------

void DataParallel::Impl::set_synchronise(bool on) {
  synchronise = on;
  if (watch) watch->enable(on);
}

void DataParallel::Impl::forward_begins(Where where) {
  called_at = where.line != 0 ? where : made_at;
  if (!watch) {
    fail(ErrorCode::kInvalidArgument,
         "its to() has failed, so it follows no model; wrap the model again");
  }
  if (plan->reducer.in_step() || watch->task_open()) start_over();  // ended by an exception
  if (at::GradMode::is_enabled()) look_at_model();
  watch->follow_parameters();
  step_began = Clock::now();
  if (!synchronise || !options.broadcast_buffers || !module->is_training()) return;
  if (tensors.buffers.empty()) return;
  ProcessGroup ranks = group();
  ddp::broadcast_tensors(ranks, tensors.buffers, at(for_buffers));
  stats.exposed += Clock::now() - step_began;
}

void DataParallel::Impl::forward_ended(const std::vector<at::Tensor>& outputs) {
  if (!at::GradMode::is_enabled()) return;
  watch->watch_outputs(outputs, latest);
  if (!options.find_unused_parameters) return;
  unreached.clear();
  if (++forwards == 1) unreached = watch->unreached_from(outputs);
}

/// What will get no gradient is marked at once, so that its buckets need not wait for the end.
/// After several forwards only the end tells what they have not reached.
void DataParallel::Impl::backward_began(const ddp::TrainedPtr& from) try {
  if (plan->reducer.in_step()) {  // it had been taken for a nested one
    if (from) backward_reached(from);
    return;
  }
  if (!from) look_at_model();
  // If this rank alone gave a step up, the others wait in that step's all_reduce, which might be
  // mistaken for one of this step. A barrier cannot be.
  if (std::exchange(must_agree, false)) {
    const Purpose for_agreement = purpose("a step that was given up");
    group().barrier({}, at(for_agreement));
  }
  began_from = from ? from : latest;
  agree(without_frozen(began_from));
  reorder_buckets();
  used.assign(plan->count(), 1);
  for (std::size_t place = 0; place < plan->count(); ++place) {
    if (trained->set[plan->parameter(place)] == 0) mark_without_gradient(place);
  }
  if (!options.find_unused_parameters) return;
  for (const std::size_t parameter : unreached) {
    const std::size_t place = plan->place_of(parameter);
    if (place != ddp::Plan::kNoPlace) mark_without_gradient(place);
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
  take_gradient(place);
} catch (...) {
  start_over();
  throw;
}

void DataParallel::Impl::take_gradient(std::size_t place) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = plan->tensor(place).mutable_grad();
  const at::Tensor& view = plan->view(place);
  const std::string& name = name_at(place);
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
  } else if (gradient.sizes() != view.sizes() || gradient.scalar_type() != view.scalar_type()) {
    fail(ErrorCode::kInvalidArgument,
         str("the gradient of ", name, " is ", ddp::describe(gradient), ", its parameter was ",
             ddp::describe(view), " when the model was wrapped; wrap after changing the model"));
  } else if (!plan->holds_view(place)) {
    view.copy_(gradient);
  }
  if (options.gradients_as_views && !plan->holds_view(place)) gradient = view;
  if (plan->reducer.mark_ready(place) == ddp::Reducer::Mark::repeated) {
    fail(ErrorCode::kInvalidArgument,
         str(name,
             " got a second gradient in one backward. It is used both inside and outside of a "
             "checkpointed block, or in two of them, or find_unused_parameters took it for unused: "
             "use it in one place"));
  }
}

void DataParallel::Impl::backward_ended(bool nested) {
  ddp::Reducer& reducer = plan->reducer;
  if (reducer.all_ready()) {
    finish();
    return;
  }
  if (nested) return;  // judged at the end of the outermost backward
  if (options.find_unused_parameters) {
    for (const std::size_t place : reducer.missing()) mark_without_gradient(place);
    finish();
    return;
  }
  Names missing;
  for (const std::size_t place : reducer.missing()) missing.push_back(name_at(place));
  start_over();
  fail(ErrorCode::kInvalidArgument,
       str("backward ended without a gradient for ", missing.size(), " of ", plan->count(),
           " parameters: ", ddp::listed(missing, kListBytes),
           ". If the model uses them in some steps only, set find_unused_parameters; if in none, "
           "requires_grad_(false)"));
}

void DataParallel::Impl::launch(std::size_t bucket) {
  if (bucket == 0) first_launch = Clock::now();
  // The last bucket has nothing left to overlap with: wait() reduces it in this thread.
  if (bucket + 1 == plan->buckets.size()) return;
  ddp::Bucket& due = plan->buckets[bucket];
  due.work = group().all_reduce(due.buffer, {.op = ReduceOp::avg}, async, at(due.purpose));
}

void DataParallel::Impl::wait(std::size_t bucket) {
  ddp::Bucket& due = plan->buckets[bucket];
  if (bucket + 1 == plan->buckets.size()) {
    group().all_reduce(due.buffer, {.op = ReduceOp::avg}, at(due.purpose));
  } else {
    std::exchange(due.work, Work()).wait();
  }
}

void DataParallel::Impl::finish() {
  const auto computed = Clock::now();
  plan->reducer.finish();
  // Whether all ranks have a gradient for everything is known only if forward trained it all.
  if (options.find_unused_parameters || exchanged != trained->set) {
    group().all_reduce(Buffer(used), ReduceOp::max, at(for_used));
  }
  const auto done = Clock::now();
  for (std::size_t place = 0; place < plan->count(); ++place) hand_out(place);
  std::fill(kept_local.begin(), kept_local.end(), 0);
  unreached.clear();
  forwards = 0;
  if (plan->count() == 0) return;
  ++stats.steps;
  stats.communicate += done - first_launch;
  stats.exposed += done - computed;
  stats.total += Clock::now() - step_began;
}

/// A parameter for which no rank has a gradient gets none.
void DataParallel::Impl::hand_out(std::size_t place) {
  if (used[place] == 0 || plan->holds_view(place)) return;
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = plan->tensor(place).mutable_grad();
  if (options.gradients_as_views) {
    gradient = plan->view(place);
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

// ---- the public face ---------------------------------------------------------------------------

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, ProcessGroup& group,
                           const DataParallelOptions& options, Where where)
    : torch::nn::Module("DistributedDataParallel"),
      impl_(std::make_unique<Impl>(group, options, where)) {
  if (!module) impl_->fail(ErrorCode::kInvalidArgument, "the module is empty");
  impl_->attach(register_module("module", std::move(module)));
  if (ddp::count_of(impl_->latest->set) == 0) {
    impl_->fail(ErrorCode::kInvalidArgument, "the model has no parameter that requires a gradient");
  }
}

DataParallel::DataParallel(DataParallel&&) noexcept = default;
DataParallel::~DataParallel() = default;

void DataParallel::before_forward(Where where) { impl_->forward_begins(where); }
void DataParallel::after_forward(const std::vector<torch::Tensor>& outputs) {
  impl_->forward_ended(outputs);
}
DataParallelStats DataParallel::stats() const { return impl_->stats; }

void DataParallel::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  impl_->attach(impl_->module);
}
void DataParallel::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  impl_->attach(impl_->module);
}
void DataParallel::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
  impl_->attach(impl_->module);
}

DataParallel::NoSync::NoSync(DataParallel& owner)
    : owner_(owner), before_(owner.impl_->synchronise) {
  owner_.impl_->set_synchronise(false);
}

DataParallel::NoSync::~NoSync() { owner_.impl_->set_synchronise(before_); }

}  // namespace tutti::detail
