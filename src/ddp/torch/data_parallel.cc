// The reducer's bookkeeping (ddp/reducer.h) tied to libtorch's backward and to a group.
//
// A *trained* parameter requires a gradient; the same tensor under two names counts once. Every
// bucket is one flat tensor in the group's memory, every trained parameter has a *view* into it.
// Once its gradient is complete it lies there, and the parameter's grad is that view.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ddp/buckets.h"
#include "ddp/model_check.h"
#include "ddp/reducer.h"
#include "ddp/torch/autograd.h"
#include "ddp/torch/tensor.h"
#include "tutti/torch.h"

namespace tutti::detail {
namespace {

using c10::str;
using Clock = std::chrono::steady_clock;
using Names = std::vector<std::string>;

struct Bucket {
  at::Tensor flat;
  Buffer buffer;
  Work work;
};

struct Tensors {
  std::vector<at::Tensor> trained;
  Names names;                         // of the trained ones
  std::vector<at::Tensor> parameters;  // all, each once
  std::vector<at::Tensor> buffers;
  ddp::ModelDescription description;
};

Tensors tensors_of(const torch::nn::Module& module) {
  Tensors tensors;
  std::unordered_map<const void*, std::string> seen;
  const auto parameters = module.named_parameters();
  for (const auto& item : parameters) {
    const at::Tensor& tensor = item.value();
    const auto [first, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), item.key());
    tensors.description.push_back(
        is_new ? str("parameter ", item.key(), " ", ddp::describe(tensor),
                     tensor.requires_grad() ? "" : " without gradient")
               : str("parameter ", item.key(), " shared with ", first->second));
    if (!is_new) continue;
    ddp::dtype_of_tensor(tensor, item.key());
    tensors.parameters.push_back(tensor);
    if (!tensor.requires_grad()) continue;
    tensors.trained.push_back(tensor);
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

std::string listed(const Names& names) {
  constexpr std::size_t kShown = 8;
  const auto shown = std::min(names.size(), kShown);
  std::string text = c10::Join(", ", std::span(names).first(shown));
  if (names.size() > kShown) text += str(" and ", names.size() - kShown, " more");
  return text;
}

}  // namespace

struct DataParallel::Impl {
  Impl(ProcessGroup& the_group, const DataParallelOptions& the_options, Where the_where)
      : group(the_group), options(the_options), where(the_where) {}

  // ---- set-up ----
  void attach(std::shared_ptr<torch::nn::Module> wrapped);
  void make_buckets(const std::vector<std::size_t>& ready_order);
  void reorder_buckets();

  // ---- one step ----
  void forward_begins();
  void forward_ended(const std::vector<at::Tensor>& outputs);
  void backward_began();
  void gradient_complete(std::size_t parameter);
  void backward_ended(bool nested);
  void launch(std::size_t bucket);
  void wait(std::size_t bucket);
  void finish();
  void mark_unused(std::size_t parameter);
  void start_over() noexcept;

  [[noreturn]] void fail(ErrorCode code, const std::string& what) const;
  bool holds_view(std::size_t parameter) const;

  ProcessGroup& group;
  const DataParallelOptions options;
  const Where where;
  std::shared_ptr<torch::nn::Module> module;
  Tensors tensors;
  std::vector<ddp::BucketShape> shapes;
  std::vector<Bucket> buckets;
  std::vector<at::Tensor> views;  // by trained parameter
  std::optional<ddp::Reducer> reducer;
  std::optional<ddp::BackwardWatch> watch;

  bool synchronise = true;
  bool reordered = false;
  bool must_agree = false;             // a step was given up: did all ranks give it up?
  int forwards = 0;                    // since the last step
  std::vector<std::size_t> unreached;  // by the only forward since then, where asked for
  std::vector<std::uint8_t> used;      // by trained parameter, in this step

