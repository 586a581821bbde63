// Who a DistributedDataParallel is, what it trains, and its public face.
#include "tutti/torch/data_parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "ddp/torch/data_parallel_impl.h"
#include "ddp/torch/tensor.h"

namespace tutti::detail {
namespace {

constexpr const char* kOp = "DistributedDataParallel";  // in the context of errors
constexpr std::size_t kPlans = 4;                       // sets of parameters whose buckets are kept

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
    ddp::dtype_of_tensor(tensor, item.key());  // a sparse one has no strides to describe
    const auto [place, is_new] =
        tensors.index.emplace(tensor.unsafeGetTensorImpl(), tensors.parameters.size());
    tensors.description.push_back(
        is_new ? str("parameter ", item.key(), " ", ddp::describe(tensor),
                     tensor.requires_grad() ? "" : " without gradient")
               : str("parameter ", item.key(), " shared with ", tensors.names[place->second]));
    if (!is_new) continue;
    tensors.parameters.push_back(tensor);
    tensors.names.push_back(item.key());
  }
  const auto buffers = module.named_buffers();
  for (const auto& item : buffers) {
    if (!item.value().defined()) continue;
    ddp::dtype_of_tensor(item.value(), item.key());
    tensors.description.push_back(str("buffer ", item.key(), " ", ddp::describe(item.value())));
    tensors.buffers.push_back(item.value());
  }
  return tensors;
}

}  // namespace

// ---- who it is ---------------------------------------------------------------------------------

DataParallel::Impl::Impl(const ProcessGroup& group, const DataParallelOptions& the_options,
                         Where where)
    : borrowed(group, where, "DistributedDataParallel"),
      rank(group.rank()),
      options(the_options),
      made_at(where),
      for_buffers(purpose("the buffers")),
      for_used(purpose("the unused parameters")),
      for_arrivals(purpose("who comes last")),
      for_hook(purpose("the communication hook")),
      called_at(where),
      arrivals(group.world_size()) {}

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
  context.op = kOp;
  context.rank = rank;
  context.call_site = name_of(called_at);
  throw Error(code, str(name(), ", rank ", rank, ": ", what), std::move(context));
}

void DataParallel::Impl::refuse(const std::string& change) const {
  fail(ErrorCode::kInvalidArgument,
       str(change, " after the model was wrapped; change it before, or wrap it again"));
}

void DataParallel::Impl::must_be_between_steps(const std::string& call) {
  if (ddp::BackwardWatch::in_backward()) {
    fail(ErrorCode::kInvalidArgument, call + " inside a backward; call it between steps");
  }
  end_broken_step();
}

/// A step that an exception has ended.
void DataParallel::Impl::end_broken_step() {
  if (!watch) {
    fail(ErrorCode::kInvalidArgument,
         "its to() has failed, so it follows no model; wrap the model again");
  }
  std::unique_lock<std::mutex> quiet;
  if (!ddp::BackwardWatch::in_backward()) quiet = watch->hold();
  if (plan->reducer.in_step() || watch->task_open()) start_over();
}

void DataParallel::Impl::set_hook(ddp::NamedHook now, Where where) {
  called_at = where;
  must_be_between_steps("set_communication_hook");
  ProcessGroup ranks = group();
  ddp::check_same_hook(ranks, name(), now, at(for_hook));
  hook = std::move(now);
}

// ---- what is trained ---------------------------------------------------------------------------

/// If it fails nothing is followed any more: the old plans are for tensors of another type.
void DataParallel::Impl::attach(std::shared_ptr<torch::nn::Module> wrapped) {
  watch.reset();
  plan = nullptr;
  plans.clear();
  module = std::move(wrapped);
  try {
    tensors = tensors_of(*module);
  } catch (const Error& error) {  // says which tensor, not whose
    fail(error.code(), error.what());
  }
  latest.reset();
  take_devices();
  refuse_contest(ddp::BackwardWatch::contest_of(tensors.parameters, self()));
  look_at_model();
  check_model();
  const Purpose for_overlap = purpose("what overlap is worth");
  ProcessGroup ranks = group();
  const bool on_device = std::ranges::any_of(tensors.parameters, &at::Tensor::is_cuda);
  overlap = ddp::choose_overlap(ranks, at::get_num_threads(), on_device, at(for_overlap));
  stats.overlaps = overlap != ddp::Overlap::none;
  use_plan(latest->set);
  trained = latest;
  exchanged = latest->set;
  kept_local.assign(exchanged.size(), 0);
  watch.emplace(tensors.parameters, self(),
                ddp::BackwardEvents{[this] { start_over(); },
                                    [this](const ddp::TrainedPtr& from) { backward_began(from); },
                                    [this](const ddp::TrainedPtr& from) { backward_reached(from); },
                                    [this](std::size_t parameter) { gradient_complete(parameter); },
                                    [this](std::size_t parameter) { gradient_kept(parameter); },
                                    [this](bool nested) { backward_ended(nested); }});
  watch->enable(synchronise);
}

/// Ranks that are threads and share a device could not train: see OwnDevices.
void DataParallel::Impl::take_devices() {
  const ProcessGroup ranks = group();
  const int own = ranks.world_ranks()[static_cast<std::size_t>(rank)];
  const auto taken = devices.take(tensors.parameters, own);
  if (!taken) return;
  fail(ErrorCode::kUnsupported,
       str("ranks ", taken->rank, " and ", own, " are threads of one process, and both train on ",
           name_of(taken->device),
           ": libtorch runs the backwards of a process on one device in one thread, where they "
           "would wait for each other. Make them processes, or give each a device of its own"));
}

