// DistributedDataParallel: one model trained on all ranks of a group.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/process_group.h"
#include "tutti/torch/communication_hook.h"

namespace tutti {

struct DataParallelOptions {
  /// Gradients are sent in buckets of about this size; the first one of at most 1 MiB.
  std::size_t bucket_bytes = std::size_t{25} << 20;
  /// Walk the graph at each forward to find parameters that will get no gradient. Without it such
  /// parameters are an error that names them.
  bool find_unused_parameters = false;
  /// Gradients are views of the buckets; otherwise they are copied in and out, as by default in
  /// torch. Clone a gradient that is to outlive zero_grad(): the next step writes into the view.
  bool gradients_as_views = true;
  /// Copy rank 0's buffers (BatchNorm's running statistics) to all before each training forward
  /// outside of no_sync.
  /// Autograd does not see it: several forwards may go before a backward. One of your own that
  /// backward reads must not differ between ranks then.
  bool broadcast_buffers = true;
  /// Copy rank 0's parameters and buffers to all when the model is wrapped. Without it they must be
  /// equal already (loaded from one file): nothing compares them.
  bool init_sync = true;
  /// Every backward that trains the same parameters uses the same of them, equally often. The first
  /// one is taken as the rule, and one that breaks it is an error that names parameters. Then
  /// parameters may be unused, without a walk or an exchange in later steps
  /// (find_unused_parameters is of no account), and one may get several gradients in a backward:
  /// used inside and outside of a checkpointed block, or in two of them. The first backward
  /// exchanges at its end.
  bool static_graph = false;
};

struct JoinOptions {
  /// Gradients are divided by the number of all ranks, so that every sample counts as much as it
  /// did before; otherwise by the number of those that are still in, as if there were no others.
  bool divide_by_world = true;
};

/// What a DistributedDataParallel has done so far; sums over all steps. Times are the host's: with
/// a model on CUDA they say how long it gave out work, and waited where a backend stages, not what
/// the device was doing.
struct DataParallelStats {
  std::uint64_t steps = 0;                  ///< finished backwards that exchanged gradients
  std::uint64_t shadowed = 0;               ///< of others, that this rank shadowed inside a join
  std::size_t buckets = 0;                  ///< in use now
  std::size_t bytes = 0;                    ///< of gradients exchanged per step
  std::chrono::nanoseconds total{0};        ///< from the begin of forward to the end of backward
  std::chrono::nanoseconds communicate{0};  ///< some bucket was under way
  std::chrono::nanoseconds exposed{0};      ///< forward or backward stood still for communication
  std::chrono::nanoseconds compute() const { return total - exposed; }
  /// Buckets are reduced while backward runs. On one host whose ranks compute on all its cores they
  /// are reduced after it: there it is faster. Always where a rank's model is on CUDA. Never where
  /// a parameter has another wrapper, too.
  bool overlaps = false;
  /// By rank: in how many steps it came last to the buckets, so that the others waited for it. The
  /// same on all ranks. It is known of 16 steps at a time, after an all_gather of 128 bytes.
  std::vector<std::uint64_t> last_to_arrive = {};
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
  struct Impl;

 public:
  /// While it lives, backward adds to the local gradients and exchanges nothing.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(DataParallel& owner);
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;
    ~NoSync();

   private:
    Impl* impl_;
    bool before_;
  };

  /// Ranks that run out of samples let the others go on. See join().
  class [[nodiscard]] TUTTI_API Join {
   public:
    Join(DataParallel& owner, const JoinOptions& options, Where where);
    Join(const Join&) = delete;
    Join& operator=(const Join&) = delete;
    /// Finishes a join that was not finished, and only logs what goes wrong. While an exception
    /// unwinds it does nothing: the others are told as of any rank that has left.
    ~Join();

    /// This rank has no more samples. Shadows what the others do until none of them has any; then
    /// all ranks get the model of those who came here last. `after_backward` is called after each
    /// backward that was shadowed, with the mean gradients in place: where it steps the optimizer,
    /// as the loop does, this rank's parameters and the state of its optimizer follow every step.
    ///
    /// Errors  Those of forward and backward on the ranks that are still in, and what
    ///         `after_backward` throws. kInvalidArgument: the join was finished before.
    void finish(const std::function<void()>& after_backward = {}, Where where = Where::current());

   private:
    Impl* impl_;
    const Where made_at_;
    const int exceptions_;
    bool is_finished_ = false;
  };

  DataParallel(DataParallel&&) noexcept;
  ~DataParallel() override;

