// Which samples of a data set a rank sees, and in which order.
//
// All ranks make the same *permutation* of the data set from (seed, epoch), bring its length to a
// multiple of the number of ranks (the *tail* rule; Tail::exact leaves it), and rank r takes
// positions r, r+n, r+2n, ... : its *share*. A *pass* walks the share once. The *position* counts
// samples of the share taken. A batch that comes to the end of the *common count*, which every
// share has, takes the rest of its share: so all ranks take as many batches.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/torch/sampler_options.h"

namespace tutti::ddp {

struct SamplerConfig {
  std::size_t dataset_count = 0;
  std::size_t rank_count = 1;
  std::size_t rank = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
  Tail tail = Tail::pad;
};

/// Where a pass stands, as named numbers: what is saved in checkpoints.
using SamplerState = std::map<std::string, std::uint64_t>;

/// Numerics  The permutation depends on (dataset_count, seed, epoch) only, not on the standard
///           library: a checkpoint resumes anywhere.
class ShareSampler {
 public:
  /// Errors    kInvalidArgument: rank not in [0, rank_count); Tail::drop leaves no rank a sample.
  explicit ShareSampler(const SamplerConfig& config);

  /// Of the next pass. Where a loaded state stands is of its epoch: another begins at the front.
  void set_epoch(std::uint64_t epoch) { epoch_ = epoch; }
  std::uint64_t epoch() const { return epoch_; }

  /// Begins a pass: at the front, or where a loaded state stands.
  void start();
  /// The next samples of the share: `count`, or all that are left where some rank has no more than
  /// so many; empty at the end. Begins a pass where none was since the sampler was made, or a state
  /// loaded.
  std::vector<std::size_t> next(std::size_t count);
  /// Of the batch of `count` samples that ends at position `end`: its samples over those that a
  /// rank has in it on average.
  /// Errors    kInvalidArgument: no batch of so many samples ends there.
  double weight(std::size_t count, std::size_t end) const;

  /// In the epoch that is set: 0 where no pass of it has begun.
  std::size_t position() const { return pass_epoch_ == epoch_ ? position_ : 0; }
  std::size_t share_count() const;  ///< samples this rank sees in an epoch
  const SamplerConfig& config() const { return config_; }
  /// Changes the data set's length for passes to come.
  /// Errors    kInvalidArgument: Tail::drop leaves no rank a sample.
  void set_dataset_count(std::size_t count);

  /// Of this position, or of another one. The same on all ranks.
  /// Errors    kInvalidArgument: a position beyond the share.
  SamplerState state(std::optional<std::size_t> position = {}) const;
  /// The next start() continues there.
  /// Errors    kInvalidArgument: the state is of another data set, seed, tail or number of ranks.
  void load(const SamplerState& state);

 private:
  std::size_t common_count() const;  ///< that every share has, of passes to come

  SamplerConfig config_;
  std::uint64_t epoch_ = 0;
  std::size_t position_ = 0;
  std::uint64_t pass_epoch_ = 0;  // of the position
  bool resuming_ = false, has_begun_ = false;
  std::vector<std::size_t> share_;  // of this pass
  std::size_t common_in_pass_ = 0;
};

/// The permutation of [0, count) that belongs to `key`.
std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t key);

}  // namespace tutti::ddp
