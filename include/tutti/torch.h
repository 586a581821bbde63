// Data-parallel training on libtorch: tensors as buffers, DistributedDataParallel,
// DistributedSampler.
#pragma once

#include <torch/data/samplers/distributed.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/init.h"
#include "tutti/process_group.h"

namespace tutti {

/// A contiguous tensor wherever a Buffer is asked for: `world.all_reduce(tensor, ReduceOp::avg);`
///
/// Lifetime  Asynchronous calls keep the tensor's memory alive until their Work is done.
/// Errors    kInvalidArgument, naming strides and remedy: not contiguous, undefined, sparse,
///           lazily conjugated. kUnsupported: quantised elements, a device other than the CPU.
template <>
struct TUTTI_API BufferTraits<torch::Tensor> {
  static Buffer buffer(const torch::Tensor& tensor);  // a tensor is a handle: const is shallow
  static ConstBuffer const_buffer(const torch::Tensor& tensor);
};

/// The memory of a dense tensor in whatever order its strides give it, for operations on elements
/// where order does not matter. All ranks must pass tensors of the same sizes and strides.
/// Errors    kInvalidArgument: the tensor overlaps itself or has holes.
TUTTI_API Buffer in_memory_order(const torch::Tensor& tensor);

/// 64-bit hash of all parameters' names, dtypes and bits: equal models have equal hashes.
TUTTI_API std::uint64_t parameter_hash(const torch::nn::Module& module);

struct DataParallelOptions {
  /// Gradients are sent in buckets of about this size; the first one of at most 1 MiB.
  std::size_t bucket_bytes = std::size_t{25} << 20;
  /// Walk the graph at each forward to find parameters that will get no gradient. Without it such
  /// parameters are an error that names them.
  bool find_unused_parameters = false;
  /// Gradients are views of the buckets; otherwise they are copied in and out.
  bool gradients_as_views = true;
  /// Copy rank 0's buffers (BatchNorm's running statistics) to all before each training forward.
  bool broadcast_buffers = true;
};

/// What a DistributedDataParallel has done so far; sums over all steps.
struct DataParallelStats {
  std::uint64_t steps = 0;                  ///< finished backwards that exchanged gradients
  std::size_t buckets = 0;                  ///< in use now
  std::size_t bytes = 0;                    ///< of gradients exchanged per step
  std::chrono::nanoseconds total{0};        ///< from the begin of forward to the end of backward
  std::chrono::nanoseconds communicate{0};  ///< some bucket was under way
  std::chrono::nanoseconds exposed{0};      ///< forward or backward stood still for communication
  std::chrono::nanoseconds compute() const { return total - exposed; }
};

/// How to find the tensors in what a module's forward returns. Tensors, optionals, tuples, pairs,
/// ranges and maps of these are known; specialise it for others:
/// `template <class Visit> static void visit(const T& outputs, Visit&& visit)`.
template <class T>
struct OutputTraits;

namespace detail {

template <class T, class Visit>
void visit_tensors(const T& outputs, Visit&& visit) {
  if constexpr (requires { OutputTraits<T>::visit(outputs, visit); }) {
    OutputTraits<T>::visit(outputs, visit);
  } else if constexpr (std::is_same_v<T, torch::Tensor>) {
    visit(outputs);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_convertible_v<T, std::string_view>) {
    // holds no tensor
  } else if constexpr (requires { outputs.has_value(); }) {
    if (outputs.has_value()) visit_tensors(*outputs, visit);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](const auto&... parts) { (visit_tensors(parts, visit), ...); }, outputs);
  } else {
    static_assert(std::ranges::range<const T>,
                  "specialise tutti::OutputTraits for what this module's forward returns");
    for (const auto& part : outputs) visit_tensors(part, visit);
  }
}

/// What DistributedDataParallel is without the type of its module.
class TUTTI_API DataParallel : public torch::nn::Module {
 public:
  /// While it lives, backward adds to the local gradients and exchanges nothing.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(DataParallel& owner);
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;
    ~NoSync();

   private:
    DataParallel& owner_;
    bool before_;
  };

  DataParallel(DataParallel&&) noexcept;
  ~DataParallel() override;

  /// For gradient accumulation: all but the last micro-batch run inside.
  ///
  ///     { auto local = model.no_sync(); loss(model.forward(first_half)).backward(); }
  ///     loss(model.forward(second_half)).backward();   // exchanges the sum of both
  NoSync no_sync() { return NoSync(*this); }
  DataParallelStats stats() const;

  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

 protected:
  DataParallel(std::shared_ptr<torch::nn::Module> module, ProcessGroup& group,
               const DataParallelOptions& options, Where where);
  void before_forward(Where where);
  void after_forward(const std::vector<torch::Tensor>& outputs);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace detail