  DataParallelStats stats;
  Clock::time_point step_began = {};
  Clock::time_point first_launch = {};
};

void DataParallel::Impl::fail(ErrorCode code, const std::string& what) const {
  ErrorContext context;
  context.rank = group.rank();
  context.call_site = name_of(where);
  throw Error(code, str("DistributedDataParallel (rank ", group.rank(), "): ", what),
              std::move(context));
}

// ---- set-up ------------------------------------------------------------------------------------

void DataParallel::Impl::attach(std::shared_ptr<torch::nn::Module> wrapped) {
  watch.reset();
  module = std::move(wrapped);
  tensors = tensors_of(*module);
  if (tensors.trained.empty()) {
    fail(ErrorCode::kInvalidArgument, "the model has no parameter that requires a gradient");
  }
  ddp::ModelDescription description = tensors.description;
  description.push_back(str("options bucket_bytes ", options.bucket_bytes,
                            " find_unused_parameters ", options.find_unused_parameters,
                            " broadcast_buffers ", options.broadcast_buffers));
  ddp::check_same_model(group, description, where);
  ddp::broadcast_tensors(group, tensors.parameters, where);
  ddp::broadcast_tensors(group, tensors.buffers, where);

  reducer.emplace(tensors.trained.size(),
                  ddp::ReducerActions{[this](std::size_t bucket) { launch(bucket); },
                                      [this](std::size_t bucket) { wait(bucket); }});
  shapes.clear();
  views.clear();
  reordered = options.find_unused_parameters;  // what is used may change: keep the first guess
  make_buckets(ddp::reverse_order(tensors.trained.size()));
  watch.emplace(tensors.trained,
                ddp::BackwardEvents{[this] { backward_began(); },
                                    [this](std::size_t parameter) { gradient_complete(parameter); },
                                    [this](bool nested) { backward_ended(nested); }});
  watch->enable(synchronise);
}

void DataParallel::Impl::make_buckets(const std::vector<std::size_t>& ready_order) {
  std::vector<ddp::ParameterShape> parameters;
  for (std::size_t i = 0; i < tensors.trained.size(); ++i) {
    const at::Tensor& tensor = tensors.trained[i];
    parameters.push_back({static_cast<std::size_t>(tensor.numel()),
                          ddp::dtype_of_tensor(tensor, tensors.names[i]),
                          {}});
  }
  const ddp::BucketLimits limits{std::min(std::size_t{1} << 20, options.bucket_bytes),
                                 options.bucket_bytes};
  auto new_shapes = ddp::assign_buckets(parameters, ready_order, limits);
  if (new_shapes == shapes) return;
  shapes = std::move(new_shapes);

  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> old_views = std::exchange(views, {});
  views.resize(tensors.trained.size());
  buckets.clear();
  stats.bytes = 0;
  for (const ddp::BucketShape& shape : shapes) {
    Bucket bucket;
    const at::Tensor& first = tensors.trained[shape.slots.front().parameter];
    const std::size_t byte_count = shape.count * size_of(shape.dtype);
    const Memory memory = group.allocate(std::max(byte_count, std::size_t{1}));
    bucket.flat = at::from_blob(
        memory.data.get(), {static_cast<std::int64_t>(shape.count)}, [keep = memory.data](void*) {},
        first.options());
    bucket.flat.zero_();
    bucket.buffer = Buffer(memory.data.get(), shape.count, shape.dtype);
    for (const ddp::Slot& slot : shape.slots) {
      const at::Tensor& parameter = tensors.trained[slot.parameter];
      const at::Tensor run = bucket.flat.narrow(0, static_cast<std::int64_t>(slot.offset),
                                                static_cast<std::int64_t>(slot.count));
      // The gradient has its parameter's layout where that is dense; then accumulating is a plain
      // loop.
      views[slot.parameter] = ddp::without_history(
          parameter.is_non_overlapping_and_dense()
              ? run.as_strided(parameter.sizes(), parameter.strides(), run.storage_offset())
              : run.view(parameter.sizes()));
    }
    buckets.push_back(std::move(bucket));
    stats.bytes += byte_count;
  }
  stats.buckets = buckets.size();
  for (std::size_t i = 0; i < old_views.size(); ++i) {  // gradients that lived in the old buckets
    at::Tensor& gradient = tensors.trained[i].mutable_grad();
    if (gradient.defined() && gradient.is_alias_of(old_views[i])) {
      views[i].copy_(gradient);
      gradient = views[i];
    }
  }
  reducer->set_buckets(shapes);
}

/// Once, after the first step: gradients travel in the order in which rank 0 computed them.
void DataParallel::Impl::reorder_buckets() {
  if (reordered || reducer->finished_steps() == 0) return;
  reordered = true;
  const auto& observed = reducer->observed_order();
  std::vector<std::uint64_t> order(observed.begin(), observed.end());
  group.broadcast(Buffer(order), {}, where);
  make_buckets({order.begin(), order.end()});
}

// ---- one step ----------------------------------------------------------------------------------

void DataParallel::Impl::forward_begins() {
  if (reducer->in_step() || watch->task_open()) start_over();  // backward ended by an exception
  watch->follow_parameters();
  step_began = Clock::now();
  if (!synchronise) return;
  // If this rank alone gave a step up, the others wait in that step's all_reduce, which might be
  // mistaken for one of the next step. A barrier cannot be.
  if (std::exchange(must_agree, false)) group.barrier({}, where);
  reorder_buckets();
  if (options.broadcast_buffers && module->is_training() && !tensors.buffers.empty()) {
    ddp::broadcast_tensors(group, tensors.buffers, where);
    stats.exposed += Clock::now() - step_began;
  }
}

void DataParallel::Impl::forward_ended(const std::vector<at::Tensor>& outputs) {
  if (!at::GradMode::is_enabled()) return;
  watch->watch_outputs(outputs);
  if (!options.find_unused_parameters) return;
  unreached.clear();
  if (++forwards == 1) unreached = watch->unreached_from(outputs);
}

/// What forward did not reach is marked at once, so that its buckets need not wait for the end.
/// After several forwards only the end tells.
void DataParallel::Impl::backward_began() {
  if (!options.find_unused_parameters) return;
  used.assign(tensors.trained.size(), 1);
  for (std::size_t parameter : unreached) mark_unused(parameter);
}

void DataParallel::Impl::mark_unused(std::size_t parameter) {
  const at::NoGradGuard no_grad;
  const at::Tensor& gradient = tensors.trained[parameter].grad();
  used[parameter] = gradient.defined() ? 1 : 0;  // perhaps accumulated without an exchange
  if (!gradient.defined()) {
    views[parameter].zero_();
  } else if (!holds_view(parameter)) {
    views[parameter].copy_(gradient);
  }
  reducer->mark_ready(parameter);
}

bool DataParallel::Impl::holds_view(std::size_t parameter) const {
  const at::Tensor& gradient = tensors.trained[parameter].grad();
  return gradient.defined() && gradient.layout() == at::kStrided &&
         gradient.data_ptr() == views[parameter].data_ptr();
}

void DataParallel::Impl::gradient_complete(std::size_t parameter) try {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = tensors.trained[parameter].mutable_grad();
  const at::Tensor& view = views[parameter];
  const std::string& name = tensors.names[parameter];
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
  } else if (!holds_view(parameter)) {
    view.copy_(gradient);
  }
  if (options.gradients_as_views && !holds_view(parameter)) gradient = view;
  if (reducer->mark_ready(parameter) == ddp::Reducer::Mark::repeated) {
    fail(ErrorCode::kInvalidArgument,
         str(name,
             " got a second gradient in one backward. It is used both inside and outside of a "
             "checkpointed block, or in two of them, or find_unused_parameters took it for unused: "
             "use it in one place"));
  }
} catch (...) {
  start_over();
  throw;
}

void DataParallel::Impl::backward_ended(bool nested) {
  if (reducer->all_ready()) {
    finish();
    return;
  }
  if (nested) return;  // judged at the end of the outermost backward
  if (options.find_unused_parameters) {
    for (std::size_t parameter : reducer->missing()) mark_unused(parameter);
    finish();
    return;
  }
  Names missing;
  for (std::size_t parameter : reducer->missing()) missing.push_back(tensors.names[parameter]);
  start_over();
  fail(ErrorCode::kInvalidArgument,
       str("backward ended without a gradient for ", missing.size(), " of ", tensors.trained.size(),
           " parameters: ", listed(missing),
           ". If the model uses them in some steps only, set find_unused_parameters; if in none, "
           "requires_grad_(false)"));
}

void DataParallel::Impl::launch(std::size_t bucket) {
  if (bucket == 0) first_launch = Clock::now();
  // The last bucket has nothing left to overlap with: wait() reduces it in this thread.
  if (bucket + 1 == buckets.size()) return;
  buckets[bucket].work =
      group.all_reduce(buckets[bucket].buffer, {.op = ReduceOp::avg}, async, where);
}

void DataParallel::Impl::wait(std::size_t bucket) {
  if (bucket + 1 == buckets.size()) {
    group.all_reduce(buckets[bucket].buffer, {.op = ReduceOp::avg}, where);
  } else {
    std::exchange(buckets[bucket].work, Work()).wait();
  }
}

void DataParallel::Impl::finish() {
  const auto computed = Clock::now();
  reducer->finish();
  if (options.find_unused_parameters) group.all_reduce(Buffer(used), ReduceOp::max, where);
  const auto done = Clock::now();
  const at::NoGradGuard no_grad;
  for (std::size_t parameter = 0; parameter < views.size(); ++parameter) {
    // A parameter for which no rank has a gradient gets none.
    if (options.find_unused_parameters && used[parameter] == 0) continue;
    if (holds_view(parameter)) continue;
    at::Tensor& gradient = tensors.trained[parameter].mutable_grad();
    if (options.gradients_as_views) {
      gradient = views[parameter];
    } else if (gradient.defined()) {
      gradient.copy_(views[parameter]);
    } else {
      gradient = ddp::without_history(views[parameter].clone());
    }
  }
  unreached.clear();
  forwards = 0;
  ++stats.steps;
  stats.communicate += done - first_launch;
  stats.exposed += done - computed;
  stats.total += Clock::now() - step_began;
}

void DataParallel::Impl::start_over() noexcept {
  reducer->reset();
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
}

DataParallel::DataParallel(DataParallel&&) noexcept = default;
DataParallel::~DataParallel() = default;

void DataParallel::before_forward() { impl_->forward_begins(); }
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
  owner_.impl_->synchronise = false;
  owner_.impl_->watch->enable(false);
}

DataParallel::NoSync::~NoSync() {
  owner_.impl_->synchronise = before_;
  owner_.impl_->watch->enable(before_);
}

}  // namespace tutti::detail
