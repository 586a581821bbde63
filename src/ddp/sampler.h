// Which samples of a data set a rank sees, and in which order.
//
// All ranks make the same *permutation* of the data set from (seed, epoch), bring its length to a
// multiple of the number of ranks (the *tail* rule), and rank r takes positions r, r+n, r+2n, ... :
// its *share*. A *pass* walks the share once. The *position* counts samples of the share taken.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tutti::ddp {

/// What becomes of a data set whose length is not a multiple of the number of ranks.
enum class Tail : std::uint8_t {
  pad,   ///< repeat samples from the head of the permutation: every rank sees as many
  drop,  ///< leave the tail of the permutation out of this epoch
};

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
  /// Errors    kInvalidArgument: rank not in [0, rank_count).
  explicit ShareSampler(const SamplerConfig& config);

  void set_epoch(std::uint64_t epoch) { epoch_ = epoch; }
  std::uint64_t epoch() const { return epoch_; }

  /// Begins a pass: at the front, or where a loaded state stands.
  void start();
  /// The next at most `count` samples of the share; empty at the end.
  std::vector<std::size_t> next(std::size_t count);

  std::size_t position() const { return position_; }
  std::size_t share_count() const;  ///< samples a rank sees in an epoch
  const SamplerConfig& config() const { return config_; }
  /// Changes the data set's length for passes to come.
  void set_dataset_count(std::size_t count) { config_.dataset_count = count; }

  SamplerState state() const;
  /// The next start() continues there.
  /// Errors    kInvalidArgument: the state is of another data set, seed, tail or number of ranks.
  void load(const SamplerState& state);

 private:
  SamplerConfig config_;
  std::uint64_t epoch_ = 0;
  std::size_t position_ = 0;
  bool resuming_ = false;
  std::vector<std::size_t> share_;
};

/// The permutation of [0, count) that belongs to `key`.
std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t key);

}  // namespace tutti::ddp
