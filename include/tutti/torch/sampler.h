// DistributedSampler: which samples a rank sees.
#pragma once

#include <torch/data/samplers/distributed.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/process_group.h"
#include "tutti/torch/sampler_options.h"

namespace tutti {

/// Deals a data set out to the ranks: every rank a share, in an order that depends on seed and
/// epoch alone.
///
///     tutti::DistributedSampler sampler(*dataset.size(), world);
///     auto loader = torch::data::make_data_loader(dataset, sampler, batch_size);
///     for (int epoch = 0; epoch < 10; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (auto& batch : *loader) ...
///     }
///
/// With Tail::exact no sample is repeated or left out. All ranks still get as many batches, where
/// there are as many samples as ranks: what is left when the shorter shares end goes into the last
/// batch, which may hold one sample more than asked for. Its parts differ in size, so training
/// weighs the loss:
///
///     sampler.set_epoch(epoch);
///     std::size_t consumed = sampler.index();  // 0, or where a loaded state goes on
///     for (auto& batch : *loader) {
///       const auto count = static_cast<std::size_t>(batch.data.size(0));
///       consumed += count;
///       ...
///       (sampler.weight(count, consumed) * loss).backward();
///     }
///
/// A data loader with drop_last leaves out a last batch that is not full, on some ranks alone where
/// shares differ: not with Tail::exact. `weight` is of the order of the share, which a loader with
/// enforce_ordering(false) does not keep.
///
/// Lifetime  Copies share one state, so that the loader's copy can be steered from outside.
/// Threads   As the data loader calls it; one thread at a time.
class TUTTI_API DistributedSampler : public torch::data::samplers::DistributedSampler<> {
 public:
  /// Errors    kInvalidArgument: Tail::drop, and fewer samples than ranks; `rank` does not exist.
  DistributedSampler(std::size_t dataset_count, const ProcessGroup& group,
                     const DistributedSamplerOptions& options = {});
  DistributedSampler(std::size_t dataset_count, int rank_count, int rank,
                     const DistributedSamplerOptions& options = {});

  /// Takes effect at the next reset(), which begin() of a data loader calls. Another epoch than
  /// that of a loaded state begins at its front, so a state that was saved at the end of an epoch
  /// goes on with `set_epoch(epoch + 1)`.
  void set_epoch(std::size_t epoch);
  std::size_t epoch() const;

  /// Errors    kInvalidArgument: Tail::drop, and fewer samples than ranks.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// How many samples of this rank's share were handed out in this epoch. A data loader with worker
  /// threads fetches ahead of training; before its begin() this is where training begins, too, if
  /// set_epoch has named another epoch than the last pass had.
  std::size_t index() const;
  std::size_t share_count() const;  ///< samples this rank sees in an epoch

  /// What to multiply the mean loss over a batch of this rank with, so that the mean over the
  /// ranks, which DistributedDataParallel takes of gradients, is the mean over all samples of all
  /// ranks' batches: 1 but for the last batch of Tail::exact. `consumed`: how many samples of its
  /// share training has consumed in this epoch, this batch included.
  /// Errors    kInvalidArgument: no batch of so many samples can end there.
  double weight(std::size_t batch_count, std::size_t consumed) const;

  /// Where the epoch stands. The same on every rank, so rank 0 may save it for all. A data loader
  /// with worker threads fetches ahead: then pass how many samples training has really consumed.
  /// Errors    kInvalidArgument: more samples than the share has.
  std::map<std::string, std::uint64_t> state_dict(std::optional<std::size_t> consumed = {}) const;
  /// The next reset() continues there.
  /// Errors    kInvalidArgument: saved with another data set, seed, option or number of ranks.
  void load_state_dict(const std::map<std::string, std::uint64_t>& state);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tutti
