#include "launch/messages.h"

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "net/frame.h"

namespace tutti::launch {
namespace {

constexpr std::size_t kLongest = kMaxOrderBytes;

constexpr auto fields_of(const agent::RankExit*) {
  return std::tuple(&agent::RankExit::rank, &agent::RankExit::wait_status, &agent::RankExit::ours,
                    &agent::RankExit::culprits, &agent::RankExit::disagreement,
                    &agent::RankExit::failure, &agent::RankExit::doing, &agent::RankExit::error,
                    &agent::RankExit::untold);
}
constexpr auto fields_of(const agent::UntoldFailure*) {
  return std::tuple(&agent::UntoldFailure::code, &agent::UntoldFailure::culprits,
                    &agent::UntoldFailure::text, &agent::UntoldFailure::is_told);
}
template <class Message>
  requires requires { Message::fields(); }
constexpr auto fields_of(const Message*) { return Message::fields(); }

/// Writes the fields of a message one after the other.
class FieldWriter {
 public:
  explicit FieldWriter(std::string* out) : out_(out) {}

  void put(int value) { out_.u32(static_cast<std::uint32_t>(value)); }
  void put(bool value) { out_.u32(value ? 1 : 0); }
  template <class Enum>
    requires std::is_enum_v<Enum>
  void put(Enum value) { out_.u32(static_cast<std::uint32_t>(value)); }
  void put(const std::string& value) { out_.bytes(value); }
  template <class Value>
  void put(const std::vector<Value>& values) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (const Value& value : values) put(value);
  }
  void put(const Environment& variables) {
    out_.u32(static_cast<std::uint32_t>(variables.size()));
    for (const auto& [name, value] : variables) {
      put(name);
      put(value);
    }
  }
  template <class Value>
  void put(const std::optional<Value>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  template <class Struct>
    requires requires(const Struct* s) { fields_of(s); }
  void put(const Struct& value) {
    std::apply([&](const auto... field) { (put(value.*field), ...); },
               fields_of(static_cast<const Struct*>(nullptr)));
  }

 private:
  net::ByteWriter out_;
};

/// Reads them. Once something was wrong nothing more is read.
class FieldReader {
 public:
  explicit FieldReader(std::string_view in) : in_(in) {}
  bool is_whole() const { return is_right_ && in_.at_end(); }

  void get(int& value) { value = static_cast<int>(in_.u32()); }
  void get(bool& value) { value = number_to(1) != 0; }
  void get(ErrorCode& value) { get_to(value, ErrorCode::kCancelled); }
  void get(Stream& value) { get_to(value, Stream::err); }
  void get(BindTo& value) { get_to(value, BindTo::numa); }
  void get(MapBy& value) { get_to(value, MapBy::numa); }
  void get(std::string& value) { value = in_.bytes(kLongest); }
  template <class Value>
  void get(std::vector<Value>& values) {
    // Every value takes bytes: what is announced and is not there ends the loop.
    for (std::uint32_t left = in_.u32(); left > 0 && is_right(); --left) get(values.emplace_back());
  }
  void get(Environment& variables) {
    for (std::uint32_t left = in_.u32(); left > 0 && is_right(); --left) {
      std::string name;
      get(name);
      get(variables[std::move(name)]);
    }
  }
  template <class Value>
  void get(std::optional<Value>& value) {
    bool has_value = false;
    get(has_value);
    if (has_value) get(value.emplace());
  }
  template <class Struct>
    requires requires(const Struct* s) { fields_of(s); }
  void get(Struct& value) {
    std::apply([&](const auto... field) { (get(value.*field), ...); },
               fields_of(static_cast<const Struct*>(nullptr)));
  }

 private:
  template <class Enum>
  void get_to(Enum& value, Enum last) {
    value = static_cast<Enum>(number_to(static_cast<std::uint32_t>(last)));
  }
  bool is_right() const { return is_right_ && in_.ok(); }
  std::uint32_t number_to(std::uint32_t last) {
    const std::uint32_t number = in_.u32();
    is_right_ = is_right_ && number <= last;
    return is_right_ ? number : 0;
  }

  net::ByteReader in_;
  bool is_right_ = true;
};

/// What a reader takes for granted.
bool is_sound(const Prepare& order) {
  if (order.command.empty() || order.ranks.empty()) return false;
  if (order.prefix_columns.size() != order.ranks.size()) return false;
  const bool ascends = std::adjacent_find(order.ranks.begin(), order.ranks.end(),
                                          std::greater_equal<>()) == order.ranks.end();
  return ascends && order.ranks.front() >= 0 && order.ranks.back() < order.world_size &&
         order.host_index >= 0 && order.host_index < order.host_count;
}

/// The type of a frame is the place of its message in the variant, from 1.
template <class Messages>
std::string encode_any(const Messages& message) {
  net::Frame frame{.type = static_cast<std::uint32_t>(message.index()) + 1, .body = {}};
  FieldWriter writer(&frame.body);
  std::visit([&](const auto& which) { writer.put(which); }, message);
  std::string bytes;
  net::append_frame(&bytes, frame);
  return bytes;
}

template <class Messages, std::size_t kIndex = 0>
std::optional<Messages> decode_any(std::uint32_t type, std::string_view body) {
  if constexpr (kIndex < std::variant_size_v<Messages>) {
    if (type != kIndex + 1) return decode_any<Messages, kIndex + 1>(type, body);
    FieldReader reader(body);
    std::variant_alternative_t<kIndex, Messages> message;
    reader.get(message);
    if (reader.is_whole()) return Messages(std::in_place_index<kIndex>, std::move(message));
  }
  return std::nullopt;
}

}  // namespace

std::optional<int> rank_in(const Report& report) {
  return std::visit(
      [](const auto& which) -> std::optional<int> {
        if constexpr (requires { which.rank; }) return which.rank;
        if constexpr (requires { which.exit; }) return which.exit.rank;
        if constexpr (requires { which.about; }) return which.about;
        return std::nullopt;
      },
      report);
}

std::string encode(const Order& order) { return encode_any(order); }
std::string encode(const Note& note) { return encode_any(note); }
std::string encode(const Report& report) { return encode_any(report); }

std::optional<Order> decode_order(std::uint32_t type, std::string_view body) {
  auto order = decode_any<Order>(type, body);
  const auto* const prepare = order ? std::get_if<Prepare>(&*order) : nullptr;
  if (prepare != nullptr && !is_sound(*prepare)) return std::nullopt;
  return order;
}
std::optional<Note> decode_note(std::uint32_t type, std::string_view body) {
  return decode_any<Note>(type, body);
}
std::optional<Report> decode_report(std::uint32_t type, std::string_view body) {
  return decode_any<Report>(type, body);
}

}  // namespace tutti::launch
