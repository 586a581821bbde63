#include "checkpoint/pickled_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "checkpoint/bytes.h"
#include "tutti/error.h"

namespace tutti::checkpoint {
namespace {

using Kind = PickledValue::Kind;
using Pickled = PickledValue;
using Items = std::vector<Pickled*>;

constexpr std::string_view kRebuild = "torch._utils";

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }

/// How Python writes element types: as the class of a storage, or, where there is none, as a dtype.
struct ElementType {
  DType dtype;
  std::string_view storage;  ///< empty: an untyped one
  std::string_view name;
};
constexpr ElementType kElementTypes[] = {
    {DType::bool_, "BoolStorage", "bool"},
    {DType::u8, "ByteStorage", "uint8"},
    {DType::i8, "CharStorage", "int8"},
    {DType::i16, "ShortStorage", "int16"},
    {DType::i32, "IntStorage", "int32"},
    {DType::i64, "LongStorage", "int64"},
    {DType::u16, "", "uint16"},
    {DType::u32, "", "uint32"},
    {DType::u64, "", "uint64"},
    {DType::f16, "HalfStorage", "float16"},
    {DType::bf16, "BFloat16Storage", "bfloat16"},
    {DType::f32, "FloatStorage", "float32"},
    {DType::f64, "DoubleStorage", "float64"},
    {DType::complex64, "ComplexFloatStorage", "complex64"},
    {DType::complex128, "ComplexDoubleStorage", "complex128"},
    {DType::f8_e4m3, "", "float8_e4m3fn"},
    {DType::f8_e5m2, "", "float8_e5m2"},
};

const ElementType& element_type_of(DType dtype) {
  return *std::ranges::find(kElementTypes, dtype, &ElementType::dtype);
}

/// `global`: a class of storages, or a dtype.
const ElementType* find_element_type(const Pickled& global, std::string_view ElementType::*name) {
  if (global.kind != Kind::global || global.module != "torch" || global.text.empty()) {
    return nullptr;
  }
  const auto* found = std::ranges::find(kElementTypes, global.text, name);
  return found == std::end(kElementTypes) ? nullptr : found;
}

// ---- A tensor ----

/// What a value is, for whoever expected a tensor.
std::string name_kind(const Pickled& value) {
  if (value.kind != Kind::call) return "is no tensor";
  if (value.callee->kind != Kind::global) return "is an object of an unknown kind";
  const std::string_view name = value.callee->text;
  if (name == "_rebuild_sparse_tensor") return "is a sparse tensor: save to_dense() of it";
  if (name == "_rebuild_qtensor") return "is a quantised tensor: save dequantize() of it";
  if (name.starts_with("_rebuild_meta_tensor")) return "is a meta tensor: it has no values";
  return fmt::format("is an object of {}.{}", shown(value.callee->module), shown(name));
}

bool is_rebuilt(const Pickled& value) {
  return value.is_call(kRebuild, "_rebuild_tensor_v2") ||
         value.is_call(kRebuild, "_rebuild_tensor_v3");
}

/// A Parameter is its data; a tensor is itself.
const Pickled& data_of(const Pickled& value) {
  const bool is_parameter = value.is_call(kRebuild, "_rebuild_parameter") ||
                            value.is_call(kRebuild, "_rebuild_parameter_with_state");
  return is_parameter && !value.arguments().empty() ? *value.arguments().front() : value;
}

/// Also one that cannot be read.
bool is_tensor(const Pickled& value) {
  const Pickled& data = data_of(value);
  return data.kind == Kind::call && data.callee->kind == Kind::global &&
         data.callee->module == kRebuild && data.callee->text.starts_with("_rebuild_");
}

bool read_numbers(const Pickled& value, std::vector<std::int64_t>* numbers) {
  if (value.kind != Kind::tuple || value.items.size() > kMostDimensions) return false;
  for (const Pickled* item : value.items) {
    if (item->kind != Kind::integer) return false;
    numbers->push_back(item->integer);
  }
  return true;
}

/// {"conj": True, "neg": True}: what libtorch does when the elements are used.
bool read_flags(const Pickled& value, StoredTensor* tensor) {
  if (value.kind == Kind::none) return true;
  constexpr std::size_t kMost = 16;  // a name and a value each; any number of tensors share them
  if (value.kind != Kind::dictionary || value.items.size() > kMost) return false;
  for (std::size_t i = 0; i < value.items.size(); i += 2) {
    const Pickled &name = *value.items[i], &is_set = *value.items[i + 1];
    if (name.kind != Kind::text || is_set.kind != Kind::boolean) return false;
    if (name.text == "conj") tensor->is_conjugated = is_set.integer != 0;
    if (name.text == "neg") tensor->is_negated = is_set.integer != 0;
  }
  return true;
}

/// ("storage", class, key, device, count)
struct StorageId {
  const Pickled* type = nullptr;
  std::string_view key;
};
std::optional<StorageId> storage_id_of(const Pickled& value) {
  if (value.kind != Kind::persistent || value.items.front()->kind != Kind::tuple) return {};
  const Items& parts = value.items.front()->items;
  const bool is_right = parts.size() >= 5 && parts[0]->kind == Kind::text &&
                        parts[0]->text == "storage" && parts[1]->kind == Kind::global &&
                        parts[2]->kind == Kind::text && parts[2]->text.size() <= kMostTextBytes;
  if (!is_right) return {};
  return StorageId{parts[1], parts[2]->text};
}

/// Fills in the tensor, or says in words what hinders.
std::string read_tensor(const Pickled& value, const FindStorage& find_storage,
                        StoredTensor* tensor) {
  const std::string_view kDamaged = "is damaged";
  const Pickled& data = data_of(value);
  if (!is_rebuilt(data)) return name_kind(data);
  // (storage, offset, sizes, strides, requires_grad, hooks, [v3: dtype,] [flags])
  const bool has_dtype = data.callee->text == "_rebuild_tensor_v3";
  const std::size_t flags_at = has_dtype ? 7 : 6;
  const Items& parts = data.arguments();
  if (parts.size() < flags_at || parts[1]->kind != Kind::integer || parts[1]->integer < 0) {
    return std::string(kDamaged);
  }
  const std::optional<StorageId> storage = storage_id_of(*parts[0]);
  if (!storage || !read_numbers(*parts[2], &tensor->sizes) ||
      !read_numbers(*parts[3], &tensor->strides) ||
      (parts.size() > flags_at && !read_flags(*parts[flags_at], tensor))) {
    return std::string(kDamaged);
  }
  const Pickled& type = has_dtype ? *parts[6] : *storage->type;
  const ElementType* element_type =
      find_element_type(type, has_dtype ? &ElementType::name : &ElementType::storage);
  if (element_type == nullptr) {
    return fmt::format("has elements of {}.{}, which are not read", shown(type.module),
                       shown(type.text));
  }
  tensor->dtype = element_type->dtype;
  if (tensor->is_negated && tensor->dtype == DType::bool_) return std::string(kDamaged);
  const std::optional<Extent> extent = find_storage(storage->key);
  if (!extent) return fmt::format("has no storage: data/{} is missing", shown(storage->key));
  const bool is_inside = place(*extent, static_cast<std::uint64_t>(parts[1]->integer), tensor);
  return is_inside ? "" : "reaches beyond its storage, which is damaged or cut short";
}

// ---- The state_dict among what is there ----

/// The state of an object that is no tensor, as Python's modules may add one.
bool is_extra(const Pickled& key) {
  return key.kind == Kind::text && key.text.ends_with("_extra_state");
}

bool is_state_dict(const Pickled& value) {
  if (value.kind != Kind::dictionary) return false;
  bool has_tensor = false;
  for (std::size_t i = 0; i < value.items.size(); i += 2) {
    const Pickled &key = *value.items[i], &entry = *value.items[i + 1];
    if (key.kind != Kind::text) return false;
    if (entry.kind == Kind::dictionary && !is_extra(key)) return false;
    has_tensor |= is_tensor(entry);
  }
  return has_tensor || value.items.empty();
}

/// The keys of a dictionary, for messages.
std::string list_keys(const Pickled& dictionary) {
  constexpr std::size_t kMost = 10;
  std::string list;
  const std::size_t count = dictionary.items.size() / 2;
  for (std::size_t i = 0; i < std::min(count, kMost); ++i) {
    const Pickled& key = *dictionary.items[2 * i];
    list += (i == 0 ? "'" : ", '") + shown(key.kind == Kind::text ? key.text : "?") + "'";
  }
  if (count > kMost) list += fmt::format(" and {} more", count - kMost);
  return list.empty() ? "none" : list;
}

const Pickled& under_key(const Pickled& top, const std::string& key) {
  for (std::size_t i = 0; i < top.items.size(); i += 2) {
    const Pickled& name = *top.items[i];
    if (name.kind != Kind::text || name.text != key) continue;
    const Pickled& value = *top.items[i + 1];
    if (value.kind == Kind::dictionary) return value;
    refuse(fmt::format("has under the key '{}' no dictionary; its keys are {}", shown(key),
                       list_keys(top)));
  }
  refuse(fmt::format("has no key '{}'; its keys are {}", shown(key), list_keys(top)));
}

const Pickled& find_state_dict(const Pickled& top) {
  if (is_state_dict(top)) return top;
  const Pickled* found = nullptr;
  std::unordered_set<const Pickled*> looked_at;  // any number of keys may share one
  for (std::size_t i = 0; i < top.items.size(); i += 2) {
    const Pickled& value = *top.items[i + 1];
    if (value.items.empty() || !looked_at.insert(&value).second) continue;
    if (!is_state_dict(value)) continue;
    if (found != nullptr) {
      refuse(fmt::format("has more than one state_dict; say which by `key`: its keys are {}",
                         list_keys(top)));
    }
    found = &value;
  }
  if (found == nullptr) refuse(fmt::format("has no state_dict; its keys are {}", list_keys(top)));
  return *found;
}

std::optional<Value> plain_value(const Pickled& value) {
  if (value.kind == Kind::boolean) return value.integer != 0;
  if (value.kind == Kind::integer) return value.integer;
  if (value.kind == Kind::real) return value.real;
  if (value.kind != Kind::text || value.text.size() > kMostTextBytes) return std::nullopt;
  return std::string(value.text);
}

std::map<std::string, Value> values_of(const Pickled& top) {
  std::map<std::string, Value> values;
  for (std::size_t i = 0; i < top.items.size() && values.size() < kMostBeside; i += 2) {
    const Pickled& key = *top.items[i];
    if (key.kind != Kind::text || key.text.size() > kMostTextBytes) continue;
    if (const auto value = plain_value(*top.items[i + 1])) values[std::string(key.text)] = *value;
  }
  return values;
}

void check_names(const Pickled& dictionary) {
  if (dictionary.items.size() / 2 > kMostTensors) {
    refuse(fmt::format("has more than {} entries in its state_dict", kMostTensors));
  }
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < dictionary.items.size(); i += 2) {
    const Pickled& key = *dictionary.items[i];
    if (key.kind != Kind::text) {
      refuse("has a state_dict with a key that is no text: is it an optimizer's?");
    }
    if (!names.insert(key.text).second) refuse("has the name " + shown(key.text) + " twice");
  }
}

