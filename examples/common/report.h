// What is measured while a run goes on, and said at its end.
#pragma once

#include <torch/nn/module.h>
#include <tutti/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/progress.h"

/// Takes the time of this rank's training.
class Meter {
 public:
  void add(std::int64_t samples) { samples_ += static_cast<double>(samples); }
  /// Calls what is no training: its time does not count.
  template <class F>
  void leave_out(F&& evaluation) {
    const auto begin = Clock::now();
    evaluation();
    begin_ += Clock::now() - begin;
  }
  Speed speed(const tutti::DataParallelStats& stats) const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
  double samples_ = 0;
};

/// Collective: every rank takes over rank 0's buffers. Before a training forward the wrapper does
/// it; after the last one each rank has the running statistics of its own samples until this.
void share_buffers(const torch::nn::Module& net, tutti::ProcessGroup& world);

/// Collective: prints a row per rank, the result, and the hashes that all ranks must share: of the
/// parameters and, where there are some, of the buffers. False: the ranks differ.
bool report(const torch::nn::Module& net, const Speed& own, const tutti::DataParallelStats& stats,
            const std::string& result, tutti::ProcessGroup& world);
