#include "tutti/torch/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/state.h"
#include "ddp/torch/registered.h"
#include "ddp/torch/tensor.h"

namespace tutti {
namespace {

using c10::str;
using checkpoint::File;
using checkpoint::shown;
using checkpoint::StoredTensor;
using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

constexpr std::string_view kPrefix = "module.";
/// Of BatchNorm, which had none before torch 0.4.1: torchvision's weights of then are still about.
constexpr std::string_view kMayBeMissing = "num_batches_tracked";

/// Does `body`, whose errors get to know which call and file they are about.
template <class Body>
auto about(const char* call, const std::string& path, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error.code(), str(call, ": ", shown(path), " ", error.what()));
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kInvalidArgument,
                str(call, ": ", shown(path), ": ", error.what_without_backtrace()));
  }
}

/// The parameters and buffers by name; a wrapper's are those of its module.
Tensors tensors_of(const torch::nn::Module& of) {
  const torch::nn::Module& module = ddp::unwrapped(of);
  Tensors tensors = module.named_parameters();
  for (const auto& buffer : module.named_buffers()) tensors.insert(buffer.key(), buffer.value());
  return tensors;
}

torch::Tensor read_bytes(const File& file, checkpoint::Extent extent) {
  const at::Tensor bytes = at::empty({static_cast<std::int64_t>(extent.byte_count)}, at::kByte);
  file.read(extent.at, {static_cast<std::byte*>(bytes.data_ptr()), extent.byte_count});
  return bytes;
}

/// `bytes`: what the file has at `from`, with all elements of the tensor. They are shared, never
/// copied: a tensor may repeat an element any number of times.
torch::Tensor view_of(const torch::Tensor& bytes, checkpoint::Extent from,
                      const StoredTensor& stored) {
  at::Tensor tensor = at::empty({0}, ddp::scalar_of_dtype(stored.dtype));
  const auto offset = (stored.elements.at - from.at) / size_of(stored.dtype);
  tensor.set_(bytes.storage(), static_cast<std::int64_t>(offset), stored.sizes, stored.strides);
  if (stored.is_conjugated) tensor = tensor.conj();
  return stored.is_negated ? tensor._neg_view() : tensor;
}

torch::Tensor read_tensor(const File& file, const StoredTensor& stored) {
  return view_of(read_bytes(file, stored.elements), stored.elements, stored);
}

/// Tensors that share a storage in the file share it in memory, as in Python: together they take no
/// more than the file does.
class StorageReader {
 public:
  explicit StorageReader(const File& file) : file_(file) {}
  torch::Tensor read(const StoredTensor& stored) {
    const checkpoint::Extent storage = stored.storage;
    const auto [found, is_new] = storages_.try_emplace({storage.at, storage.byte_count});
    if (is_new) {
      if (storage.byte_count > bytes_left_) {
        throw Error(ErrorCode::kInvalidArgument, "is damaged: its storages overlap");
      }
      bytes_left_ -= storage.byte_count;
      found->second = read_bytes(file_, storage);
    }
    return view_of(found->second, storage, stored);
  }

 private:
  const File& file_;
  std::uint64_t bytes_left_ = file_.byte_count();
  std::map<std::pair<std::uint64_t, std::uint64_t>, torch::Tensor> storages_;
};

/// What does not fit, by kind, in words that stay short.
class Misfits {
 public:
  void add(const char* kind, std::string what) { by_kind_[kind].push_back(std::move(what)); }
  bool is_empty() const { return by_kind_.empty(); }
  bool has(const char* kind) const { return by_kind_.contains(kind); }
  std::string words() const {
    std::string words;
    for (const auto& [kind, all] : by_kind_) {
      words += str("\n  ", kind, ": ");
      for (std::size_t i = 0; i < std::min(all.size(), kMost); ++i) {
        words += (i == 0 ? "" : ", ") + all[i];
      }
      if (all.size() > kMost) words += str(" and ", all.size() - kMost, " more");
    }
    return words;
  }

 private:
  static constexpr std::size_t kMost = 10;
  std::map<std::string, std::vector<std::string>> by_kind_;
};

constexpr const char *kMissing = "missing in the file", *kUnexpected = "unknown to the model",
                     *kUnreadable = "not to be read", *kShape = "of another shape",
                     *kDtype = "of another dtype";

std::string remedies(const Misfits& misfits) {
  std::string words;
  if (misfits.has(kMissing) || misfits.has(kUnexpected)) {
    words += "\nWith {.strict = false} names that one side alone has are left out.";
  }
  if (misfits.has(kDtype)) {
    words += "\nWith {.convert_dtypes = true} they are converted to the model's.";
  }
  return words;
}

/// A tensor of the model and what the file has for it.
struct Pair {
  torch::Tensor to;
  const StoredTensor* from;
};

