#include "c10d/backend.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <utility>

#include "c10d/error.h"

namespace tutti::python {
namespace {

using std::chrono::milliseconds;
using Type = c10d::OpType;

/// What 2.15 calls coalesced calls; 2.11 has one name for them.
template <class T>
constexpr T coalesced_all_gather() {
  if constexpr (requires { T::ALLGATHER_INTO_TENSOR_COALESCED; })
    return T::ALLGATHER_INTO_TENSOR_COALESCED;
  else
    return T::COALESCED;
}
template <class T>
constexpr T coalesced_reduce_scatter() {
  if constexpr (requires { T::REDUCE_SCATTER_TENSOR_COALESCED; })
    return T::REDUCE_SCATTER_TENSOR_COALESCED;
  else
    return T::COALESCED;
}

at::Tensor& only(Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "tutti: a call takes one tensor, not ", tensors.size());
  return tensors[0];
}

int rank_of(std::int64_t root) { return static_cast<int>(root); }

/// Elements for each rank: `splits` count rows; none means equal parts.
std::vector<std::size_t> counts_of(const at::Tensor& tensor,
                                   const std::vector<std::int64_t>& splits, int world_size) {
  c10d::checkSplitSizes(splits, tensor, world_size);
  const auto all = static_cast<std::size_t>(tensor.numel());
  if (splits.empty()) return std::vector<std::size_t>(world_size, all / world_size);
  const std::size_t row = tensor.size(0) == 0 ? 0 : all / tensor.size(0);
  std::vector<std::size_t> counts;
  for (const std::int64_t rows : splits) counts.push_back(rows * row);
  return counts;
}

}  // namespace

Backend::Backend(const c10d::DistributedBackendOptions& options)
    : c10d::Backend(options.group_rank, options.group_size),
      options_(c10::make_intrusive<Options>(
          "tutti", std::chrono::duration_cast<milliseconds>(options.timeout))),
      global_ranks_(options.global_ranks_in_group),
      group_(Group::make(options)) {
  init();
}

// ---- submitting -------------------------------------------------------------------------------

Backend::Call Backend::call(Type type, const char* title, bool is_async, milliseconds timeout,
                            const Tensors& inputs, const Tensors& outputs) {
  const bool is_message = c10d::isP2POp(type);  // which no number counts
  end_left_batch();
  const std::lock_guard lock(batching_);
  if (batch_ && batch_->thread == std::this_thread::get_id()) {
    Tensors& all = batch_->work->outputs();
    all.insert(all.end(), outputs.begin(), outputs.end());
    if (!is_message && !std::exchange(batch_->is_counted, true)) ++seq_;
    return {batch_->work, false, this};
  }
  const std::uint64_t seq = is_message ? seq_.load() : ++seq_;
  auto work =
      c10::make_intrusive<Work>(group_, completions_, Operation{type, title, seq, timeout}, inputs);
  work->outputs() = outputs;
  return {std::move(work), !is_async};
}

Backend::Ref<c10d::Work> Backend::hand_over(Call& call, std::vector<tutti::Work> works) {
  if (std::exchange(call.batch_of, nullptr) != nullptr) {
    const std::lock_guard lock(batching_);
    std::ranges::move(works, std::back_inserter(batch_->works));
  } else {
    call.work->begin(std::move(works));
  }
  return call.work;
}

template <class Run>
void Backend::run(const Run& call) {
  const Group::Inside inside(*group_);
  try {
    call();
  } catch (const Error& error) {
    group_->note(error);
    std::rethrow_exception(as_torch(error));
  }
}

/// `submit` takes the line of the call, for which no lock may be held, and blocks; or tutti::async
/// as well, and returns a Work.
template <class Submit>
Backend::Ref<c10d::Work> Backend::submit(Call call, const Submit& submit) {
  const Where where = group_->where();
  std::vector<tutti::Work> works;
  run([&] {
    const std::lock_guard lock(submitting_);
    if (call.is_blocking) {
      submit(where);
    } else {
      works.push_back(submit(where, async));
    }
  });
  return hand_over(call, std::move(works));
}

/// `count` operations: `submit` takes the index of one.
template <class Submit>
Backend::Ref<c10d::Work> Backend::submit_each(Call call, std::size_t count, const Submit& submit) {
  const Where where = group_->where();
  std::vector<tutti::Work> works;
  run([&] {
    const std::lock_guard lock(submitting_);
    for (std::size_t i = 0; i < count; ++i) works.push_back(submit(i, where));
  });
  return hand_over(call, std::move(works));
}

