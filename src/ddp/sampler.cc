#include "ddp/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "tutti/error.h"

namespace tutti::ddp {
namespace {

/// SplitMix64 (Steele, Lea, Flood 2014): one word of state, any seed is good.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() { return mix64(state_ += 0x9e3779b97f4a7c15u); }
  /// Uniform in [0, bound): multiply and keep the high word, rejecting the few words that would
  /// make some results likelier (Lemire 2019).
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t threshold = (0 - bound) % bound;
    while (true) {
      const unsigned __int128 product = static_cast<unsigned __int128>((*this)()) * bound;
      if (static_cast<std::uint64_t>(product) >= threshold) {
        return static_cast<std::uint64_t>(product >> 64);
      }
    }
  }

 private:
  std::uint64_t state_;
};

std::string_view name_of(Tail tail) {
  return tail == Tail::pad ? "pad" : tail == Tail::drop ? "drop" : "exact";
}

/// A saved number as the options name it.
std::string shown(std::string_view name, std::uint64_t value) {
  if (name == "shuffle") return value != 0 ? "true" : "false";
  if (name == "tail" && value <= static_cast<std::uint64_t>(Tail::exact))
    return std::string(name_of(static_cast<Tail>(value)));
  return std::to_string(value);
}

/// A training without samples would seem to succeed.
void refuse_empty_shares(const SamplerConfig& config) {
  if (config.tail != Tail::drop || config.dataset_count >= config.rank_count) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("DistributedSampler: with Tail::drop the {} samples of the data set are "
                          "too few for {} ranks: no rank would get any; take Tail::pad, which "
                          "repeats some, or fewer ranks",
                          config.dataset_count, config.rank_count));
}

}  // namespace

std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t key) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  SplitMix64 random(key);
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

ShareSampler::ShareSampler(const SamplerConfig& config) : config_(config) {
  if (config.rank >= config.rank_count) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("DistributedSampler: rank {} of {} ranks does not exist; ranks count from 0",
                    config.rank, config.rank_count));
  }
  refuse_empty_shares(config);
}

void ShareSampler::set_dataset_count(std::size_t count) {
  SamplerConfig changed = config_;
  changed.dataset_count = count;
  refuse_empty_shares(changed);
  config_ = changed;
}

std::size_t ShareSampler::common_count() const {
  const std::size_t n = config_.rank_count;
  return (config_.dataset_count + (config_.tail == Tail::pad ? n - 1 : 0)) / n;
}

std::size_t ShareSampler::share_count() const {
  const bool has_more = config_.rank < config_.dataset_count % config_.rank_count;
  return common_count() + (config_.tail == Tail::exact && has_more ? 1 : 0);
}

void ShareSampler::start() {
  const std::vector<std::size_t> order = [&] {
    if (config_.shuffle) return shuffled(config_.dataset_count, config_.seed + epoch_);
    std::vector<std::size_t> in_order(config_.dataset_count);
    std::iota(in_order.begin(), in_order.end(), std::size_t{0});
    return in_order;
  }();
  share_.clear();
  for (std::size_t i = 0; i < share_count(); ++i) {
    share_.push_back(order[(i * config_.rank_count + config_.rank) % order.size()]);
  }
  common_in_pass_ = common_count();
  position_ = std::exchange(resuming_, false) ? std::min(position(), share_.size()) : 0;
  pass_epoch_ = epoch_;
  has_begun_ = true;
}

std::vector<std::size_t> ShareSampler::next(std::size_t count) {
  if (!has_begun_) start();
  const bool is_last = position_ + count >= common_in_pass_;
  const std::size_t end = is_last ? share_.size() : position_ + count;
  std::vector<std::size_t> samples(share_.begin() + static_cast<std::ptrdiff_t>(position_),
                                   share_.begin() + static_cast<std::ptrdiff_t>(end));
  position_ = end;
  return samples;
}

double ShareSampler::weight(std::size_t count, std::size_t end) const {
  if (count == 0 || count > end || end > share_count()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("DistributedSampler: a batch of {} samples cannot end after {} of the "
                            "{} of this rank's share; pass what the batch holds, and what training "
                            "has consumed with it",
                            count, end, share_count()));
  }
  if (config_.tail != Tail::exact || end < share_count()) return 1;
  const std::size_t before = (end - count) * config_.rank_count;  // on all ranks
  return static_cast<double>(count * config_.rank_count) /
         static_cast<double>(config_.dataset_count - before);
}

/// At the end of a pass shares may differ by one; what all have stands for it.
SamplerState ShareSampler::state(std::optional<std::size_t> position) const {
  if (position.value_or(0) > share_count()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("DistributedSampler: {} samples consumed, of a share of {}", *position,
                            share_count()));
  }
  return {{"epoch", epoch_},
          {"position", std::min(position.value_or(this->position()), common_count())},
          {"dataset_count", config_.dataset_count},
          {"rank_count", config_.rank_count},
          {"seed", config_.seed},
          {"shuffle", config_.shuffle ? 1u : 0u},
          {"tail", static_cast<std::uint64_t>(config_.tail)}};
}

void ShareSampler::load(const SamplerState& state) {
  const SamplerState own = this->state();
  for (const auto& [name, value] : own) {
    const auto saved = state.find(name);
    if (saved == state.end()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("DistributedSampler: the state to load has no '{}'", name));
    }
    if (name != "epoch" && name != "position" && saved->second != value) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("DistributedSampler: the state to load was saved with {} {}, this "
                              "sampler has {}; resume with the data set, ranks and options it was "
                              "saved with, or begin an epoch with set_epoch in place of loading",
                              name, shown(name, saved->second), shown(name, value)));
    }
  }
  const std::uint64_t position = state.at("position");
  if (position > common_count()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("DistributedSampler: position {} lies beyond the share of {} samples",
                            position, common_count()));
  }
  epoch_ = pass_epoch_ = state.at("epoch");
  position_ = position < common_count() ? position : share_count();
  resuming_ = true;
  has_begun_ = false;
}

}  // namespace tutti::ddp
