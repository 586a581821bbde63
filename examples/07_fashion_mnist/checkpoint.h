// Saving a run and going on with it, to the same bits as if it had not been interrupted.
#pragma once

#include <torch/torch.h>
#include <tutti/torch.h>

#include <string>

/// Everything that a step depends on, besides the data and the command line.
struct RunState {
  torch::nn::Module& net;
  torch::optim::Optimizer& optimizer;
  tutti::DistributedSampler& sampler;
  std::size_t epoch = 0;
  std::size_t step = 0;  ///< since the start of the run
};

/// Collective: rank 0 writes FILE (whole or not at all), with every rank's random numbers in it.
void save_checkpoint(const std::string& file, const RunState& state, tutti::ProcessGroup& world);

/// Every rank reads FILE. Throws std::runtime_error if it is missing or of another program,
/// tutti::Error if it is of another data set or number of ranks.
void load_checkpoint(const std::string& file, RunState* state, const tutti::ProcessGroup& world);