void check_pair(const Pair& pair, bool converts, Misfits* misfits) {
  const StoredTensor& from = *pair.from;
  if (!from.problem.empty()) {
    misfits->add(kUnreadable, str(shown(from.name), " ", from.problem));
  } else if (const at::IntArrayRef sizes = from.sizes; pair.to.sizes() != sizes) {
    misfits->add(kShape, str(shown(from.name), " ", sizes, ", in the model ", pair.to.sizes()));
  } else if (const auto type = ddp::scalar_of_dtype(from.dtype);
             pair.to.scalar_type() != type && !converts) {
    misfits->add(kDtype,
                 str(shown(from.name), " ", type, ", in the model ", pair.to.scalar_type()));
  }
}

/// How many letters of the file's names the model does not have.
std::size_t count_prefix(const std::vector<StoredTensor>& stored, const Tensors& tensors) {
  const auto has_prefix = [](std::string_view name) { return name.starts_with(kPrefix); };
  const bool file_has = std::ranges::all_of(stored, has_prefix, &StoredTensor::name);
  const bool model_has = std::ranges::all_of(tensors.keys(), has_prefix);
  return file_has && !model_has ? kPrefix.size() : 0;
}

/// All that the file and the model have in common.
std::vector<Pair> pair_up(const std::vector<StoredTensor>& stored, const Tensors& tensors,
                          bool converts, LoadedStateDict* loaded, Misfits* misfits) {
  const std::size_t prefix = count_prefix(stored, tensors);
  std::vector<Pair> pairs;
  std::set<std::string> left;
  for (const std::string& name : tensors.keys()) left.insert(name);
  for (const StoredTensor& from : stored) {
    const std::string name = from.name.substr(prefix);
    if (left.erase(name) == 0) {
      loaded->unexpected_keys.push_back(from.name);
      continue;
    }
    pairs.push_back({tensors[name], &from});
    check_pair(pairs.back(), converts, misfits);
  }
  for (const std::string& name : tensors.keys()) {
    if (left.contains(name) && !name.ends_with(kMayBeMissing)) loaded->missing_keys.push_back(name);
  }
  return pairs;
}

LoadedStateDict load(torch::nn::Module& module, const std::string& path,
                     const LoadStateOptions& options) {
  const File file(path);
  const checkpoint::State state = read_state(file, options.key);
  LoadedStateDict loaded;
  loaded.values = state.values;
  Misfits misfits;
  const auto pairs =
      pair_up(state.tensors, tensors_of(module), options.convert_dtypes, &loaded, &misfits);
  if (options.strict) {
    for (const auto& name : loaded.missing_keys) misfits.add(kMissing, shown(name));
    for (const auto& name : loaded.unexpected_keys) misfits.add(kUnexpected, shown(name));
  }
  if (!misfits.is_empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "does not fit the model; nothing was loaded" + misfits.words() + remedies(misfits));
  }
  const at::NoGradGuard no_grad;
  for (const Pair& pair : pairs) {
    torch::Tensor to = pair.to;
    to.copy_(read_tensor(file, *pair.from));
  }
  return loaded;
}

void save(const Tensors& tensors, const std::string& path) {
  std::vector<torch::Tensor> alive;
  std::vector<checkpoint::TensorToStore> to_store;
  for (const auto& item : tensors) {
    at::Tensor dense = item.value();
    if (dense.defined() && dense.layout() == at::kStrided && !dense.is_quantized()) {
      dense = dense.detach().cpu().resolve_conj().resolve_neg().contiguous();
    }
    const DType dtype = ddp::dtype_of_tensor(dense, item.key());
    to_store.push_back({item.key(),
                        dtype,
                        dense.sizes().vec(),
                        {static_cast<const std::byte*>(dense.data_ptr()), dense.nbytes()}});
    alive.push_back(dense);
  }
  checkpoint::write_state(path, to_store);
}

}  // namespace

LoadedStateDict load_state_dict(torch::nn::Module& module, const std::string& path,
                                const LoadStateOptions& options) {
  return about("load_state_dict", path, [&] { return load(module, path, options); });
}

Tensors read_state_dict(const std::string& path, const std::optional<std::string>& key) {
  return about("read_state_dict", path, [&] {
    const File file(path);
    StorageReader reader(file);
    Misfits misfits;
    Tensors tensors;
    for (const StoredTensor& stored : read_state(file, key).tensors) {
      if (stored.problem.empty()) {
        tensors.insert(stored.name, reader.read(stored));
      } else {
        misfits.add(kUnreadable, str(shown(stored.name), " ", stored.problem));
      }
    }
    if (!misfits.is_empty()) {
      throw Error(ErrorCode::kInvalidArgument, "is not whole" + misfits.words());
    }
    return tensors;
  });
}

void save_state_dict(const torch::nn::Module& module, const std::string& path) {
  save_state_dict(tensors_of(module), path);
}

void save_state_dict(const Tensors& tensors, const std::string& path) {
  about("save_state_dict", path, [&] { save(tensors, path); });
}

}  // namespace tutti
