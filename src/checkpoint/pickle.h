// What a pickle says, as plain values: nothing is called, imported or executed.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::checkpoint {

/// A value of a pickle. It points to others, which may be shared or, through lists and
/// dictionaries, contain it: walk no further down than what is looked for.
struct PickledValue {
  enum class Kind : std::uint8_t {
    none,
    boolean,  ///< integer: 0 or 1
    integer,  ///< of 64 bits; a longer one is `unknown`
    real,
    text,        ///< UTF-8, as the file has it
    tuple,       ///< items
    list,        ///< items
    dictionary,  ///< items: key, value, key, value
    global,      ///< module and text: a class or a function by name
    call,        ///< callee was called, or an object of it was made, with the tuple in items
    persistent,  ///< item: what stands for something outside of the pickle
    unknown,     ///< bytes, long numbers
  };

  Kind kind = Kind::none;
  std::int64_t integer = 0;
  double real = 0;
  std::string_view module, text;
  PickledValue* callee = nullptr;
  std::vector<PickledValue*> items;

  bool is_global(std::string_view in_module, std::string_view name) const noexcept {
    return kind == Kind::global && module == in_module && text == name;
  }
  /// A call of that function, whatever its arguments are.
  bool is_call(std::string_view in_module, std::string_view name) const noexcept {
    return kind == Kind::call && callee->is_global(in_module, name);
  }
  /// Of a call.
  const std::vector<PickledValue*>& arguments() const noexcept { return items.front()->items; }
};

/// A pickle that has been read; texts stand in the bytes that it was read from.
struct Pickle {
  std::deque<PickledValue> values;  ///< all: they go without recursion, however they are nested
  const PickledValue* top = nullptr;
};

/// Reads the opcodes that Python's and libtorch's picklers write for a state_dict and for what
/// stands beside it in checkpoints, protocols 2 to 5. An OrderedDict is a dictionary; other
/// objects stay calls.
/// Errors    kInvalidArgument: damaged, another opcode or protocol, more than 4 Mi values.
Pickle read_pickle(std::span<const std::byte> bytes);

}  // namespace tutti::checkpoint
