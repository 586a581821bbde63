// The learning rate in the course of a run.
#pragma once

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstddef>

/// Up to `highest` in the first tenth of the steps, then down to 0, both linearly.
inline void set_learning_rate(torch::optim::Optimizer* optimizer, double highest, std::size_t step,
                              std::size_t step_count) {
  const double done = static_cast<double>(step + 1) / static_cast<double>(step_count + 1);
  const double rate = highest * std::min(done / 0.1, (1 - done) / 0.9);
  for (auto& group : optimizer->param_groups()) group.options().set_lr(rate);
}