template <class Submit>
Backend::Ref<c10d::Work> Backend::message(Call call, const Submit& submit) {
  const Where where = group_->where();
  std::vector<tutti::Work> works;
  run([&] {
    const std::lock_guard lock(messaging_);
    works.push_back(submit(where));
  });
  return hand_over(call, std::move(works));
}

void Backend::startCoalescing() {
  end_batch();
  auto work = c10::make_intrusive<Work>(
      group_, completions_, Operation{Type::COALESCED, "tutti:coalesced", seq_, options_->timeout},
      Tensors());
  const std::lock_guard lock(batching_);
  batch_.emplace(Batch{std::move(work)});
}

Backend::Ref<c10d::Work> Backend::endCoalescing() {
  auto work = end_batch();
  TORCH_CHECK(work, "tutti: end of a coalesced call that has not begun, or of which a part failed");
  return work;
}

Backend::Ref<Work> Backend::end_batch() {
  std::optional<Batch> batch;
  {
    const std::lock_guard lock(batching_);
    TORCH_CHECK(!batch_ || batch_->thread == std::this_thread::get_id(),
                "tutti: another thread is in a coalesced call on this group");
    batch.swap(batch_);
  }
  if (!batch) return {};
  batch->work->begin(std::move(batch->works));
  return batch->work;
}

/// One that an exception has left would take in all later calls of its thread, and never end.
void Backend::end_left_batch() {
  bool was_left = false;
  {
    const std::lock_guard lock(batching_);
    was_left = batch_ && batch_->thread == std::this_thread::get_id() &&
               batch_->work->was_awaited_too_early();
  }
  if (was_left) end_batch();
}

Backend::CallTimeout Backend::timeout_or_own(milliseconds timeout) const {
  const milliseconds time = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  return {time, *Timeout(time) == group_->timeout()};
}

void Backend::check_list(const std::vector<Tensors>& lists, const at::Tensor& one) const {
  TORCH_CHECK_VALUE(lists.size() == 1, "tutti: ", lists.size(), " lists of tensors, not one");
  TORCH_CHECK_VALUE(static_cast<int>(lists[0].size()) == size_, "tutti: rank ", rank_,
                    " has given a list of ", lists[0].size(), " tensors; ", size_,
                    " are needed, one for each rank");
  for (const at::Tensor& tensor : lists[0]) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == one.scalar_type(),
                      "tutti: invalid tensor type: ", tensor.scalar_type(), " in a list beside ",
                      one.scalar_type());
  }
}

// ---- life -------------------------------------------------------------------------------------

void Backend::setTimeout(milliseconds timeout) { options_->timeout = timeout; }

c10d::ErrorType Backend::getError() {
  const std::optional<Error> error = failure();
  if (!error) return c10d::ErrorType::SUCCESS;
  if (error->code() == ErrorCode::kTimeout) return c10d::ErrorType::TIMEOUT;
  if (error->code() == ErrorCode::kPeerLost) return c10d::ErrorType::REMOTE_ERROR;
  return c10d::ErrorType::COMM_ERROR;
}

#ifdef C10D_BACKEND_HAS_HOOKS
void Backend::registerCompletionHook(std::int64_t number, c10d::CompletionHook hook) {
  completions_->add(number, [hook = std::move(hook)](std::uint64_t key) {
    hook({.completionKey = key, .duration_ms = std::nullopt});
  });
}
#endif

void Backend::abort() {
  group_->retire();
  (*group_)->abort("torch.distributed aborts the group");
}

