#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/bytes.h"
#include "tutti/error.h"

namespace tutti::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMostHeaderBytes = std::uint64_t{32} << 20;
constexpr const char* kMetadata = "__metadata__";
constexpr std::size_t kLengthBytes = 8, kAlignment = 8;

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }
[[noreturn]] void refuse_damaged(const std::string& what) {
  refuse("is damaged: its safetensors header " + what);
}

constexpr std::pair<std::string_view, DType> kElementTypes[] = {
    {"BOOL", DType::bool_},      {"U8", DType::u8},         {"I8", DType::i8},
    {"I16", DType::i16},         {"I32", DType::i32},       {"I64", DType::i64},
    {"U16", DType::u16},         {"U32", DType::u32},       {"U64", DType::u64},
    {"F16", DType::f16},         {"BF16", DType::bf16},     {"F32", DType::f32},
    {"F64", DType::f64},         {"C64", DType::complex64}, {"F8_E4M3", DType::f8_e4m3},
    {"F8_E5M2", DType::f8_e5m2},
};

/// Objects in objects in the one of all names, and lists in those: no deeper, and no key twice.
Json parse_header(std::string_view text) {
  constexpr int kDeepest = 3;
  std::set<std::string> names, fields;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDeepest) refuse_damaged("is nested too deep");
    if (event == Json::parse_event_t::object_start && depth == 1) fields.clear();
    if (event != Json::parse_event_t::key) return true;
    const auto& key = value.get_ref<const std::string&>();
    if (!(depth == 1 ? names : fields).insert(key).second) {
      refuse("has the name " + shown(key) + " twice");
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception&) {
    refuse_damaged("is no JSON");
  }
}

std::optional<std::vector<std::int64_t>> read_numbers(const Json& list) {
  if (!list.is_array()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const Json& each : list) {
    if (!each.is_number_unsigned()) return std::nullopt;
    numbers.push_back(each.get<std::int64_t>());
  }
  return numbers;
}

/// `data`: the elements of all tensors.
StoredTensor read_tensor(const std::string& name, const Json& entry, Extent data) {
  const auto fail = [&] { refuse_damaged("says of " + shown(name) + " what no tensor is"); };
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    fail();
  }
  const auto sizes = read_numbers(entry["shape"]), ends = read_numbers(entry["data_offsets"]);
  if (!sizes || !ends || ends->size() != 2 || (*ends)[0] < 0 || (*ends)[1] < (*ends)[0] ||
      static_cast<std::uint64_t>((*ends)[1]) > data.byte_count) {
    fail();
  }
  StoredTensor tensor;
  tensor.name = name;
  tensor.elements = {data.at + static_cast<std::uint64_t>((*ends)[0]),
                     static_cast<std::uint64_t>((*ends)[1] - (*ends)[0])};
  tensor.storage = tensor.elements;
  const auto& type_name = entry["dtype"].get_ref<const std::string&>();
  const auto* type = std::ranges::find(kElementTypes, std::string_view(type_name),
                                       &std::pair<std::string_view, DType>::first);
  if (type == std::end(kElementTypes)) {
    tensor.problem = "has elements of " + shown(type_name) + ", which are not read";
    return tensor;
  }
  tensor.dtype = type->second;
  tensor.sizes = *sizes;
  std::uint64_t bytes = 0;
  const auto count = count_elements(tensor.sizes);
  if (!count || __builtin_mul_overflow(*count, size_of(tensor.dtype), &bytes) ||
      bytes != tensor.elements.byte_count) {
    fail();
  }
  tensor.strides = row_major(tensor.sizes);
  return tensor;
}

/// Each byte belongs to one tensor.
void check_cover(const std::vector<StoredTensor>& tensors, Extent data) {
  std::vector<Extent> extents;
  for (const StoredTensor& tensor : tensors) extents.push_back(tensor.elements);
  std::ranges::sort(extents, {}, [](Extent each) { return std::pair(each.at, each.byte_count); });
  std::uint64_t end = data.at;
  for (const Extent each : extents) {
    if (each.at != end) refuse_damaged("leaves gaps between tensors, or lets them overlap");
    end += each.byte_count;
  }
  if (end != data.at + data.byte_count) {
    refuse_damaged("does not fit the file's length: is it cut short?");
  }
}

std::string_view name_in_file(DType dtype) {
  const auto* found =
      std::ranges::find(kElementTypes, dtype, &std::pair<std::string_view, DType>::second);
  if (found == std::end(kElementTypes)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("safetensors knows no elements of {}; a .pt does", name_of(dtype)));
  }
  return found->first;
}

}  // namespace

State read_safetensors(const File& file) {
  const std::uint64_t header_bytes = number_at<std::uint64_t>(file.read({0, kLengthBytes}), 0);
  if (header_bytes > kMostHeaderBytes || header_bytes > file.byte_count() - kLengthBytes) {
    refuse_damaged(fmt::format("has {} bytes; the file has {}, and {} are read", header_bytes,
                               file.byte_count(), kMostHeaderBytes));
  }
  const auto bytes = file.read({kLengthBytes, header_bytes});
  const Json header = parse_header({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!header.is_object() || header.size() > kMostTensors) refuse_damaged("is no list of tensors");
  const Extent data{kLengthBytes + header_bytes, file.byte_count() - kLengthBytes - header_bytes};
  State state;
  for (const auto& [name, entry] : header.items()) {
    if (name != kMetadata) {
      state.tensors.push_back(read_tensor(name, entry, data));
      continue;
    }
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string() || key.size() > kMostTextBytes) continue;
      const auto& text = value.get_ref<const std::string&>();
      if (text.size() <= kMostTextBytes && state.values.size() < kMostBeside)
        state.values[key] = text;
    }
  }
  check_cover(state.tensors, data);
  return state;
}

void write_safetensors(Draft& draft, std::span<const TensorToStore> tensors) {
  std::vector<const TensorToStore*> in_order;  // the widest elements first, so that all are aligned
  for (const TensorToStore& tensor : tensors) in_order.push_back(&tensor);
  std::ranges::stable_sort(in_order, std::ranges::greater(),
                           [](const TensorToStore* each) { return size_of(each->dtype); });
  Json header = {{kMetadata, {{"format", "pt"}}}};
  std::size_t end = 0;
  for (const TensorToStore* tensor : in_order) {
    if (tensor->name == kMetadata) {
      throw Error(ErrorCode::kInvalidArgument, "safetensors keeps the name __metadata__ to itself");
    }
    const std::size_t begin = std::exchange(end, end + tensor->bytes.size());
    header[tensor->name] = {{"dtype", name_in_file(tensor->dtype)},
                            {"shape", tensor->sizes},
                            {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  std::string length;
  append_number(&length, std::uint64_t{text.size()});
  draft.write(length + text);
  for (const TensorToStore* tensor : in_order) draft.write(tensor->bytes);
}

}  // namespace tutti::checkpoint