/// Trains one model on all ranks of a group: each rank computes on its own samples, gradients are
/// averaged while backward runs, and every rank takes the same step.
///
///     auto model = tutti::DistributedDataParallel(net, world);
///     for (auto& batch : *loader) {
///       optimizer.zero_grad();
///       torch::cross_entropy_loss(model.forward(batch.data), batch.target).backward();
///       optimizer.step();
///     }
///     if (world.rank() == 0) torch::save(model.module(), "model.pt");  // loads without Tutti
///
/// It is itself a module: parameters(), train(), eval(), to(), zero_grad() act on the wrapped one.
///
/// Lifetime  Borrows the group, which must outlive this but may be moved; shares the module.
///           Wrap first, then build the optimizer or not: parameters stay the same tensors.
/// Ordering  Construction, to(), every forward in training mode of a model with buffers and every
///           backward are collective: all ranks make them in the same order. Call forward on the
///           wrapper, not on module(). After a to() that failed forward is refused.
/// Freezing  A forward trains the parameters that require a gradient when it is called, and so does
///           its backward, without what was frozen in between. requires_grad_ may change whenever
///           no backward runs, on all ranks alike. What is frozen keeps the gradient it has; what
///           accumulated under no_sync is still exchanged.
/// Threads   Forward and backward from one thread at a time.
/// Numerics  Parameters are bit-identical on all ranks after every step. The gradient is the mean
///           of the ranks' gradients: for a loss that is a mean, as if the batches were one (equal
///           batches on all ranks).
/// Cost      One copy of each gradient after zero_grad(), none where gradients are kept
///           (zero_grad(false)); the memory of one set of gradients.
/// Errors    kCollectiveMismatch: at construction the ranks' models or options differ, by name;
///           some ranks alone have frozen, thawed, added or replaced a parameter, by name; two
///           wrappers' backwards come in another order; or one rank alone gave a step up in an
///           exception. A backward that one rank leaves out (`continue` after a loss that is NaN)
///           looks like the next one to the others: leave it out on all ranks, or on none.
///           kInvalidArgument, out of backward, by name: a parameter without gradient or with two;
///           one added, removed or replaced since; forwards in it that train different ones.
///           kClosed: the group is gone. kUnsupported: sparse gradients, create_graph. After an
///           exception the next forward begins afresh.
template <class Net>
class DistributedDataParallel : public detail::DataParallel {
 public:
  explicit DistributedDataParallel(std::shared_ptr<Net> module, ProcessGroup& group,
                                   const DataParallelOptions& options = {},
                                   Where where = Where::current())
      : DataParallel(module, group, options, where), module_(std::move(module)) {}
  explicit DistributedDataParallel(const torch::nn::ModuleHolder<Net>& holder, ProcessGroup& group,
                                   const DataParallelOptions& options = {},
                                   Where where = Where::current())
      : DistributedDataParallel(holder.ptr(), group, options, where) {}

  /// The wrapped module's forward. With up to three arguments messages about the step show the line
  /// that called it, with more the line that made the wrapper.
  template <class First>
  auto forward(First&& first, Where where = Where::current()) {
    return forward_at(where, std::forward<First>(first));
  }
  template <class First, class Second>
  auto forward(First&& first, Second&& second, Where where = Where::current()) {
    return forward_at(where, std::forward<First>(first), std::forward<Second>(second));
  }
  template <class First, class Second, class Third>
  auto forward(First&& first, Second&& second, Third&& third, Where where = Where::current()) {
    return forward_at(where, std::forward<First>(first), std::forward<Second>(second),
                      std::forward<Third>(third));
  }
  template <class... Args>
  auto forward(Args&&... args) {
    return forward_at({}, std::forward<Args>(args)...);
  }
  template <class First>
  auto operator()(First&& first, Where where = Where::current()) {
    return forward_at(where, std::forward<First>(first));
  }
  template <class First, class Second>
  auto operator()(First&& first, Second&& second, Where where = Where::current()) {
    return forward_at(where, std::forward<First>(first), std::forward<Second>(second));
  }
  template <class First, class Second, class Third>
  auto operator()(First&& first, Second&& second, Third&& third, Where where = Where::current()) {
    return forward_at(where, std::forward<First>(first), std::forward<Second>(second),
                      std::forward<Third>(third));
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward_at({}, std::forward<Args>(args)...);
  }

  const std::shared_ptr<Net>& module() const noexcept { return module_; }
  Net* operator->() const noexcept { return module_.get(); }

 private:
  template <class... Args>
  auto forward_at(Where where, Args&&... args) {
    before_forward(where);
    auto outputs = module_->forward(std::forward<Args>(args)...);
    std::vector<torch::Tensor> tensors;
    detail::visit_tensors(outputs, [&](const torch::Tensor& tensor) { tensors.push_back(tensor); });
    after_forward(tensors);
    return outputs;
  }

  std::shared_ptr<Net> module_;
};

struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// A data set whose length is not a multiple of the ranks: leave its tail out of the epoch
  /// (true), or repeat some samples so that every rank sees as many (false).
  bool drop_last = false;
};

/// Deals a data set out to the ranks: every rank an equal share, in an order that depends on seed
/// and epoch alone.
///
///     tutti::DistributedSampler sampler(*dataset.size(), world);
///     auto loader = torch::data::make_data_loader(dataset, sampler, batch_size);
///     for (int epoch = 0; epoch < 10; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (auto& batch : *loader) ...
///     }
///
/// Lifetime  Copies share one state, so that the loader's copy can be steered from outside.
/// Threads   As the data loader calls it; one thread at a time.
class TUTTI_API DistributedSampler : public torch::data::samplers::DistributedSampler<> {
 public:
  DistributedSampler(std::size_t dataset_count, const ProcessGroup& group,
                     const DistributedSamplerOptions& options = {});
  DistributedSampler(std::size_t dataset_count, int rank_count, int rank,
                     const DistributedSamplerOptions& options = {});

  /// Takes effect at the next reset(), which begin() of a data loader calls.
  void set_epoch(std::size_t epoch);
  std::size_t epoch() const;

  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  std::size_t index() const;        ///< samples of this rank's share handed out in this epoch
  std::size_t share_count() const;  ///< samples a rank sees in an epoch

  /// Where the epoch stands. The same on every rank, so rank 0 may save it for all. A data loader
  /// with worker threads fetches ahead: then pass how many samples training has really consumed.
  std::map<std::string, std::uint64_t> state_dict(std::optional<std::size_t> consumed = {}) const;
  /// The next reset() continues there.
  /// Errors    kInvalidArgument: saved with another data set, seed, option or number of ranks.
  void load_state_dict(const std::map<std::string, std::uint64_t>& state);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tutti
