#include "ddp/sampler.h"

#include <torch/serialize/archive.h>

#include "tutti/torch/sampler.h"

namespace tutti {

struct DistributedSampler::State {
  ddp::ShareSampler share;
};

DistributedSampler::DistributedSampler(std::size_t dataset_count, int rank_count, int rank,
                                       const DistributedSamplerOptions& options)
    : torch::data::samplers::DistributedSampler<>(
          dataset_count, static_cast<std::size_t>(rank_count), static_cast<std::size_t>(rank),
          options.tail == Tail::pad),
      state_(std::make_shared<State>(State{ddp::ShareSampler(
          {dataset_count, static_cast<std::size_t>(rank_count), static_cast<std::size_t>(rank),
           options.shuffle, options.seed, options.tail})})) {}

DistributedSampler::DistributedSampler(std::size_t dataset_count, const ProcessGroup& group,
                                       const DistributedSamplerOptions& options)
    : DistributedSampler(dataset_count, group.world_size(), group.rank(), options) {}

void DistributedSampler::set_epoch(std::size_t epoch) { state_->share.set_epoch(epoch); }
std::size_t DistributedSampler::epoch() const { return state_->share.epoch(); }

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size) state_->share.set_dataset_count(*new_size);
  state_->share.start();
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  std::vector<std::size_t> samples = state_->share.next(batch_size);
  if (samples.empty()) return std::nullopt;
  return samples;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, value] : state_->share.state()) {
    archive.write(name, c10::IValue(static_cast<std::int64_t>(value)));
  }
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  ddp::SamplerState state;
  for (const auto& entry : state_->share.state()) {
    c10::IValue value;
    if (archive.try_read(entry.first, value)) {
      state[entry.first] = static_cast<std::uint64_t>(value.toInt());
    }
  }
  state_->share.load(state);
}

std::size_t DistributedSampler::index() const { return state_->share.position(); }
std::size_t DistributedSampler::share_count() const { return state_->share.share_count(); }

double DistributedSampler::weight(std::size_t batch_count, std::size_t consumed) const {
  return state_->share.weight(batch_count, consumed);
}

std::map<std::string, std::uint64_t> DistributedSampler::state_dict(
    std::optional<std::size_t> consumed) const {
  return state_->share.state(consumed);
}

void DistributedSampler::load_state_dict(const std::map<std::string, std::uint64_t>& state) {
  state_->share.load(state);
}

}  // namespace tutti