namespace {

/// Whether a `finally` or an `except` of Python's runs in this thread, for anything but a program
/// that ends well by sys.exit.
bool is_handling_exception() {
  const py::gil_scoped_acquire locked;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_GetExcInfo(&type, &value, &traceback);
  const auto exception = py::reinterpret_steal<py::object>(value);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  if (!exception || exception.is_none()) return false;
  if (!py::isinstance(exception, py::handle(PyExc_SystemExit))) return true;
  const py::object code = exception.attr("code");
  return !code.is_none() && !code.equal(py::int_(0));
}

/// How long this rank waits for others: torch destroys groups one after the other, and whoever was
/// waited for in vain is not waited for again with each of them.
class SharedPatience {
 public:
  std::chrono::nanoseconds begin() {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (!was_in_vain_ || now > until_ + kApart) until_ = now + kWhole;
    return std::max<std::chrono::nanoseconds>(until_ - now, std::chrono::nanoseconds(0));
  }
  void end(bool in_vain) {
    const std::lock_guard lock(mutex_);
    was_in_vain_ = in_vain;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kWhole{2}, kApart{1};
  std::mutex mutex_;
  Clock::time_point until_ = {};
  bool was_in_vain_ = false;
};
SharedPatience shared_patience;

}  // namespace

/// Others may have work to do before they leave: this rank need not wait for it. Where the ranks
/// turn out to have called different things, the program's results are wrong: it must not end well.
/// But an exception that is on its way is not to be replaced.
void Backend::shutdown() {
  const Where where = group_->where();
  group_->retire();
  struct Spend {
    const std::chrono::nanoseconds time = shared_patience.begin();
    bool in_vain = true;
    ~Spend() { shared_patience.end(in_vain); }
  } spend;
  const std::unique_lock lock(submitting_, spend.time);
  if (!lock) return (*group_)->abort("destroyed while a thread is in a call on it");
  try {
    (*group_)->close(spend.time, where);
    spend.in_vain = false;
  } catch (const Error& error) {
    const std::optional<Error> failure = (*group_)->error();
    if (!failure && error.code() == ErrorCode::kTimeout) return;  // of patience alone
    spend.in_vain = false;
    const Error& learned = failure && failure->code() != error.code() ? *failure : error;
    if (failure && !group_->note(learned)) return;  // a call has told it
    if (learned.code() == ErrorCode::kCollectiveMismatch && !is_handling_exception())
      std::rethrow_exception(as_torch(learned));
    TORCH_WARN("tutti: ", words_of(learned));
  }
}

// ---- collectives ------------------------------------------------------------------------------

Backend::Ref<c10d::Work> Backend::broadcast(Tensors& tensors,
                                            const c10d::BroadcastOptions& options) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::BROADCAST, "tutti:broadcast", options.asyncOp, timeout, tensors, tensors);
  const Buffer data = to.operands().out(only(tensors));
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->broadcast(data, {.root = rank_of(options.rootRank), .timeout = timeout},
                                form..., where);
  });
}

Backend::Ref<c10d::Work> Backend::allreduce(Tensors& tensors,
                                            const c10d::AllreduceOptions& options) {
  if (only(tensors).is_sparse()) return allreduce_sparse(tensors, options);
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::ALLREDUCE, "tutti:all_reduce", options.asyncOp, timeout, tensors, tensors);
  const Buffer data = to.operands().out(tensors[0]);
  const AllReduceOptions how{.op = reduce_op_of(options.reduceOp, tensors[0]), .timeout = timeout};
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->all_reduce(data, how, form..., where);
  });
}

/// Every rank gets all entries, and adds them up. Blocks.
Backend::Ref<c10d::Work> Backend::allreduce_sparse(Tensors& tensors,
                                                   const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors);
  TORCH_CHECK_VALUE(tensor.is_sparse(), "tutti: all_reduce of a sparse tensor got a dense one");
  TORCH_CHECK_VALUE(options.reduceOp == c10d::ReduceOp::SUM,
                    "tutti: all_reduce of sparse tensors only sums");
  const CallTimeout timeout = timeout_or_own(options.timeout);
  const CollectiveOptions how{.timeout = timeout};
  Call to =
      call(Type::_ALLREDUCE_SPARSE, "tutti:sparse_all_reduce", false, timeout, tensors, tensors);
  const at::Tensor own = tensor.coalesce();
  const at::Tensor indices = own._indices().t().contiguous(), values = own._values().contiguous();
  std::vector<std::int64_t> entries(size_);
  entries[rank_] = own._nnz();
  return submit(std::move(to), [&](const Where& where, auto... form) {
    Operands parts;
    (*group_)->all_gather(entries, how, where);
    const std::int64_t all = std::accumulate(entries.begin(), entries.end(), std::int64_t{0});
    const auto gathered = [&](const at::Tensor& part) {
      const std::int64_t row = c10::multiply_integers(part.sizes().slice(1));
      std::vector<std::int64_t> shape = part.sizes().vec();
      shape[0] = all;
      at::Tensor whole = at::empty(shape, part.options());
      std::vector<std::size_t> counts;
      for (const std::int64_t count : entries) counts.push_back(count * row);
      (*group_)->all_gatherv(parts.in(part), parts.out(whole), counts, how, where);
      return whole;
    };
    const at::Tensor all_indices = gathered(indices).t(), all_values = gathered(values);
    const at::NoGradGuard no_grad;
    tensor.copy_(at::sparse_coo_tensor(all_indices, all_values, tensor.sizes()).coalesce());
    if constexpr (sizeof...(form) > 0) return tutti::Work();
  });
}

