// A state_dict as it lies in a file: names, and where which elements are. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/file.h"
#include "tutti/types.h"

namespace tutti::checkpoint {

/// An entry of a state_dict. Its elements lie inside of the file: that has been checked.
struct StoredTensor {
  std::string name;
  std::string problem;  ///< why it cannot be read, "is a sparse tensor"; then the rest says nothing
  DType dtype = DType::f32;
  std::vector<std::int64_t> sizes, strides;  ///< strides in elements, none negative
  Extent elements;                           ///< from the first element to the end of the last
  Extent storage;                            ///< in which they lie, as those of other tensors may
  bool is_conjugated = false, is_negated = false;  ///< what the bytes hold is not yet
};

using Value = std::variant<bool, std::int64_t, double, std::string>;

struct State {
  std::vector<StoredTensor> tensors;    ///< each name once; at most kMostTensors
  std::map<std::string, Value> values;  ///< numbers and short texts beside it, kMostBeside at most
};
inline constexpr std::size_t kMostTensors = std::size_t{1} << 18, kMostBeside = 1024,
                             kMostTextBytes = 4096, kMostDimensions = 64;

/// The state_dict in a file: the outermost dictionary, or the one under `key`; where no key is
/// given, the only one that can be meant.
/// Errors    kInvalidArgument: not of this kind, damaged, ambiguous, no such key, with the remedy.
///           kSystem: not to be opened or read.
State read_state(const File& file, const std::optional<std::string>& key);

/// A tensor to be written, in row-major order. Several may have the same bytes.
struct TensorToStore {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> sizes;
  std::span<const std::byte> bytes;
};

/// Writes a file of them: safetensors if the path ends so, else as torch.save.
/// Errors    kSystem: cannot be written. kInvalidArgument: a name that is no UTF-8, or reserved.
///           kUnsupported: elements that the format does not know.
void write_state(const std::string& path, std::span<const TensorToStore> tensors);

/// A name or a text of a file as it may stand in a message: short, and printable.
std::string shown(std::string_view text);

/// How many elements a tensor of these sizes has; nothing: no tensor has such sizes.
std::optional<std::uint64_t> count_elements(std::span<const std::int64_t> sizes);

/// The strides of a tensor in row-major order whose elements can be counted.
std::vector<std::int64_t> row_major(std::span<const std::int64_t> sizes);

/// Says where the elements of a tensor are that begins `offset` elements after the storage does.
/// False: sizes or strides that no tensor has, or elements outside of the storage.
bool place(Extent storage, std::uint64_t offset, StoredTensor* tensor);

}  // namespace tutti::checkpoint
