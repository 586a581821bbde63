// A pickle is a program for a machine with a stack: opcodes push values, and make of those on top
// a larger one. A *mark* says where the items of a tuple, list or dictionary begin. The *memo*
// holds values that come again. Format: Python's pickletools.
#include "checkpoint/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "checkpoint/bytes.h"
#include "tutti/error.h"

namespace tutti::checkpoint {
namespace {

using Kind = PickledValue::Kind;
using Value = PickledValue;

constexpr std::size_t kMostValues = std::size_t{1} << 22;
constexpr std::uint8_t kStop = '.', kNewestProtocol = 5;

struct Machine {
  const std::span<const std::byte> all;
  std::span<const std::byte> rest = all;
  Pickle pickle = {};
  std::vector<Value*> stack = {}, memo = {};
  std::vector<std::size_t> marks = {};  // how many values stood on the stack

  [[noreturn]] void fail(std::string_view what) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("is damaged, or holds no state_dict: its pickle {} (byte {})", what,
                            all.size() - rest.size()));
  }
  void check_count(std::size_t count) const {
    if (count >= kMostValues) fail(fmt::format("holds more than {} values", kMostValues));
  }

  // What comes next in the bytes.
  std::span<const std::byte> take_bytes(std::uint64_t count) {
    if (count > rest.size()) fail("is cut short");
    return std::exchange(rest, rest.subspan(count)).first(count);
  }
  std::string_view take_text(std::uint64_t count) {
    const auto bytes = take_bytes(count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string_view take_line() {
    const auto end = std::find(rest.begin(), rest.end(), std::byte{'\n'});
    if (end == rest.end()) fail("is cut short");
    const std::string_view line = take_text(static_cast<std::uint64_t>(end - rest.begin()));
    take_bytes(1);
    return line;
  }
  template <class Number>
  Number take() {
    return number_at<Number>(take_bytes(sizeof(Number)), 0);
  }

  // The stack.
  void push_value(Value* value) {
    check_count(stack.size());
    stack.push_back(value);
  }
  Value& push(Kind kind) {
    check_count(pickle.values.size());
    Value& value = pickle.values.emplace_back();
    value.kind = kind;
    push_value(&value);
    return value;
  }
  void push_integer(std::int64_t number) { push(Kind::integer).integer = number; }
  void push_boolean(bool is_true) { push(Kind::boolean).integer = is_true ? 1 : 0; }
  void push_text(std::string_view text) { push(Kind::text).text = text; }
  void push_tuple(std::vector<Value*> items) { push(Kind::tuple).items = std::move(items); }
  void push_bytes(std::uint64_t count) {
    take_bytes(count);
    push(Kind::unknown);
  }

  std::size_t count_above_mark() const { return stack.size() - (marks.empty() ? 0 : marks.back()); }
  Value* top() const {
    if (count_above_mark() == 0) fail("takes values that are not there");
    return stack.back();
  }
  std::vector<Value*> pop(std::size_t count) {
    if (count > count_above_mark()) fail("takes values that are not there");
    const auto begin = stack.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<Value*> values(begin, stack.end());
    stack.erase(begin, stack.end());
    return values;
  }
  Value* pop() { return pop(1).front(); }
  void mark() {
    check_count(marks.size());
    marks.push_back(stack.size());
  }
  std::vector<Value*> pop_marked() {
    if (marks.empty()) fail("takes values that are not there");
    std::vector<Value*> values = pop(count_above_mark());
    marks.pop_back();
    return values;
  }

  // The memo. Python numbers without gaps.
  void put(std::size_t index) {
    if (index > memo.size()) fail("remembers values out of order");
    if (index == memo.size()) {
      check_count(index);
      memo.push_back(nullptr);
    }
    memo[index] = top();
  }
  void get(std::size_t index) {
    if (index >= memo.size()) fail("recalls a value that is not there");
    push_value(memo[index]);
  }

  // What opcodes do with all that.
  void push_float();
  void push_long(std::uint64_t byte_count);
  void push_global(std::string_view module, std::string_view name);
  void push_stack_global();
  void push_call();
  void add(Kind kind, const std::vector<Value*>& items);
  void check_protocol(std::uint8_t protocol) const;
};

void Machine::push_float() {  // big-endian
  std::array<std::byte, sizeof(double)> bytes{};
  std::ranges::reverse_copy(take_bytes(bytes.size()), bytes.begin());
  push(Kind::real).real = std::bit_cast<double>(bytes);
}

void Machine::push_long(std::uint64_t byte_count) {
  const auto bytes = take_bytes(byte_count);
  if (bytes.size() > sizeof(std::int64_t)) {
    push(Kind::unknown);
    return;
  }
  const bool is_negative = !bytes.empty() && (bytes.back() & std::byte{0x80}) != std::byte{0};
  std::int64_t number = is_negative ? -1 : 0;
  if (!bytes.empty()) std::memcpy(&number, bytes.data(), bytes.size());
  push_integer(number);
}

void Machine::push_global(std::string_view module, std::string_view name) {
  Value& value = push(Kind::global);
  value.module = module;
  value.text = name;
}

void Machine::push_stack_global() {
  const auto names = pop(2);
  if (names[0]->kind != Kind::text || names[1]->kind != Kind::text) fail("names no class");
  push_global(names[0]->text, names[1]->text);
}

void Machine::push_call() {
  const auto parts = pop(2);
  Value *callee = parts[0], *arguments = parts[1];
  if (arguments->kind != Kind::tuple) fail("calls without arguments");
  if (callee->is_global("collections", "OrderedDict") && arguments->items.empty()) {
    push(Kind::dictionary);
    return;
  }
  Value& call = push(Kind::call);
  call.callee = callee;
  call.items = {arguments};  // not a copy: many calls may share one large tuple
}

/// To an object of which nothing is known it adds nothing.
void Machine::add(Kind kind, const std::vector<Value*>& items) {
  Value* target = top();
  if (target->kind == Kind::call) return;
  const bool is_in_pairs = items.size() % 2 == 0;
  if (target->kind != kind || (kind == Kind::dictionary && !is_in_pairs)) {
    fail("adds to what cannot take it");
  }
  target->items.insert(target->items.end(), items.begin(), items.end());
}

void Machine::check_protocol(std::uint8_t protocol) const {
  if (protocol < 2 || protocol > kNewestProtocol) {
    fail(fmt::format("is of protocol {}; 2 to {} are read", protocol, kNewestProtocol));
  }
}

struct Opcode {
  std::uint8_t code;
  void (*perform)(Machine& machine);
};

constexpr Opcode kOpcodes[] = {
    {0x80, [](Machine& m) { m.check_protocol(m.take<std::uint8_t>()); }},
    {0x95, [](Machine& m) { m.take<std::uint64_t>(); }},  // how long a frame is
    {'(', [](Machine& m) { m.mark(); }},
    {'N', [](Machine& m) { m.push(Kind::none); }},
    {0x88, [](Machine& m) { m.push_boolean(true); }},
    {0x89, [](Machine& m) { m.push_boolean(false); }},
    {'J', [](Machine& m) { m.push_integer(m.take<std::int32_t>()); }},
    {'K', [](Machine& m) { m.push_integer(m.take<std::uint8_t>()); }},
    {'M', [](Machine& m) { m.push_integer(m.take<std::uint16_t>()); }},
    {0x8a, [](Machine& m) { m.push_long(m.take<std::uint8_t>()); }},
    {0x8b, [](Machine& m) { m.push_long(m.take<std::uint32_t>()); }},
    {'G', [](Machine& m) { m.push_float(); }},
    {0x8c, [](Machine& m) { m.push_text(m.take_text(m.take<std::uint8_t>())); }},
    {'X', [](Machine& m) { m.push_text(m.take_text(m.take<std::uint32_t>())); }},
    {0x8d, [](Machine& m) { m.push_text(m.take_text(m.take<std::uint64_t>())); }},
    {'C', [](Machine& m) { m.push_bytes(m.take<std::uint8_t>()); }},
    {'B', [](Machine& m) { m.push_bytes(m.take<std::uint32_t>()); }},
    {0x8e, [](Machine& m) { m.push_bytes(m.take<std::uint64_t>()); }},
    {')', [](Machine& m) { m.push_tuple({}); }},
    {0x85, [](Machine& m) { m.push_tuple(m.pop(1)); }},
    {0x86, [](Machine& m) { m.push_tuple(m.pop(2)); }},
    {0x87, [](Machine& m) { m.push_tuple(m.pop(3)); }},
    {'t', [](Machine& m) { m.push_tuple(m.pop_marked()); }},
    {']', [](Machine& m) { m.push(Kind::list); }},
    {'a', [](Machine& m) { m.add(Kind::list, m.pop(1)); }},
    {'e', [](Machine& m) { m.add(Kind::list, m.pop_marked()); }},
    {'}', [](Machine& m) { m.push(Kind::dictionary); }},
    {'s', [](Machine& m) { m.add(Kind::dictionary, m.pop(2)); }},
    {'u', [](Machine& m) { m.add(Kind::dictionary, m.pop_marked()); }},
    {'c',
     [](Machine& m) {
       const std::string_view module = m.take_line();
       m.push_global(module, m.take_line());
     }},
    {0x93, [](Machine& m) { m.push_stack_global(); }},
    {'R', [](Machine& m) { m.push_call(); }},
    {0x81, [](Machine& m) { m.push_call(); }},    // a new object of a class
    {'b', [](Machine& m) { m.pop(), m.top(); }},  // its attributes; an OrderedDict's: _metadata
    {'Q',
     [](Machine& m) {
       Value* id = m.pop();
       m.push(Kind::persistent).items = {id};
     }},
    {'q', [](Machine& m) { m.put(m.take<std::uint8_t>()); }},
    {'r', [](Machine& m) { m.put(m.take<std::uint32_t>()); }},
    {0x94, [](Machine& m) { m.put(m.memo.size()); }},
    {'h', [](Machine& m) { m.get(m.take<std::uint8_t>()); }},
    {'j', [](Machine& m) { m.get(m.take<std::uint32_t>()); }},
};

constexpr auto kPerform = [] {
  std::array<void (*)(Machine&), 256> table{};
  for (const Opcode& opcode : kOpcodes) table[opcode.code] = opcode.perform;
  return table;
}();

}  // namespace

Pickle read_pickle(std::span<const std::byte> bytes) {
  Machine machine{bytes};
  for (auto code = machine.take<std::uint8_t>(); code != kStop;
       code = machine.take<std::uint8_t>()) {
    if (kPerform[code] == nullptr) {
      machine.fail(fmt::format("has opcode 0x{:02x}, which no state_dict needs", code));
    }
    kPerform[code](machine);
  }
  const bool is_one = machine.stack.size() == 1 && machine.marks.empty();
  if (!is_one) machine.fail("does not end with one value");
  machine.pickle.top = machine.stack.front();
  return std::move(machine.pickle);
}

}  // namespace tutti::checkpoint
