#include "ddp/torch/plan.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "ddp/torch/autograd.h"
#include "ddp/torch/tensor.h"

namespace tutti::ddp {

namespace {

/// Like `parameter`, which is one of those that lie in it.
at::Tensor memory_of(const BucketShape& shape, const at::Tensor& parameter, ProcessGroup& group) {
  const auto options = parameter.options().requires_grad(false);
  const auto count = static_cast<std::int64_t>(shape.count);
  if (parameter.is_cuda()) {
    return without_history(
        at::empty({std::max(count, std::int64_t{1})}, options).narrow(0, 0, count));
  }
  const std::size_t byte_count = shape.count * size_of(shape.dtype);
  const Memory memory = group.allocate(std::max(byte_count, std::size_t{1}));
  return at::from_blob(
      memory.data.get(), {count}, [keep = memory.data](void*) {}, options);
}

}  // namespace

Buffer Bucket::take() {
  turns.take();
  Buffer all(flat.data_ptr(), static_cast<std::size_t>(flat.numel()), dtype,
             device_of_tensor(flat));
  if (const auto stream = current_stream(flat)) all.stream = handle_of(*stream);
  return all;
}

Plan::Plan(const ParameterSet& set, std::span<const at::Tensor> parameters, ReducerActions actions)
    : reducer(count_of(set), std::move(actions)),
      graph(count_of(set)),
      set_(set),
      places_(set.size(), kNoPlace) {
  for (std::size_t parameter = 0; parameter < set.size(); ++parameter) {
    if (set[parameter] == 0) continue;
    places_[parameter] = parameters_.size();
    parameters_.push_back(parameter);
    tensors_.push_back(parameters[parameter]);
  }
  views_.resize(tensors_.size());
}

void Plan::make_buckets(
    std::span<const std::size_t> ready_order, const BucketLimits& limits, ProcessGroup& group,
    const std::function<Purpose(std::size_t bucket, std::size_t count)>& purpose) {
  std::vector<ParameterShape> parameters;
  for (const at::Tensor& tensor : tensors_) {
    parameters.push_back({static_cast<std::size_t>(tensor.numel()),
                          dtype_of_tensor(tensor, "a parameter"), device_of_tensor(tensor)});
  }
  auto shapes = assign_buckets(parameters, ready_order, limits);
  if (shapes == shapes_) return;

  const at::NoGradGuard no_grad;
  shapes_.clear();  // until all of them have memory
  buckets.clear();  // gradients that are views keep their memory until they are copied over
  std::vector<Bucket> made;
  for (const BucketShape& shape : shapes) {
    Bucket bucket;
    bucket.flat = memory_of(shape, tensors_[shape.slots.front().parameter], group);
    bucket.flat.zero_();
    bucket.turns = StreamTurns(bucket.flat);
    bucket.dtype = shape.dtype;
    bucket.purpose = purpose(made.size(), shapes.size());
    for (const Slot& slot : shape.slots) views_[slot.parameter] = view_of(bucket.flat, slot);
    made.push_back(std::move(bucket));
  }
  reducer.set_buckets(shapes);
  buckets = std::move(made);
  shapes_ = std::move(shapes);
}

/// The gradient has its parameter's layout where that is dense; then accumulating is a plain loop.
at::Tensor Plan::view_of(const at::Tensor& flat, const Slot& slot) const {
  const at::Tensor& parameter = tensors_[slot.parameter];
  const at::Tensor run =
      flat.narrow(0, static_cast<std::int64_t>(slot.offset), static_cast<std::int64_t>(slot.count));
  return without_history(
      parameter.is_non_overlapping_and_dense()
          ? run.as_strided(parameter.sizes(), parameter.strides(), run.storage_offset())
          : run.view(parameter.sizes()));
}

void Plan::begin_graph(const ParameterSet& trained) {
  if (graph_of_ != trained) {
    graph.forget();
    graph_used.clear();
    graph_of_ = trained;
  }
  graph.begin();
}

std::size_t Plan::byte_count() const {
  std::size_t bytes = 0;
  for (const Bucket& bucket : buckets) bytes += bucket.flat.nbytes();
  return bytes;
}

bool Plan::holds_view(std::size_t place) const {
  const at::Tensor& gradient = tensors_[place].grad();
  return gradient.defined() && gradient.layout() == at::kStrided &&
         gradient.data_ptr() == views_[place].data_ptr();
}

}  // namespace tutti::ddp
