#include "checkpoint/torch_file.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <tuple>

#include "checkpoint/pickled_state.h"
#include "checkpoint/zip.h"
#include "tutti/error.h"

namespace tutti::checkpoint {
namespace {

using Entries = std::map<std::string, ZipEntry>;

constexpr std::uint64_t kMostPickleBytes = std::uint64_t{64} << 20;

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }

/// The folder in which everything is; torch names it after the file.
std::string folder_of(const Entries& entries) {
  constexpr std::string_view kPickle = "/data.pkl";
  for (const auto& [name, entry] : entries) {
    const std::size_t slash = name.find('/');
    if (slash != std::string::npos && std::string_view(name).substr(slash) == kPickle) {
      return name.substr(0, slash + 1);
    }
  }
  refuse("is a zip without data.pkl: torch.save of Python has not made it");
}

/// Nothing: there is no such entry.
std::optional<Extent> find(const Entries& entries, const std::string& name) {
  const auto found = entries.find(name);
  if (found == entries.end()) return std::nullopt;
  if (found->second.is_compressed) {
    refuse(shown(name) +
           " in its zip is compressed, which torch.save never does. Save it again, in Python: "
           "torch.save(torch.load(FILE, weights_only=True), FILE)");
  }
  return found->second.content;
}

void check_kind(const File& file, const Entries& entries, const std::string& folder) {
  if (entries.contains(folder + "constants.pkl")) {
    refuse(
        "is an archive of C++'s torch::save or of torch.jit, not a state_dict: torch::load reads "
        "it");
  }
  const std::optional<Extent> order = find(entries, folder + "byteorder");
  if (!order) return;  // torch before 2.1
  constexpr std::string_view kLittle = "little";
  if (order->byte_count == kLittle.size()) {
    const auto bytes = file.read(*order);
    if (std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == kLittle) {
      return;
    }
  }
  refuse(
      "is of a machine with another order of bytes. Save it again, in Python on this machine: "
      "torch.save(torch.load(FILE, weights_only=True), FILE)");
}

}  // namespace

State read_torch_file(const File& file, const std::optional<std::string>& key) {
  const Entries entries = read_zip(file);
  const std::string folder = folder_of(entries);
  check_kind(file, entries, folder);
  const Extent where = *find(entries, folder + "data.pkl");
  if (where.byte_count > kMostPickleBytes) {
    refuse(
        fmt::format("has a data.pkl of {} bytes, {} are read", where.byte_count, kMostPickleBytes));
  }
  const auto bytes = file.read(where);
  return state_of(read_pickle(bytes), key, [&](std::string_view storage) {
    return find(entries, fmt::format("{}data/{}", folder, storage));
  });
}

void write_torch_file(Draft& draft, std::span<const TensorToStore> tensors) {
  std::map<std::tuple<const std::byte*, std::size_t, DType>, std::string> keys;
  std::vector<std::string> storages;
  std::vector<std::span<const std::byte>> bytes;
  for (const TensorToStore& tensor : tensors) {
    const auto [key, is_new] = keys.try_emplace(
        {tensor.bytes.data(), tensor.bytes.size(), tensor.dtype}, std::to_string(bytes.size()));
    if (is_new) bytes.push_back(tensor.bytes);
    storages.push_back(key->second);
  }
  ZipWriter zip(draft);
  zip.add("archive/data.pkl", pickle_of(tensors, storages));
  zip.add("archive/byteorder", "little");
  for (std::size_t i = 0; i < bytes.size(); ++i)
    zip.add(fmt::format("archive/data/{}", i), bytes[i]);
  zip.add("archive/version", "3\n");
  zip.finish();
}

}  // namespace tutti::checkpoint