  /// For gradient accumulation: all but the last micro-batch run inside.
  ///
  ///     { auto local = model.no_sync(); loss(model.forward(first_half)).backward(); }
  ///     loss(model.forward(second_half)).backward();   // exchanges the sum of both
  ///
  /// The last micro-batch of a loop runs outside, too: what is kept waits for a backward that
  /// exchanges.
  NoSync no_sync() { return NoSync(*this); }
  /// For ranks with different numbers of batches: without it the first one that has none left ends
  /// the training of all.
  ///
  ///     auto join = model.join();
  ///     const auto step = [&] { optimizer.step(); optimizer.zero_grad(); };
  ///     for (auto& batch : *loader) {
  ///       loss_of(model.forward(batch.data), batch.target).backward();
  ///       step();
  ///     }
  ///     join.finish(step);   // goes on until no rank has a batch
  ///
  /// A rank that has left adds zeros, to each backward that exchanges: one of them a step. Earlier
  /// backwards of a step (of a discriminator, say) run inside no_sync, else what they gave shrinks.
  ///
  /// What no_sync has kept on it goes into the next backward of
  /// the others; if none comes it stays, and goes into the next one after the join. Where `finish`
  /// is given a step the gradients of a rank that has left become the mean of each backward; else
  /// they become none, and its parameters stay as they are. At the end all have the parameters, and
  /// with broadcast_buffers the buffers, of those who left last; where all ranks have left after
  /// the same step nothing is sent.
  ///
  /// Lifetime  The wrapper outlives the join.
  /// Ordering  Collective, and so is finish: all ranks are inside a join of this model or none is.
  ///           Other collectives of the loop (of another wrapper, of SyncBatchNorm, a vote about
  ///           stopping) are not shadowed; a rank that makes one meets kCollectiveMismatch, as it
  ///           does after it has given a step up while others shadow.
  /// Numerics  Bit-identical parameters on all ranks after finish; before that on those still in,
  ///           and on the others where they step. Without a step the optimizer of a rank that has
  ///           left lacks what it keeps of gradients (momentum, Adam's moments): parameters then
  ///           drift apart in the steps after finish.
  /// Cost      Before each backward, and each forward that copies buffers, an all_gather of 16
  ///           bytes; with static_graph, while ranks have left, what is used. Outside of a join
  ///           nothing.
  /// Errors    kInvalidArgument: inside a join of this model. kCollectiveMismatch: some ranks alone
  ///           are inside one, or with another option; told by the first collective.
  Join join(const JoinOptions& options = {}, Where where = Where::current()) {
    return Join(*this, options, where);
  }
  /// Lets `hook` make the mean of each bucket's gradients, from the next backward on; an empty one
  /// gives that back to all_reduce. The name says to messages and to the other ranks which it is.
  ///
  ///     model.set_communication_hook("bf16_compress", tutti::bf16_compress());
  ///
  /// Ordering  Collective, between steps.
  /// Errors    kCollectiveMismatch with both names if the ranks' differ; the one before stays, and
  ///           the group usable. kInvalidArgument: inside a backward.
  void set_communication_hook(std::string name, CommunicationHook hook,
                              Where where = Where::current());
  DataParallelStats stats() const;

  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  /// Refused: a copy that trained would be a second set of parameters that nothing averages.
  /// `model.module()->clone()` copies the module, to keep weights or for a moving average.
  /// Errors    kUnsupported.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 protected:
  DataParallel(std::shared_ptr<torch::nn::Module> module, ProcessGroup& group,
               const DataParallelOptions& options, Where where);
  void before_forward(Where where);
  void after_forward(const std::vector<torch::Tensor>& outputs);

 private:
  Impl& impl() const;

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
/// On CUDA buckets are on the devices of their parameters. A bucket is reduced behind the gradients
/// in it, on whatever streams these came; what the current stream is given after backward comes
/// behind the means. The host waits for a device only where the backend stages.
///
/// Lifetime  Borrows the group, which must outlive this but may be moved; shares the module.
///           Wrap first, then build the optimizer or not: parameters stay the same tensors.
/// Ordering  Construction, to(), every forward in training mode of a model with buffers and every
///           backward are collective, but inside of no_sync: all ranks make them in the same order.
///           Call forward on the wrapper, not on module(). After a to() that failed forward is
///           refused. Where one backward goes through two wrappers give each a group of its own if
///           one of them has find_unused_parameters, or static_graph and ranks that use different
///           parameters, or if their models are on different devices.
/// Freezing  A forward trains the parameters that require a gradient when it is called, and so does
///           its backward, without what was frozen in between. requires_grad_ may change whenever
///           no backward runs, on all ranks alike. What is frozen keeps the gradient it has; what
///           accumulated under no_sync is still exchanged.
/// Threads   Forward and backward from one thread at a time. Ranks that are threads of one process
///           need a device each, if they train on CUDA: libtorch runs all backwards of one device
///           in one thread.
/// Numerics  Parameters are bit-identical on all ranks after every step. The gradient is the mean
///           of the ranks' gradients: for a loss that is a mean, as if the batches were one (equal
///           batches on all ranks).
/// Cost      One copy of each gradient after zero_grad(), none where gradients are kept
///           (zero_grad(false)); the memory of one set of gradients.
/// Errors    kCollectiveMismatch: at construction the ranks' models or options differ, by name;
///           some ranks alone have frozen, thawed, added or replaced a parameter, by name; two
///           wrappers' backwards come in another order; or one rank alone gave a step up in an
///           exception out of backward. A backward that one rank leaves out (`continue` after a
///           loss that is NaN, or after an exception before it) looks like the next one to the
///           others: leave it out on all ranks, or on none.
///           kInvalidArgument at construction: another wrapper averages one of the parameters over
///           other ranks.
///           kInvalidArgument, out of backward, by name: a parameter without gradient or with two,
///           with static_graph: with another number than in the first step; one added, removed or
///           replaced since; forwards in it that train different ones.
///           kClosed: the group is gone. kUnsupported: sparse gradients, create_graph; two ranks
///           that are threads and train on one device. After an exception the next forward begins
///           afresh.
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

}  // namespace tutti
