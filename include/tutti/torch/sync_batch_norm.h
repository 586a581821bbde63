// SyncBatchNorm: BatchNorm whose statistics are those of all ranks.
#pragma once

#include <torch/nn/modules/batchnorm.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>

#include "tutti/process_group.h"

namespace tutti {
namespace detail {

/// Who exchanges a layer's statistics, and under which name.
class NormExchange;

/// What a BatchNorm of libtorch holds, whatever its type.
struct BatchNormParts {
  const torch::nn::BatchNormOptions& options;
  bool training;
  torch::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
};

TUTTI_API std::shared_ptr<const NormExchange> make_norm_exchange(std::size_t dimensions,
                                                                 std::int64_t features,
                                                                 const ProcessGroup& group,
                                                                 const Where& where);
TUTTI_API void check_dimensions(const NormExchange& exchange, const torch::Tensor& input);
TUTTI_API torch::Tensor sync_batch_norm(const std::shared_ptr<const NormExchange>& exchange,
                                        const torch::Tensor& input, const BatchNormParts& parts);
TUTTI_API void print_sync_batch_norm(std::ostream& stream, std::size_t dimensions,
                                     const torch::nn::BatchNormOptions& options);

}  // namespace detail

/// What SyncBatchNorm1d, 2d and 3d have in common: torch::nn::BatchNorm's options, parameters and
/// buffers, and a group.
template <std::size_t D, class Derived>
class SyncBatchNormImplBase
    : public torch::nn::NormImplBase<D, Derived, torch::nn::BatchNormOptions> {
  using Base = torch::nn::NormImplBase<D, Derived, torch::nn::BatchNormOptions>;

 public:
  /// `made_at` is shown in messages, where it is given.
  SyncBatchNormImplBase(const torch::nn::BatchNormOptions& the_options, const ProcessGroup& group,
                        Where made_at = {})
      : Base(the_options),
        exchange_(detail::make_norm_exchange(D, the_options.num_features(), group, made_at)) {}
  /// Takes over all that a BatchNorm holds: parameters are the same tensors from then on, buffers
  /// share their memory.
  template <class Plain>
  SyncBatchNormImplBase(const torch::nn::BatchNormImplBase<D, Plain>& plain,
                        const ProcessGroup& group, Where made_at = {})
      : SyncBatchNormImplBase(plain.options, group, made_at) {
    this->parameters_["weight"] = this->weight = plain.weight;
    this->parameters_["bias"] = this->bias = plain.bias;
    if (plain.running_mean.defined()) {
      this->running_mean.set_data(plain.running_mean);
      this->running_var.set_data(plain.running_var);
      this->num_batches_tracked.set_data(plain.num_batches_tracked);
    }
    this->train(plain.is_training());
  }

  torch::Tensor forward(const torch::Tensor& input) {
    return detail::sync_batch_norm(
        exchange_, input,
        {this->options, this->is_training(), this->weight, this->bias, this->running_mean,
         this->running_var, this->num_batches_tracked});
  }

  void pretty_print(std::ostream& stream) const override {
    detail::print_sync_batch_norm(stream, D, this->options);
  }

 protected:
  void _check_input_dim(const torch::Tensor& input) override {
    detail::check_dimensions(*exchange_, input);
  }

 private:
  std::shared_ptr<const detail::NormExchange> exchange_;
};

class TUTTI_API SyncBatchNorm1dImpl : public SyncBatchNormImplBase<1, SyncBatchNorm1dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};
class TUTTI_API SyncBatchNorm2dImpl : public SyncBatchNormImplBase<2, SyncBatchNorm2dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};
class TUTTI_API SyncBatchNorm3dImpl : public SyncBatchNormImplBase<3, SyncBatchNorm3dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};

