// How values become bytes and come back.
//
// Decoding executes nothing it reads, checks every length against the bytes that
// are there before it reserves memory, and refuses what is left over.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/buffer.h"
#include "tutti/error.h"

namespace tutti {

template <class T>
struct ObjectCodec;

/// Where an ObjectCodec writes.
class ObjectWriter {
 public:
  /// Values one after another, each by its own codec.
  template <class... Values>
  void write(const Values&... values) {
    (ObjectCodec<Values>::write(*this, values), ...);
  }
  void bytes(std::span<const std::byte> data) {
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }
  void length(std::size_t length) {
    const auto value = static_cast<std::uint64_t>(length);
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  std::vector<std::byte> finish() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// What an ObjectCodec reads.
///
/// Errors    kInvalidArgument if the bytes end early or say what cannot be.
class ObjectReader {
 public:
  /// `what` it is, and what the error of a call says beside its text.
  explicit ObjectReader(std::span<const std::byte> data, std::string what = "an object",
                        ErrorContext context = {})
      : rest_(data), whole_(data.size()), what_(std::move(what)), context_(std::move(context)) {}

  /// Values as they were written.
  template <class... Values>
  void read(Values&... values) {
    ((values = ObjectCodec<Values>::read(*this)), ...);
  }
  std::span<const std::byte> bytes(std::size_t count) {
    if (count > rest_.size()) {
      refuse(std::to_string(count) + " more bytes are needed, " + std::to_string(rest_.size()) +
             " are left");
    }
    const std::span<const std::byte> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  /// A number of things, each of which takes at least `least_bytes` of what is left.
  std::size_t length(std::size_t least_bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
    if (value > rest_.size() / least_bytes) {
      refuse("it announces " + std::to_string(value) + " items of at least " +
             std::to_string(least_bytes) + " bytes each, " + std::to_string(rest_.size()) +
             " bytes are left");
    }
    return static_cast<std::size_t>(value);
  }
  void finish() const {
    if (!rest_.empty()) {
      refuse("the object ends here, but bytes are left over: " + std::to_string(rest_.size()));
    }
  }
  [[noreturn]] void refuse(const std::string& why) const {
    std::string text = context_.op.empty() ? std::string() : heading(context_) + ": ";
    text += "decoding " + what_ + " (" + std::to_string(whole_) + " bytes) fails at byte " +
            std::to_string(whole_ - rest_.size()) + ": " + why;
    throw Error(ErrorCode::kInvalidArgument, text + ". Do all ranks pass the same type?", context_);
  }

 private:
  std::span<const std::byte> rest_;
  std::size_t whole_;
  std::string what_;
  ErrorContext context_;
};

/// How values of a type become bytes and come back; specialise it for types of your own:
///
///     template <>
///     struct tutti::ObjectCodec<Config> {
///       static void write(ObjectWriter& to, const Config& c) { to.write(c.name, c.layers); }
///       static Config read(ObjectReader& from) { Config c; from.read(c.name, c.layers); return c;
///       }
///     };
///
/// `static constexpr std::size_t kLeastBytes`, at least 1, may say how many bytes one takes or
/// more, so that an impossible number of them is refused before memory is reserved.
template <class T>
struct ObjectCodec;

/// Numbers, enums, std::string, structs of plain data, and arrays, vectors, sets, maps, pairs,
/// tuples, optionals and variants of these. A struct's bytes travel as they lie in memory: one with
/// a pointer in it, or with members that must not have every value, needs an ObjectCodec of its
/// own.
template <class T>
concept Object = requires(ObjectWriter& to, ObjectReader& from, const T& value) {
  ObjectCodec<T>::write(to, value);
  { ObjectCodec<T>::read(from) } -> std::same_as<T>;
};

namespace detail {

/// Whether any bytes are a value of it. Of a struct's members that cannot be known.
template <class T>
inline constexpr bool is_plain = Element<T> || std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                                 (std::is_class_v<T> && std::is_aggregate_v<T> &&
                                  std::is_trivially_copyable_v<T>);
template <>
inline constexpr bool is_plain<bool> = false;
template <class T, std::size_t N>
inline constexpr bool is_plain<std::array<T, N>> = is_plain<T>;

template <class T>
concept PlainObject = is_plain<T>;

template <class T>
consteval std::size_t least_bytes_of() {
  if constexpr (requires { ObjectCodec<T>::kLeastBytes; }) {
    static_assert(ObjectCodec<T>::kLeastBytes >= 1, "tutti: kLeastBytes of a codec is at least 1");
    return ObjectCodec<T>::kLeastBytes;
  } else {
    return 1;
  }
}
template <class T>
inline constexpr std::size_t least_bytes = least_bytes_of<T>();

template <class T>
consteval void check_object() {
  static_assert(
      Object<T>,
      "tutti: this type is no object. Objects are numbers, enums, std::string, structs of "
      "plain data without constructors or private members, and std::array, vector, set, "
      "map, unordered_set, unordered_map, pair, tuple, optional and variant of these; no "
      "pointers, views or string literals: pass std::string(\"...\"). For a type of your "
      "own specialise tutti::ObjectCodec, in two lines: tutti/codec.h");
}

/// Maps: pairs, whose keys must not repeat.
template <class Map>
struct MapCodec {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;
  static constexpr std::size_t kLeastBytes = sizeof(std::uint64_t);
  static void write(ObjectWriter& to, const Map& map) {
    to.length(map.size());
    for (const auto& [key, value] : map) {
      ObjectCodec<Key>::write(to, key);
      ObjectCodec<Value>::write(to, value);
    }
  }
  static Map read(ObjectReader& from) {
    Map map;
    constexpr std::size_t kLeast = detail::least_bytes<Key> + detail::least_bytes<Value>;
    for (std::size_t left = from.length(kLeast); left > 0; --left) {
      Key key = ObjectCodec<Key>::read(from);
      if (!map.emplace(std::move(key), ObjectCodec<Value>::read(from)).second) {
        from.refuse("a key of a map stands there twice");
      }
    }
    return map;
  }
};

/// Sets: items that must not repeat.
template <class Set>
struct SetCodec {
  using Item = typename Set::key_type;
  static constexpr std::size_t kLeastBytes = sizeof(std::uint64_t);
  static void write(ObjectWriter& to, const Set& set) {
    to.length(set.size());
    for (const Item& item : set) to.write(item);
  }
  static Set read(ObjectReader& from) {
    Set set;
    for (std::size_t left = from.length(least_bytes<Item>); left > 0; --left) {
      if (!set.insert(ObjectCodec<Item>::read(from)).second) {
        from.refuse("an item of a set stands there twice");
      }
    }
    return set;
  }
};

}  // namespace detail

/// The bytes as they lie in memory: all ranks must run one program on machines of one kind.
template <detail::PlainObject T>
struct ObjectCodec<T> {
  static constexpr std::size_t kLeastBytes = sizeof(T);
  static void write(ObjectWriter& to, const T& value) {
    to.bytes(std::as_bytes(std::span(&value, 1)));
  }
  static T read(ObjectReader& from) {
    T value;
    std::memcpy(&value, from.bytes(sizeof value).data(), sizeof value);
    return value;
  }
};

template <>
struct ObjectCodec<bool> {
  static constexpr std::size_t kLeastBytes = 1;
  static void write(ObjectWriter& to, bool value) {
    ObjectCodec<std::uint8_t>::write(to, value ? 1 : 0);
  }
  static bool read(ObjectReader& from) {
    const auto value = ObjectCodec<std::uint8_t>::read(from);
    if (value > 1) from.refuse("a bool is " + std::to_string(value));
    return value == 1;
  }
};

template <Object T, std::size_t N>
  requires(!detail::PlainObject<T> && N > 0)
struct ObjectCodec<std::array<T, N>> {
  static constexpr std::size_t kLeastBytes = N * detail::least_bytes<T>;
  static void write(ObjectWriter& to, const std::array<T, N>& list) {
    for (const T& item : list) ObjectCodec<T>::write(to, item);
  }
  static std::array<T, N> read(ObjectReader& from) {
    std::array<T, N> list;
    for (T& item : list) item = ObjectCodec<T>::read(from);
    return list;
  }
};

template <Object T>
struct ObjectCodec<std::optional<T>> {
  static constexpr std::size_t kLeastBytes = 1;
  static void write(ObjectWriter& to, const std::optional<T>& value) {
    ObjectCodec<bool>::write(to, value.has_value());
    if (value) ObjectCodec<T>::write(to, *value);
  }
  static std::optional<T> read(ObjectReader& from) {
    if (!ObjectCodec<bool>::read(from)) return std::nullopt;
    return ObjectCodec<T>::read(from);
  }
};

template <>
struct ObjectCodec<std::string> {
  static constexpr std::size_t kLeastBytes = sizeof(std::uint64_t);
  static void write(ObjectWriter& to, const std::string& text) {
    to.length(text.size());
    to.bytes(std::as_bytes(std::span(text)));
  }
  static std::string read(ObjectReader& from) {
    const std::span<const std::byte> text = from.bytes(from.length(1));
    return std::string(reinterpret_cast<const char*>(text.data()), text.size());
  }
};

template <Object T>
struct ObjectCodec<std::vector<T>> {
  static constexpr std::size_t kLeastBytes = sizeof(std::uint64_t);
  static constexpr bool kAsOneRun = detail::PlainObject<T>;
  static void write(ObjectWriter& to, const std::vector<T>& list) {
    to.length(list.size());
    if constexpr (kAsOneRun) {
      to.bytes(std::as_bytes(std::span(list)));
    } else {
      for (const T& item : list) ObjectCodec<T>::write(to, item);
    }
  }
  static std::vector<T> read(ObjectReader& from) {
    const std::size_t length = from.length(detail::least_bytes<T>);
    std::vector<T> list;
    if constexpr (kAsOneRun) {
      list.resize(length);
      const std::span<const std::byte> run = from.bytes(length * sizeof(T));
      if (length > 0) std::memcpy(list.data(), run.data(), run.size());
    } else {
      list.reserve(length);
      for (std::size_t i = 0; i < length; ++i) list.push_back(ObjectCodec<T>::read(from));
    }
    return list;
  }
};

template <Object A, Object B>
  requires(!detail::PlainObject<std::pair<A, B>>)
struct ObjectCodec<std::pair<A, B>> {
  static constexpr std::size_t kLeastBytes = detail::least_bytes<A> + detail::least_bytes<B>;
  static void write(ObjectWriter& to, const std::pair<A, B>& both) {
    to.write(both.first, both.second);
  }
  static std::pair<A, B> read(ObjectReader& from) {
    A first = ObjectCodec<A>::read(from);
    return {std::move(first), ObjectCodec<B>::read(from)};
  }
};

template <Object... Parts>
  requires(sizeof...(Parts) > 0 && !detail::PlainObject<std::tuple<Parts...>>)
struct ObjectCodec<std::tuple<Parts...>> {
  static constexpr std::size_t kLeastBytes = (detail::least_bytes<Parts> + ...);
  static void write(ObjectWriter& to, const std::tuple<Parts...>& parts) {
    std::apply([&](const Parts&... part) { to.write(part...); }, parts);
  }
  static std::tuple<Parts...> read(ObjectReader& from) {
    return std::tuple<Parts...>{ObjectCodec<Parts>::read(from)...};  // braces: from left to right
  }
};

/// The number of the alternative, then its value.
template <Object... Alternatives>
struct ObjectCodec<std::variant<Alternatives...>> {
  using Variant = std::variant<Alternatives...>;
  static constexpr std::size_t kLeastBytes = sizeof(std::uint32_t);
  static void write(ObjectWriter& to, const Variant& value) {
    to.write(static_cast<std::uint32_t>(value.index()));
    std::visit([&](const auto& held) { to.write(held); }, value);
  }
  static Variant read(ObjectReader& from) {
    const auto index = ObjectCodec<std::uint32_t>::read(from);
    std::optional<Variant> value;
    read_alternative(from, index, value, std::index_sequence_for<Alternatives...>());
    if (!value) {
      from.refuse("alternative " + std::to_string(index) + " of a variant of " +
                  std::to_string(sizeof...(Alternatives)));
    }
    return *std::move(value);
  }

 private:
  template <std::size_t... kIndex>
  static void read_alternative(ObjectReader& from, std::uint32_t index,
                               std::optional<Variant>& value, std::index_sequence<kIndex...>) {
    const auto read_if = [&]<std::size_t kOne>(std::integral_constant<std::size_t, kOne>) {
      if (index != kOne) return;
      using Held = std::variant_alternative_t<kOne, Variant>;
      value.emplace(std::in_place_index<kOne>, ObjectCodec<Held>::read(from));
    };
    (read_if(std::integral_constant<std::size_t, kIndex>()), ...);
  }
};

template <Object T>
struct ObjectCodec<std::set<T>> : detail::SetCodec<std::set<T>> {};
template <Object T>
struct ObjectCodec<std::unordered_set<T>> : detail::SetCodec<std::unordered_set<T>> {};
template <Object Key, Object Value>
struct ObjectCodec<std::map<Key, Value>> : detail::MapCodec<std::map<Key, Value>> {};
template <Object Key, Object Value>
struct ObjectCodec<std::unordered_map<Key, Value>>
    : detail::MapCodec<std::unordered_map<Key, Value>> {};

template <Object T>
std::vector<std::byte> encode_object(const T& object) {
  ObjectWriter writer;
  ObjectCodec<T>::write(writer, object);
  return std::move(writer).finish();
}
/// Errors    kInvalidArgument if `data` is not exactly one T.
template <Object T>
T decode_object(std::span<const std::byte> data) {
  ObjectReader reader(data);
  T object = ObjectCodec<T>::read(reader);
  reader.finish();
  return object;
}

}  // namespace tutti