Backend::Ref<c10d::Work> Backend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == tensors[0].scalar_type(),
                      "tutti: tensors of one dtype are needed, not ", tensors[0].scalar_type(),
                      " and ", tensor.scalar_type());
  }
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::ALLREDUCE_COALESCED, "tutti:all_reduce_coalesced", options.asyncOp, timeout,
                 tensors, tensors);
  const std::vector<Buffer> list = to.operands().out(tensors);
  const at::Tensor first = tensors.empty() ? at::Tensor() : tensors[0];
  const AllReduceOptions how{.op = reduce_op_of(options.reduceOp, first), .timeout = timeout};
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->all_reduce(List<Buffer>(list), how, form..., where);
  });
}

Backend::Ref<c10d::Work> Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::REDUCE, "tutti:reduce", options.asyncOp, timeout, tensors, tensors);
  const Buffer data = to.operands().out(only(tensors));
  const ReduceOptions how{.op = reduce_op_of(options.reduceOp, tensors[0]),
                          .root = rank_of(options.rootRank),
                          .timeout = timeout};
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->reduce(data, how, form..., where);
  });
}

Backend::Ref<c10d::Work> Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  check_list(outputs, only(inputs));
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::ALLGATHER, "tutti:all_gather", options.asyncOp, timeout, inputs, outputs[0]);
  const ConstBuffer input = to.operands().in(inputs[0]);
  const std::vector<Buffer> list = to.operands().out(outputs[0]);
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->all_gather(input, List<Buffer>(list), {.timeout = timeout}, form..., where);
  });
}

Backend::Ref<c10d::Work> Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::_ALLGATHER_BASE, "tutti:_all_gather_base", options.asyncOp, timeout, {input},
                 {output});
  const ConstBuffer from = to.operands().in(input);
  const Buffer all = to.operands().out(output);
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->all_gather(from, all, {.timeout = timeout}, form..., where);
  });
}

Backend::Ref<c10d::Work> Backend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                      Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == size_, "tutti: ", size_,
                    " lists are needed, one for each rank");
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Tensors all;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "tutti: lists of ", inputs.size(),
                      " tensors are needed, as many as the inputs");
    all.insert(all.end(), list.begin(), list.end());
  }
  Call to = call(Type::ALLGATHER_COALESCED, "tutti:all_gather", true, timeout, inputs, all);
  to.work->set_lists(outputs);
  const std::vector<ConstBuffer> from = to.operands().in(inputs);
  std::vector<std::vector<Buffer>> lists(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (const Tensors& list : outputs) lists[i].push_back(to.operands().out(list[i]));
  }
  return submit_each(std::move(to), inputs.size(), [&](std::size_t i, const Where& where) {
    return (*group_)->all_gather(from[i], List<Buffer>(lists[i]), {.timeout = timeout}, async,
                                 where);
  });
}

Backend::Ref<c10d::Work> Backend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "tutti: ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(coalesced_all_gather<Type>(), "tutti:all_gather", true, timeout, inputs, outputs);
  const std::vector<ConstBuffer> from = to.operands().in(inputs);
  const std::vector<Buffer> into = to.operands().out(outputs);
  return submit_each(std::move(to), inputs.size(), [&](std::size_t i, const Where& where) {
    return (*group_)->all_gather(from[i], into[i], {.timeout = timeout}, async, where);
  });
}

Backend::Ref<c10d::Work> Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Tensors all;
  if (rank_ == options.rootRank) {
    check_list(outputs, only(inputs));
    all = outputs[0];
  }
  Call to = call(Type::GATHER, "tutti:gather", options.asyncOp, timeout, inputs, all);
  const ConstBuffer input = to.operands().in(only(inputs));
  const std::vector<Buffer> list = to.operands().out(all);
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->gather(input, List<Buffer>(list),
                             {.root = rank_of(options.rootRank), .timeout = timeout}, form...,
                             where);
  });
}