/// BatchNorm whose mean and variance, in training mode, are those of all ranks' values together, as
/// if their batches were one. Batches may differ in size, and a rank may have an empty one.
///
///     struct BlockImpl : torch::nn::Module {
///       BlockImpl(int width, tutti::ProcessGroup& group)
///           : norm(torch::nn::BatchNorm2dOptions(width).eps(1e-3), group) {
///         register_module("norm", norm);
///       }
///       torch::Tensor forward(const torch::Tensor& x) { return torch::relu(norm(x)); }
///       tutti::SyncBatchNorm2d norm;
///     };
///
/// Options, parameters and buffers have the names of torch::nn::BatchNorm2d's, so that either one's
/// checkpoint fits the other. In evaluation mode it is that BatchNorm, exchanges nothing and needs
/// no group.
///
/// Shape     As BatchNorm's: [N, C] or [N, C, L] for 1d, [N, C, H, W] for 2d, [N, C, D, H, W] for
///           3d. Elements are f32, f64, or f16 and bf16 with parameters of the same type or of f32.
/// Lifetime  Borrows the group, which must outlive the last forward in training mode and its
///           backward, but may be moved.
/// Ordering  Forward in training mode is collective, and so is its backward where the input
///           requires a gradient, inside no_sync() as well: all ranks call all of them in one
///           order. A rank without samples calls forward with an empty batch ([0, C, H, W]) and
///           backward from what it has computed of it. In a group of its own (world.new_group) an
///           exchange need not wait for gradients that DistributedDataParallel has under way, and
///           may stand in another order among them on each rank. With find_unused_parameters, and
///           with static_graph where ranks use different parameters, it needs one.
/// Numerics  docs/numerics.md: statistics in f64, the same bits on all ranks. The gradients of
///           weight and bias are those of the rank's own values, as BatchNorm's:
///           DistributedDataParallel averages them.
/// Cost      One all_gather of 2 C + 1 f64 in forward, one all_reduce of 2 C f64 in backward. Two
///           to three times BatchNorm's computation, and a copy of the input in f64 for a moment.
///           On CUDA forward waits for the device: the moments are combined on the CPU.
/// Errors    kInvalidArgument: the input's dimensions, features or dtype do not fit; all ranks
///           together have one value per channel, or none. kCollectiveMismatch: ranks that disagree
///           about the features, or the order. kClosed: the group is gone. kUnsupported:
///           create_graph; a tensor that is neither on the CPU nor on CUDA. Running statistics are
///           as before then.
TORCH_MODULE(SyncBatchNorm1d);
TORCH_MODULE(SyncBatchNorm2d);  ///< as SyncBatchNorm1d
TORCH_MODULE(SyncBatchNorm3d);  ///< as SyncBatchNorm1d

/// Exchanges every BatchNorm1d, 2d and 3d in the Sequentials and ModuleLists of a module, at any
/// depth, for a SyncBatchNorm of this group. Returns how many.
///
///     torch::nn::Sequential net(torch::nn::Conv2d(1, 8, 3), torch::nn::BatchNorm2d(8));
///     tutti::convert_sync_batch_norm(net, world);
///     auto model = tutti::DistributedDataParallel(net, world);
///
/// Parameters stay the same tensors, so that an optimizer or a wrapper that was made before stays
/// right; buffers, options, training mode and dtype are kept.
///
/// A member that a module's own forward calls (`bn1->forward(x)`) cannot be exchanged from outside:
/// its type is written there. Declare it as a tutti::SyncBatchNorm. Who calls an element of a
/// ModuleList or Sequential by its type (`list[0]->as<torch::nn::BatchNorm2d>()`) has to name the
/// new one.
///
/// Ordering  All ranks call it for the same module. Nothing is exchanged.
/// Errors    kInvalidArgument, naming them, where members would stay what they are; then nothing
///           has been changed.
TUTTI_API std::size_t convert_sync_batch_norm(torch::nn::Module& module, const ProcessGroup& group,
                                              Where where = Where::current());
template <class Net>
std::size_t convert_sync_batch_norm(const torch::nn::ModuleHolder<Net>& holder,
                                    const ProcessGroup& group, Where where = Where::current()) {
  return convert_sync_batch_norm(*holder.ptr(), group, where);
}

}  // namespace tutti
