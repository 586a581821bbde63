#include "checkpoint/state.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"
#include "tutti/error.h"

namespace tutti::checkpoint {
namespace {

constexpr std::size_t kMostShown = 100;

/// The number that a pickle of torch begins with that is not in a zip: how torch 1.5 saved.
constexpr std::string_view kLegacy = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

bool has_negative(std::span<const std::int64_t> numbers) {
  return std::any_of(numbers.begin(), numbers.end(), [](std::int64_t each) { return each < 0; });
}

/// How many elements the last one is behind the first; false: more than there are numbers for.
bool reach(const StoredTensor& tensor, std::uint64_t* last) {
  *last = 0;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    std::uint64_t step = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(tensor.sizes[i] - 1),
                               static_cast<std::uint64_t>(tensor.strides[i]), &step) ||
        __builtin_add_overflow(*last, step, last)) {
      return false;
    }
  }
  return true;
}

void check_name(const std::string& name) {
  try {
    (void)nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::kInvalidArgument, "the name " + shown(name) + " is no UTF-8");
  }
}

}  // namespace

std::optional<std::uint64_t> count_elements(std::span<const std::int64_t> sizes) {
  if (sizes.size() > kMostDimensions || has_negative(sizes)) return std::nullopt;
  std::int64_t count = 1;
  for (const std::int64_t each : sizes) {  // also those beside a zero must have a product
    if (__builtin_mul_overflow(count, std::max<std::int64_t>(each, 1), &count)) return std::nullopt;
  }
  const bool is_empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  return is_empty ? 0 : static_cast<std::uint64_t>(count);
}

bool place(Extent storage, std::uint64_t offset, StoredTensor* tensor) {
  const std::optional<std::uint64_t> count = count_elements(tensor->sizes);
  if (!count || tensor->sizes.size() != tensor->strides.size() || has_negative(tensor->strides)) {
    return false;
  }
  tensor->elements = {storage.at, 0};
  tensor->storage = storage;
  if (*count == 0) return true;
  const std::uint64_t element_bytes = size_of(tensor->dtype);
  const std::uint64_t storage_count = storage.byte_count / element_bytes;
  std::uint64_t last = 0;
  if (!reach(*tensor, &last)) return false;
  if (offset >= storage_count || last >= storage_count - offset) return false;
  tensor->elements = {storage.at + offset * element_bytes, (last + 1) * element_bytes};
  return true;
}

std::vector<std::int64_t> row_major(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

std::string shown(std::string_view text) {
  std::string result;
  for (const char letter : text.substr(0, kMostShown)) {
    const bool is_control = static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f;
    result += is_control ? '?' : letter;
  }
  if (text.size() > kMostShown) result += "...";
  return result;
}

State read_state(const File& file, const std::optional<std::string>& key) {
  std::array<std::byte, 16> bytes{};
  const std::size_t count = std::min<std::uint64_t>(file.byte_count(), bytes.size());
  file.read(0, std::span(bytes).first(count));
  const std::string_view begin(reinterpret_cast<const char*>(bytes.data()), count);
  if (begin.starts_with("PK\x03\x04")) return read_torch_file(file, key);
  if (begin.substr(std::min<std::size_t>(count, 8), 1) == "{") {
    if (key) {
      throw Error(ErrorCode::kInvalidArgument,
                  "is a safetensors file: it has no key '" + shown(*key) + "'; give none");
    }
    return read_safetensors(file);
  }
  if (begin.starts_with(kLegacy)) {
    throw Error(ErrorCode::kInvalidArgument,
                "is in the format of before torch 1.6. Save it again, in Python: "
                "torch.save(torch.load(FILE, weights_only=True), FILE)");
  }
  throw Error(ErrorCode::kInvalidArgument,
              "is neither a zip, as torch.save of Python makes it, nor a safetensors file");
}

void write_state(const std::string& path, std::span<const TensorToStore> tensors) {
  for (const TensorToStore& tensor : tensors) check_name(tensor.name);
  Draft draft(path);
  if (path.ends_with(".safetensors")) {
    write_safetensors(draft, tensors);
  } else {
    write_torch_file(draft, tensors);
  }
  draft.complete();
}

}  // namespace tutti::checkpoint