#ifdef C10D_BACKEND_HAS_HOOKS
Backend::Ref<c10d::Work> Backend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                     const c10d::GatherOptions& options) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::GATHER, "tutti:gather", options.asyncOp, timeout, {input}, {output});
  const ConstBuffer from = to.operands().in(input);
  const Buffer all = rank_ == options.rootRank ? to.operands().out(output) : Buffer();
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->gather(from, all, {.root = rank_of(options.rootRank), .timeout = timeout},
                             form..., where);
  });
}
#endif

Backend::Ref<c10d::Work> Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& options) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Tensors all;
  if (rank_ == options.rootRank) {
    check_list(inputs, only(outputs));
    all = inputs[0];
  }
  Call to = call(Type::SCATTER, "tutti:scatter", options.asyncOp, timeout, all, outputs);
  const Buffer output = to.operands().out(only(outputs));
  const std::vector<ConstBuffer> list = to.operands().in(all);
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->scatter(List<ConstBuffer>(list), output,
                              {.root = rank_of(options.rootRank), .timeout = timeout}, form...,
                              where);
  });
}

Backend::Ref<c10d::Work> Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  check_list(inputs, only(outputs));
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::REDUCE_SCATTER, "tutti:reduce_scatter", options.asyncOp, timeout, inputs[0],
                 outputs);
  const Buffer output = to.operands().out(outputs[0]);
  const std::vector<ConstBuffer> list = to.operands().in(inputs[0]);
  const AllReduceOptions how{.op = reduce_op_of(options.reduceOp, outputs[0]), .timeout = timeout};
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->reduce_scatter(List<ConstBuffer>(list), output, how, form..., where);
  });
}

Backend::Ref<c10d::Work> Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::_REDUCE_SCATTER_BASE, "tutti:_reduce_scatter_base", options.asyncOp, timeout,
                 {input}, {output});
  const ConstBuffer all = to.operands().in(input);
  const Buffer own = to.operands().out(output);
  const AllReduceOptions how{.op = reduce_op_of(options.reduceOp, output), .timeout = timeout};
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->reduce_scatter(all, own, how, form..., where);
  });
}

Backend::Ref<c10d::Work> Backend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "tutti: ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(coalesced_reduce_scatter<Type>(), "tutti:reduce_scatter", true, timeout, inputs,
                 outputs);
  const std::vector<ConstBuffer> from = to.operands().in(inputs);
  const std::vector<Buffer> into = to.operands().out(outputs);
  return submit_each(std::move(to), inputs.size(), [&](std::size_t i, const Where& where) {
    const ReduceOp op = reduce_op_of(options.reduceOp, outputs[i]);
    return (*group_)->reduce_scatter(from[i], into[i], {.op = op, .timeout = timeout}, async,
                                     where);
  });
}

Backend::Ref<c10d::Work> Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<std::int64_t>& output_splits,
                                                std::vector<std::int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  const std::vector<std::size_t> sent = counts_of(input, input_splits, size_),
                                 received = counts_of(output, output_splits, size_);
  Call to =
      call(Type::ALLTOALL_BASE, "tutti:all_to_all", options.asyncOp, timeout, {input}, {output});
  // Of one form on all ranks, whether they give lists or work in place or not.
  const ConstBuffer from = to.operands().in(input.is_alias_of(output) ? input.clone() : input);
  const Buffer into = to.operands().out(output);
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->all_to_allv(from, sent, into, received, {.timeout = timeout}, form..., where);
  });
}

Backend::Ref<c10d::Work> Backend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& options) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::ALLTOALL, "tutti:all_to_all", options.asyncOp, timeout, inputs, outputs);
  const std::vector<ConstBuffer> from = to.operands().in(inputs);
  const std::vector<Buffer> into = to.operands().out(outputs);
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->all_to_all(List<ConstBuffer>(from), List<Buffer>(into), {.timeout = timeout},
                                 form..., where);
  });
}

Backend::Ref<c10d::Work> Backend::barrier(const c10d::BarrierOptions& options) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  Call to = call(Type::BARRIER, "tutti:barrier", options.asyncOp, timeout, {}, {});
  return submit(std::move(to), [&](const Where& where, auto... form) {
    return (*group_)->barrier({.timeout = timeout}, form..., where);
  });
}

