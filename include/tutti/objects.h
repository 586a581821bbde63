// Collectives of objects: values that are encoded as bytes, of different lengths on every rank.
//
// Only bytes travel. Decoding executes nothing it reads, checks every length against the bytes that
// are there before it reserves memory, and refuses what is left over.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tutti/process_group.h"

namespace tutti {

/// Where an ObjectCodec writes.
class ObjectWriter {
 public:
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
  explicit ObjectReader(std::span<const std::byte> data) : rest_(data), whole_(data.size()) {}

  std::span<const std::byte> bytes(std::size_t count) {
    if (count > rest_.size()) refuse(std::to_string(count) + " more bytes are needed");
    const std::span<const std::byte> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  /// A number of things, each of which takes at least `least_bytes` of what is left.
  std::size_t length(std::size_t least_bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
    if (value > rest_.size() / least_bytes) {
      refuse("it announces " + std::to_string(value) + " things of " + std::to_string(least_bytes) +
             " bytes or more");
    }
    return static_cast<std::size_t>(value);
  }
  void finish() const {
    if (!rest_.empty()) refuse("nothing more is expected");
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::kInvalidArgument, "decoding an object of " + std::to_string(whole_) +
                                                 " bytes: at byte " +
                                                 std::to_string(whole_ - rest_.size()) + " " + why +
                                                 ". Do all ranks pass the same type?");
  }

 private:
  std::span<const std::byte> rest_;
  std::size_t whole_;
};

/// How values of a type become bytes and come back; specialise it for types of your own:
/// `static void write(ObjectWriter&, const T&)`, `static T read(ObjectReader&)`, and
/// `static constexpr std::size_t kLeastBytes`, at least 1.
template <class T>
struct ObjectCodec;

/// Numbers, enums, std::string, structs of plain data, and arrays, vectors, pairs, optionals and
/// maps of these. A struct's bytes travel as they lie in memory: one with a pointer in it, or with
/// members that must not have every value, needs an ObjectCodec of its own.
template <class T>
concept Object = requires(ObjectWriter& to, ObjectReader& from, const T& value) {
  ObjectCodec<T>::write(to, value);
  { ObjectCodec<T>::read(from) } -> std::same_as<T>;
  requires ObjectCodec<T>::kLeastBytes >= 1;
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
    constexpr std::size_t kLeast = ObjectCodec<Key>::kLeastBytes + ObjectCodec<Value>::kLeastBytes;
    for (std::size_t left = from.length(kLeast); left > 0; --left) {
      Key key = ObjectCodec<Key>::read(from);
      if (!map.emplace(std::move(key), ObjectCodec<Value>::read(from)).second) {
        from.refuse("a key of a map stands there twice");
      }
    }
    return map;
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
  static constexpr std::size_t kLeastBytes = N * ObjectCodec<T>::kLeastBytes;
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
    const std::size_t length = from.length(ObjectCodec<T>::kLeastBytes);
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
  static constexpr std::size_t kLeastBytes =
      ObjectCodec<A>::kLeastBytes + ObjectCodec<B>::kLeastBytes;
  static void write(ObjectWriter& to, const std::pair<A, B>& both) {
    ObjectCodec<A>::write(to, both.first);
    ObjectCodec<B>::write(to, both.second);
  }
  static std::pair<A, B> read(ObjectReader& from) {
    A first = ObjectCodec<A>::read(from);
    return {std::move(first), ObjectCodec<B>::read(from)};
  }
};

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

/// Options of the collectives of objects. All ranks give the same limit.
struct ObjectOptions {
  int root = 0;          ///< of broadcast, gather and scatter
  Timeout timeout = {};  ///< of each of the two operations that one call is made of
  std::size_t max_bytes = std::size_t{1} << 30;  ///< one encoded object; more is kInvalidArgument
};

namespace detail {

/// Refuses too long objects; all ranks see the same lengths and refuse together.
inline void check_lengths(const ProcessGroup& group, std::span<const std::uint64_t> lengths,
                          const ObjectOptions& options, std::string_view call) {
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    if (lengths[rank] <= options.max_bytes) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string(call) + " (rank " + std::to_string(group.rank()) +
                    "): the object of rank " + std::to_string(rank) + " has " +
                    std::to_string(lengths[rank]) + " bytes, more than max_bytes, " +
                    std::to_string(options.max_bytes) + ". Give a larger one on all ranks");
  }
}

