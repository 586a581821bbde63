// Saving a run and going on with it, to the same bits as if it had not been interrupted.
#pragma once

#include <torch/torch.h>
#include <tutti/torch.h>

#include <string>

#include "common/command_line.h"
#include "common/curve.h"

/// Everything that a step depends on, besides the data and the command line.
struct RunState {
  torch::nn::Module& net;
  torch::optim::Optimizer& optimizer;
  tutti::DistributedSampler& sampler;
  std::size_t batch;  ///< of all ranks
  std::size_t epoch = 0;
  std::size_t step = 0;        ///< since the start of the run
  LossCurve* curve = nullptr;  ///< a program that draws one keeps it here, too
};

/// Collective: rank 0 writes FILE (whole or not at all), with every rank's random numbers in it.
void save_checkpoint(const std::string& file, const RunState& state, tutti::ProcessGroup& world);

/// Every rank reads FILE. Throws std::runtime_error if it is missing or of another program, model
/// or batch, tutti::Error if it is of another data set or number of ranks.
void load_checkpoint(const std::string& file, RunState* state, const tutti::ProcessGroup& world);

/// From here on Ctrl-C and SIGTERM end the run where saved_and_ending() stands, if there is a
/// checkpoint to save to. Before init_process_group().
void end_when_asked(const TrainingArguments& arguments);

/// With --resume: goes on where the checkpoint stands, and rank 0 says where that is.
void resume_if_asked(const TrainingArguments& arguments, RunState* state,
                     const tutti::ProcessGroup& world);

/// Collective, after every step: saves where --checkpoint-every says so. True: some rank has been
/// asked to end; then all have saved, and rank 0 has said how to go on.
bool saved_and_ending(const TrainingArguments& arguments, const RunState& state,
                      tutti::ProcessGroup& world);