/// In gloo's words, which its users look for: rank 0 names who is late, the others rank 0.
void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const CallTimeout timeout = timeout_or_own(options.timeout);
  ++seq_;
  const Where where = group_->where();
  const Group::Inside inside(*group_);
  try {
    const std::lock_guard lock(submitting_);
    (*group_)->monitored_barrier({.timeout = timeout, .wait_all_ranks = wait_all_ranks}, where);
  } catch (const Error& error) {
    group_->note(error);
    if (error.code() != ErrorCode::kTimeout) std::rethrow_exception(as_torch(error));
    TORCH_CHECK(rank_ == 0, "Rank ", rank_,
                " successfully reached monitoredBarrier, but received errors while waiting for "
                "send/recv from rank 0: ",
                error.what());
    TORCH_CHECK(timeout.time != milliseconds(0),
                "Rank 0 timed out in monitoredBarrier: ", error.what());
    std::vector<int> late = error.context().culprits;
    if (!wait_all_ranks && late.size() > 1) late.resize(1);
    TORCH_CHECK(false, wait_all_ranks ? "Ranks " : "Rank ", c10::Join(", ", late),
                " failed to pass monitoredBarrier in ", timeout.time.count(),
                " ms: Timed out: ", error.what());
  }
}

// ---- messages ---------------------------------------------------------------------------------

Backend::Ref<c10d::Work> Backend::send(Tensors& tensors, int to, int tag) {
  const CallTimeout timeout = timeout_or_own(c10d::kUnsetTimeout);
  Call made = call(Type::SEND, "tutti:send", true, timeout, tensors, {});
  TORCH_CHECK_VALUE(tag >= 0, "tutti: tag ", tag, ": it must not be negative");
  const ConstBuffer data = made.operands().in(only(tensors));
  return message(std::move(made), [&](const Where& where) {
    return (*group_)->send(data, to, {.tag = tag, .timeout = timeout}, async, where);
  });
}

Backend::Ref<c10d::Work> Backend::recv(Tensors& tensors, int from, int tag) {
  return receive(Type::RECV, "tutti:recv", tensors, from, tag);
}

Backend::Ref<c10d::Work> Backend::recvAnysource(Tensors& tensors, int tag) {
  return receive(Type::RECVANYSOURCE, "tutti:recvAnySource", tensors, kAnyRank, tag);
}

Backend::Ref<c10d::Work> Backend::receive(Type type, const char* title, Tensors& tensors, int from,
                                          int tag) {
  const CallTimeout timeout = timeout_or_own(c10d::kUnsetTimeout);
  Call made = call(type, title, true, timeout, tensors, tensors);
  TORCH_CHECK_VALUE(tag >= 0, "tutti: tag ", tag, ": it must not be negative");
  const Buffer data = made.operands().out(only(tensors));
  MessageInfo* info = &made.work->add_info();
  return message(std::move(made), [&](const Where& where) {
    return (*group_)->recv(data, from, {.tag = tag, .timeout = timeout, .info = info}, async,
                           where);
  });
}

// ---- what is not there ------------------------------------------------------------------------

#ifdef C10D_BACKEND_HAS_HOOKS
namespace {

[[noreturn]] void not_there(const char* call, const char* instead) {
  C10_THROW_ERROR(NotImplementedError, c10::str("tutti: there is no ", call, ": ", instead));
}

constexpr const char* kOtherGroup =
    "dist.new_group(ranks, use_local_synchronization=True) makes a group of those that live";

}  // namespace

Backend::Ref<c10d::Window> Backend::new_window(const std::optional<at::Tensor>&) {
  not_there("new_window", "use send and recv, or all_to_all");
}
c10d::ReconfigureHandle Backend::get_reconfigure_handle() const {
  not_there("get_reconfigure_handle", kOtherGroup);
}
Backend::Ref<c10d::Work> Backend::reconfigure(const c10d::ReconfigureOptions&) {
  not_there("reconfigure", kOtherGroup);
}
Backend::Ref<c10d::Backend> Backend::shrink(const std::vector<std::int64_t>&, int,
                                            const Ref<Options>&) {
  not_there("shrink", kOtherGroup);
}
Backend::Ref<c10d::Backend> Backend::merge(const Ref<c10d::Store>&, const Ref<Options>&, const int&,
                                           const int&) {
  not_there("merge", "a larger world has to be started as one");
}
void Backend::suspend() {
  not_there("suspend", "a group between two calls holds shared memory alone; destroy what is idle");
}
void Backend::resume() { not_there("resume", "nothing can have been suspended"); }
#endif

}  // namespace tutti::python