ddp::Follower DataParallel::Impl::self() const {
  const ProcessGroup ranks = group();
  return {name(), {ranks.world_ranks().begin(), ranks.world_ranks().end()}};
}

void DataParallel::Impl::refuse_contest(const std::optional<ddp::Contest>& contest) const {
  if (!contest) return;
  fail(ErrorCode::kInvalidArgument,
       str(tensors.names[contest->parameter], " is trained by ", contest->other.name,
           " as well, with other ranks: a gradient can be the mean over one group only. Destroy "
           "that wrapper first, or give both the same group"));
}

/// Compares the model over the ranks and, with init_sync, gives them rank 0's values.
void DataParallel::Impl::check_model() {
  ddp::ModelDescription description = tensors.description;
  description.push_back(str("options bucket_bytes ", options.bucket_bytes,
                            " find_unused_parameters ", options.find_unused_parameters,
                            " broadcast_buffers ", options.broadcast_buffers, " init_sync ",
                            options.init_sync, " static_graph ", options.static_graph));
  ProcessGroup ranks = group();
  const Purpose for_check = purpose("the comparison of models");
  ddp::check_same(
      ranks, {kOp, name(), "models", "Build the same model with the same options on every rank."},
      description, at(for_check));
  if (!options.init_sync) return;
  const Purpose for_parameters = purpose("the parameters");
  ddp::broadcast_tensors(ranks, tensors.parameters, 0, at(for_parameters));
  ddp::broadcast_tensors(ranks, tensors.buffers, 0, at(for_buffers));
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
  const std::uint64_t key = digest_of(*now, wanted);
  agree_on(now, std::move(wanted), key);
}

std::uint64_t DataParallel::Impl::digest_of(const ddp::Trained& now,
                                            const ddp::ParameterSet& wanted) {
  return ddp::digest(wanted, ddp::digest(now.set, hash_text(now.refusal)));
}

void DataParallel::Impl::agree_on(const ddp::TrainedPtr& now, ddp::ParameterSet wanted,
                                  std::uint64_t key) {
  std::string change = now->refusal;
  if (change.empty()) change = ddp::change_of(tensors.names, trained->set, now->set);
  if (change.empty()) change = ddp::change_of(tensors.names, exchanged, wanted);
  Purpose for_change = purpose("the parameters", key);
  for_change.text += ", where " + change;
  group().barrier({}, at(for_change));
  if (!now->refusal.empty()) refuse(now->refusal);
  use_plan(wanted);
  trained = now;
  exchanged = std::move(wanted);
}

/// If this rank alone gave a step up, the others wait in that step's all_reduce, which might be
/// mistaken for one of this step. A barrier cannot be.
void DataParallel::Impl::meet_after_giving_up(bool others_gave_up) {
  if (!std::exchange(must_agree, false) && !others_gave_up) return;
  const Purpose for_agreement = purpose("a step that was given up");
  group().barrier({}, at(for_agreement));
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
                            [this](std::size_t bucket) { wait(bucket); },
                            [this](std::size_t bucket) { drop(bucket); }});
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

/// Once, after a plan's first step: gradients travel in the order in which the root computed them.
/// Where parameters may be unused that changes: the first guess is kept.
void DataParallel::Impl::reorder_buckets() {
  if (plan->reordered || looks_for_unused() || plan->count() == 0) return;
  if (plan->reducer.finished_steps() == 0) return;
  const auto& observed = plan->reducer.observed_order();
  std::vector<std::uint64_t> order(observed.begin(), observed.end());
  const Purpose for_order = purpose("the order of gradients");
  group().broadcast(Buffer(order), {.root = root()}, at(for_order));
  make_buckets(*plan, std::vector<std::size_t>(order.begin(), order.end()));
  plan->reordered = true;
  stats.buckets = plan->buckets.size();
  stats.bytes = plan->byte_count();
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

/// Of what may have been moved from.
DataParallel::Impl& DataParallel::impl() const {
  if (impl_) return *impl_;
  throw Error(ErrorCode::kInvalidArgument,
              "this DistributedDataParallel has been moved from; use the one that it was moved to",
              {.op = kOp});
}

void DataParallel::before_forward(Where where) { impl().forward_begins(where); }
void DataParallel::after_forward(const std::vector<torch::Tensor>& outputs) {
  impl_->forward_ended(outputs);
}
DataParallelStats DataParallel::stats() const {
  DataParallelStats stats = impl().stats;
  stats.last_to_arrive = impl().arrivals.last();
  return stats;
}

void DataParallel::set_communication_hook(std::string name, CommunicationHook hook, Where where) {
  impl().set_hook({std::move(name), std::move(hook)}, where);
}

void DataParallel::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  impl().attach(impl().module);
}
void DataParallel::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  impl().attach(impl().module);
}
void DataParallel::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
  impl().attach(impl().module);
}

std::shared_ptr<torch::nn::Module> DataParallel::clone(const std::optional<torch::Device>&) const {
  impl().fail(ErrorCode::kUnsupported,
              "a wrapper is not cloned; model.module()->clone() copies its module");
}

DataParallel::NoSync::NoSync(DataParallel& owner)
    : impl_(&owner.impl()), before_(impl_->synchronise) {
  impl_->set_synchronise(false);
}

DataParallel::NoSync::~NoSync() { impl_->set_synchronise(before_); }

}  // namespace tutti::detail
