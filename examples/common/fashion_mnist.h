// The images of Fashion-MNIST as a data set of libtorch.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "common/idx.h"

/// Images stay bytes in memory; a batch of them becomes floats.
class FashionMnist
    : public torch::data::datasets::BatchDataset<FashionMnist, torch::data::Example<>,
                                                 std::vector<std::size_t>> {
 public:
  explicit FashionMnist(const ImageSet& set, std::size_t limit = 0) {
    const auto count = static_cast<std::int64_t>(set.count);
    images_ = torch::tensor(torch::ArrayRef<std::uint8_t>(set.pixels)).view({count, 1, 28, 28});
    labels_ = torch::tensor(torch::ArrayRef<std::uint8_t>(set.labels)).to(torch::kLong);
    const auto used = static_cast<std::int64_t>(limit);
    if (limit == 0 || used >= count) return;
    images_ = images_.narrow(0, 0, used);
    labels_ = labels_.narrow(0, 0, used);
  }
  torch::data::Example<> get_batch(std::vector<std::size_t> samples) override {
    constexpr double kMean = 73, kDeviation = 90;  // of the training images
    const auto count = static_cast<std::int64_t>(samples.size());
    const auto chosen = torch::from_blob(samples.data(), {count}, torch::kLong);
    return {images_.index_select(0, chosen).to(torch::kFloat).sub_(kMean).div_(kDeviation),
            labels_.index_select(0, chosen)};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(labels_.numel());
  }

 private:
  torch::Tensor images_, labels_;
};