// ---- Writing ----

void append_text(std::string* pickle, std::string_view text) {
  *pickle += 'X';
  append_number(pickle, static_cast<std::uint32_t>(text.size()));
  *pickle += text;
}

void append_integer(std::string* pickle, std::int64_t number) {
  *pickle += "\x8a\x08";
  append_number(pickle, number);
}

void append_tuple(std::string* pickle, std::span<const std::int64_t> numbers) {
  *pickle += '(';
  for (const std::int64_t number : numbers) append_integer(pickle, number);
  *pickle += 't';
}

void append_tensor(std::string* pickle, const TensorToStore& tensor, std::string_view storage) {
  const ElementType& type = element_type_of(tensor.dtype);
  const bool is_typed = !type.storage.empty();
  *pickle +=
      is_typed ? "ctorch._utils\n_rebuild_tensor_v2\n((" : "ctorch._utils\n_rebuild_tensor_v3\n((";
  append_text(pickle, "storage");
  *pickle +=
      is_typed ? fmt::format("ctorch\n{}\n", type.storage) : "ctorch.storage\nUntypedStorage\n";
  append_text(pickle, storage);
  append_text(pickle, "cpu");
  append_integer(pickle,
                 static_cast<std::int64_t>(is_typed ? tensor.bytes.size() / size_of(tensor.dtype)
                                                    : tensor.bytes.size()));
  *pickle += "tQ";
  append_integer(pickle, 0);
  append_tuple(pickle, tensor.sizes);
  append_tuple(pickle, row_major(tensor.sizes));
  *pickle +=
      "\x89"
      "ccollections\nOrderedDict\n)R";
  if (!is_typed) *pickle += fmt::format("ctorch\n{}\n", type.name);
  *pickle += "tR";
}

}  // namespace

State state_of(const Pickle& pickle, const std::optional<std::string>& key,
               const FindStorage& find_storage) {
  const Pickled& top = *pickle.top;
  if (top.kind != Kind::dictionary) {
    refuse(
        fmt::format("holds no dictionary: what it holds {}. In Python: "
                    "torch.save(model.state_dict(), FILE)",
                    name_kind(top)));
  }
  const Pickled& dictionary = key ? under_key(top, *key) : find_state_dict(top);
  check_names(dictionary);
  State state;
  for (std::size_t i = 0; i < dictionary.items.size(); i += 2) {
    StoredTensor& tensor = state.tensors.emplace_back();
    tensor.name = dictionary.items[i]->text;
    tensor.problem = read_tensor(*dictionary.items[i + 1], find_storage, &tensor);
  }
  if (&dictionary != &top) state.values = values_of(top);
  return state;
}

std::string pickle_of(std::span<const TensorToStore> tensors,
                      std::span<const std::string> storages) {
  std::string pickle =
      "\x80\x02"
      "ccollections\nOrderedDict\n)R(";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    append_text(&pickle, tensors[i].name);
    append_tensor(&pickle, tensors[i], storages[i]);
  }
  return pickle + "u.";
}

}  // namespace tutti::checkpoint