/// Every rank's object as bytes, side by side, and how many each takes.
struct Encoded {
  std::vector<std::byte> bytes;
  std::vector<std::size_t> counts;
  explicit Encoded(std::span<const std::uint64_t> lengths)
      : counts(lengths.begin(), lengths.end()) {
    bytes.resize(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  }
  template <class T>
  std::vector<T> decode() const {
    std::vector<T> objects;
    std::span<const std::byte> rest(bytes);
    for (const std::size_t count : counts) {
      objects.push_back(decode_object<T>(rest.first(count)));
      rest = rest.subspan(count);
    }
    return objects;
  }
};

inline std::vector<std::uint64_t> gather_lengths(ProcessGroup& group, std::size_t own,
                                                 const ObjectOptions& options,
                                                 std::string_view call, Where where) {
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(group.world_size()));
  group.all_gather(static_cast<std::uint64_t>(own), lengths, {.timeout = options.timeout}, where);
  check_lengths(group, lengths, options, call);
  return lengths;
}

}  // namespace detail

/// Root's object to all.
///
///     std::map<std::string, std::vector<int>> plan = ...;
///     broadcast_object(world, plan);
///
/// Errors    Of broadcast. kInvalidArgument: too long, on all ranks; not a T, on those that decode.
template <Object T>
void broadcast_object(ProcessGroup& group, T& object, ObjectOptions options = {},
                      Where where = Where::current()) {
  const bool at_root = group.rank() == options.root;
  std::vector<std::byte> bytes;
  if (at_root) bytes = encode_object(object);
  const RootedOptions rooted{.root = options.root, .timeout = options.timeout};
  std::uint64_t length = bytes.size();
  group.broadcast(length, rooted, where);
  if (length > options.max_bytes) {
    std::vector<std::uint64_t> lengths(static_cast<std::size_t>(options.root) + 1);
    lengths.back() = length;
    detail::check_lengths(group, lengths, options, "broadcast_object");
  }
  bytes.resize(static_cast<std::size_t>(length));
  group.broadcast(bytes, rooted, where);
  if (!at_root) object = decode_object<T>(bytes);
}

/// Every rank's object to all, by rank. Errors as broadcast_object.
template <Object T>
std::vector<T> all_gather_object(ProcessGroup& group, const T& object, ObjectOptions options = {},
                                 Where where = Where::current()) {
  const std::vector<std::byte> own = encode_object(object);
  detail::Encoded all(
      detail::gather_lengths(group, own.size(), options, "all_gather_object", where));
  group.all_gatherv(own, all.bytes, all.counts, {.timeout = options.timeout}, where);
  return all.decode<T>();
}

/// Every rank's object to root, by rank; nothing elsewhere. Errors as broadcast_object.
template <Object T>
std::vector<T> gather_object(ProcessGroup& group, const T& object, ObjectOptions options = {},
                             Where where = Where::current()) {
  const std::vector<std::byte> own = encode_object(object);
  const std::vector<std::uint64_t> lengths =
      detail::gather_lengths(group, own.size(), options, "gather_object", where);
  const RootedOptions rooted{.root = options.root, .timeout = options.timeout};
  if (group.rank() != options.root) {
    group.gatherv(own, Buffer(), {}, rooted, where);
    return {};
  }
  detail::Encoded all(lengths);
  group.gatherv(own, all.bytes, all.counts, rooted, where);
  return all.decode<T>();
}

/// Object r of root's `objects`, one per rank (empty elsewhere), to rank r. Errors as
/// broadcast_object.
template <Object T>
T scatter_object(ProcessGroup& group, const std::vector<T>& objects, ObjectOptions options = {},
                 Where where = Where::current()) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  const bool at_root = group.rank() == options.root;
  if (at_root && objects.size() != ranks) {
    throw Error(ErrorCode::kInvalidArgument,
                "scatter_object (rank " + std::to_string(group.rank()) +
                    "): " + std::to_string(objects.size()) +
                    " objects are given, but the group has " + std::to_string(ranks) + " ranks");
  }
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> lengths(ranks);
  for (std::size_t rank = 0; rank < ranks && at_root; ++rank) {
    const std::vector<std::byte> each = encode_object(static_cast<const T&>(objects[rank]));
    lengths[rank] = each.size();
    bytes.insert(bytes.end(), each.begin(), each.end());
  }
  const RootedOptions rooted{.root = options.root, .timeout = options.timeout};
  group.broadcast(lengths, rooted, where);
  detail::check_lengths(group, lengths, options, "scatter_object");
  const std::vector<std::size_t> counts(lengths.begin(), lengths.end());
  std::vector<std::byte> own(counts[static_cast<std::size_t>(group.rank())]);
  group.scatterv(bytes, counts, own, rooted, where);
  return decode_object<T>(own);
}

}  // namespace tutti
