// State_dicts of Python and of safetensors, read into C++ models and written.
#pragma once

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tutti/types.h"

namespace tutti {

struct LoadStateOptions {
  /// Under which key of the file's dictionary the state_dict is: "model" for
  /// {"model": ..., "epoch": 3}. Not given: the outermost dictionary, or the only state_dict in it.
  std::optional<std::string> key = std::nullopt;
  /// Names that only the file or only the model has are an error.
  bool strict = true;
  /// Tensors of another dtype are converted to the model's, as copy_ does: bf16 to f32, and back.
  bool convert_dtypes = false;
};

/// A number or a text that stands in a file beside the state_dict.
using CheckpointValue = std::variant<bool, std::int64_t, double, std::string>;

struct LoadedStateDict {
  std::vector<std::string> missing_keys;     ///< of the model, not in the file; if not strict
  std::vector<std::string> unexpected_keys;  ///< of the file, not in the model; if not strict
  /// {"epoch": 3}, and a safetensors file's metadata. The first 1,024, texts of up to 4,096 bytes;
  /// an optimizer's state and other objects are left out.
  std::map<std::string, CheckpointValue> values;
};

/// Copies a state_dict into the parameters and buffers of `module`, by name: a file of Python's
/// torch.save, or of safetensors.
///
///     tutti::load_state_dict(*net, "resnet18.pt");
///     auto loaded = tutti::load_state_dict(*net, "run.pt", {.key = "model"});
///     auto epoch = std::get<std::int64_t>(loaded.values.at("epoch"));
///
/// Names are those of named_parameters() and named_buffers(), which are Python's. A
/// DistributedDataParallel stands for its module. If all names of the file begin with `module.`,
/// as those of Python's wrapper do, and not all of the model's, they are read without it. In C++
/// every registered buffer is in the state_dict; a tensor that is not to be is a plain member.
/// BatchNorm's num_batches_tracked may be missing in the file, as in Python, and stays as it is.
///
/// Lifetime  The tensors of the module stay the same, so an optimizer may exist already.
/// Ordering  Not collective. Either every rank reads the file, or rank 0 does before the model is
///           wrapped: DistributedDataParallel then gives its parameters to all.
/// Numerics  The bits of the file; shapes and dtypes must be the model's, but for convert_dtypes.
/// Cost      Reads what the model needs, one tensor at a time: the memory of the largest one, and
///           of the pickle (at most 64 MiB) or header (at most 32 MiB).
/// Errors    kInvalidArgument, with the module as it was: all that does not fit, by name and kind,
///           ten of each; no state_dict, another format, damaged, ambiguous, with the remedy.
///           kSystem: the file cannot be opened or read. Executes nothing of what the file holds:
///           other objects in it are left out. Checksums are not compared, as torch.load does not.
TUTTI_API LoadedStateDict load_state_dict(torch::nn::Module& module, const std::string& path,
                                          const LoadStateOptions& options = {});

/// The tensors of a file as they are there, on the CPU: to look at them, or to rename them. Those
/// that share a storage in the file share it here, as in Python: what is written to one is seen in
/// the other.
///
/// Cost      The memory of the storages: at most the size of the file.
/// Errors    As load_state_dict; an entry that is no tensor, or one that cannot be read.
TUTTI_API torch::OrderedDict<std::string, torch::Tensor> read_state_dict(
    const std::string& path, const std::optional<std::string>& key = std::nullopt);

/// Writes the parameters and buffers of `module`: as safetensors if the path ends in
/// `.safetensors`, else as torch.save of Python writes a state_dict. torch.load(path,
/// weights_only=True) reads that, and an unwrapped model of Python loads either.
///
///     if (world.rank() == 0) tutti::save_state_dict(*net, "net.pt");
///     world.barrier();  // whoever returns may rely on the file
///
/// A DistributedDataParallel stands for its module: names have no `module.` in front. A link leads
/// to the file that is replaced, whose mode stays.
///
/// Ordering  Not collective: one rank saves for all.
/// Cost      Waits for the disk. Tensors on other devices, or in another order than row-major, are
///           copied; in a .pt parameters that are one tensor are stored once.
/// Errors    kSystem: cannot be written; what was there before stays. kInvalidArgument: a name that
///           is no UTF-8, a sparse tensor, a folder, pipe or device at the path. kUnsupported:
///           elements that the format does not know.
TUTTI_API void save_state_dict(const torch::nn::Module& module, const std::string& path);
TUTTI_API void save_state_dict(const torch::OrderedDict<std::string, torch::Tensor>& tensors,
                               const std::string& path);

}  // namespace tutti
