// Objects between ranks: values that are encoded as bytes, of different lengths on every rank. Only
// bytes travel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/codec.h"
#include "tutti/process_group.h"

namespace tutti {

/// Options of the collectives of objects. All ranks give the same limit.
struct ObjectOptions {
  int root = 0;          ///< of broadcast, gather and scatter
  Timeout timeout = {};  ///< of each operation that a call is made of: two, and a barrier where it
                         ///< refuses a length
  std::size_t max_bytes = std::size_t{1} << 30;  ///< one encoded object; more is kInvalidArgument
};
struct SendObjectOptions {
  int tag = 0;
  Timeout timeout = {};
  std::size_t max_bytes = std::size_t{1} << 30;
};
struct RecvObjectOptions {
  int tag = 0;
  Timeout timeout = {};
  MessageInfo* info = nullptr;  ///< filled in: who sent it
};

namespace detail {

/// A call with objects, for what its errors say.
struct ObjectCall {
  ProcessGroup& group;
  const char* op;
  Where where;

  ErrorContext context(int culprit) const {
    return {.op = op,
            .seq = 0,
            .rank = group.rank(),
            .culprits = {culprit},
            .host = {},
            .call_site = name_of(where)};
  }
  /// Of one operation of the call: "the lengths", or all of it.
  Purpose part(const char* what = nullptr) const {
    return Purpose::part(what != nullptr ? std::string(what) + " of " + op : op, where);
  }
  [[noreturn]] void refuse(int culprit, const std::string& text, const std::string& advice) const {
    ErrorContext about = context(culprit);
    const std::string message = heading(about) + ": " + text + ". " + advice + ".";
    throw Error(ErrorCode::kInvalidArgument, message, std::move(about));
  }
  [[noreturn]] void refuse_length(int rank, std::uint64_t length, std::size_t max_bytes) const {
    refuse(rank,
           "the object of rank " + std::to_string(rank) + " has " + std::to_string(length) +
               " bytes, more than max_bytes, " + std::to_string(max_bytes),
           "Give all ranks a larger max_bytes");
  }
  /// Refuses too long objects. All ranks see the same lengths; the first to refuse may leave the
  /// group, so all have seen them before. `owner`: whose objects they are; -1: one of each rank.
  void check_lengths(std::span<const std::uint64_t> lengths, const ObjectOptions& options,
                     int owner = -1) const {
    const auto too_long = [&](std::uint64_t length) { return length > options.max_bytes; };
    const auto found = std::find_if(lengths.begin(), lengths.end(), too_long);
    if (found == lengths.end()) return;
    const Purpose purpose = part("the end");
    try {
      group.barrier({.timeout = options.timeout}, where.with(purpose));
    } catch (const Error&) {  // whoever it was has been told, and so is this rank
    }
    const int rank = owner >= 0 ? owner : static_cast<int>(found - lengths.begin());
    refuse_length(rank, *found, options.max_bytes);
  }
  template <class T>
  T decode(std::span<const std::byte> bytes, int from) const {
    ObjectReader reader(bytes, "the object of rank " + std::to_string(from), context(from));
    T object = ObjectCodec<T>::read(reader);
    reader.finish();
    return object;
  }
};

/// Every rank's object as bytes, side by side, and how many each takes.
struct Encoded {
  std::vector<std::byte> bytes;
  std::vector<std::size_t> counts;
  explicit Encoded(std::span<const std::uint64_t> lengths)
      : counts(lengths.begin(), lengths.end()) {
    bytes.resize(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  }
  template <class T>
  std::vector<T> decode(const ObjectCall& call) const {
    std::vector<T> objects;
    std::span<const std::byte> rest(bytes);
    for (const std::size_t count : counts) {
      objects.push_back(call.decode<T>(rest.first(count), static_cast<int>(objects.size())));
      rest = rest.subspan(count);
    }
    return objects;
  }
};

inline std::vector<std::uint64_t> gather_lengths(ProcessGroup& group, std::size_t own,
                                                 const ObjectOptions& options,
                                                 const ObjectCall& call) {
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(group.world_size()));
  const Purpose for_lengths = call.part("the lengths");
  group.all_gather(static_cast<std::uint64_t>(own), lengths, {.timeout = options.timeout},
                   call.where.with(for_lengths));
  call.check_lengths(lengths, options);
  return lengths;
}

/// Of the type that a call is given by forwarding reference, to write to it.
template <class T>
consteval void check_object_variable() {
  check_object<std::remove_cvref_t<T>>();
  static_assert(!std::is_const_v<std::remove_reference_t<T>>,
                "tutti: this object is const, but the call writes to it on all ranks but root");
  static_assert(std::is_lvalue_reference_v<T>,
                "tutti: this object is a temporary, and what the call writes to it would be lost: "
                "pass a variable");
}

}  // namespace detail

/// Root's object to all.
///
///     std::map<std::string, std::vector<int>> plan = ...;
///     broadcast_object(world, plan);
///
/// Errors    Of broadcast. kInvalidArgument: too long, on all ranks; bytes that are no T, on those
///           that decode. Bytes carry no type: a long that arrives as a double is not found.
template <class Variable>
void broadcast_object(ProcessGroup& group, Variable&& object, ObjectOptions options = {},
                      Where where = Where::current()) {
  using T = std::remove_cvref_t<Variable>;
  detail::check_object_variable<Variable>();
  if constexpr (Object<T> && std::is_same_v<Variable, T&>) {
    const detail::ObjectCall call{group, "broadcast_object", where};
    const bool at_root = group.rank() == options.root;
    std::vector<std::byte> bytes;
    if (at_root) bytes = encode_object<T>(object);
    const RootedOptions rooted{.root = options.root, .timeout = options.timeout};
    const Purpose for_length = call.part("the length"), for_bytes = call.part("the bytes");
    std::uint64_t length = bytes.size();
    group.broadcast(length, rooted, where.with(for_length));
    call.check_lengths({&length, 1}, options, options.root);
    bytes.resize(static_cast<std::size_t>(length));
    group.broadcast(bytes, rooted, where.with(for_bytes));
    if (!at_root) object = call.decode<T>(bytes, options.root);
  }
}

/// Every rank's object to all, by rank. Errors as broadcast_object.
template <class T>
std::vector<T> all_gather_object(ProcessGroup& group, const T& object, ObjectOptions options = {},
                                 Where where = Where::current()) {
  detail::check_object<T>();
  if constexpr (Object<T>) {
    const detail::ObjectCall call{group, "all_gather_object", where};
    const std::vector<std::byte> own = encode_object(object);
    detail::Encoded all(detail::gather_lengths(group, own.size(), options, call));
    const Purpose for_bytes = call.part("the bytes");
    group.all_gatherv(own, all.bytes, all.counts, {.timeout = options.timeout},
                      where.with(for_bytes));
    return all.decode<T>(call);
  }
}

/// Every rank's object to root, by rank; nothing elsewhere. Errors as broadcast_object.
template <class T>
std::vector<T> gather_object(ProcessGroup& group, const T& object, ObjectOptions options = {},
                             Where where = Where::current()) {
  detail::check_object<T>();
  if constexpr (Object<T>) {
    const detail::ObjectCall call{group, "gather_object", where};
    const std::vector<std::byte> own = encode_object(object);
    const std::vector<std::uint64_t> lengths =
        detail::gather_lengths(group, own.size(), options, call);
    const RootedOptions rooted{.root = options.root, .timeout = options.timeout};
    const Purpose for_bytes = call.part("the bytes");
    if (group.rank() != options.root) {
      group.gatherv(own, Buffer(), {}, rooted, where.with(for_bytes));
      return {};
    }
    detail::Encoded all(lengths);
    group.gatherv(own, all.bytes, all.counts, rooted, where.with(for_bytes));
    return all.decode<T>(call);
  }
}

/// Object r of root's `objects`, one per rank (empty elsewhere), to rank r. Errors as
/// broadcast_object.
template <class T>
T scatter_object(ProcessGroup& group, const std::vector<T>& objects, ObjectOptions options = {},
                 Where where = Where::current()) {
  detail::check_object<T>();
  if constexpr (Object<T>) {
    const detail::ObjectCall call{group, "scatter_object", where};
    const auto ranks = static_cast<std::size_t>(group.world_size());
    const bool at_root = group.rank() == options.root;
    if (at_root && objects.size() != ranks) {
      call.refuse(group.rank(),
                  std::to_string(objects.size()) + " objects are given, but the group has " +
                      std::to_string(ranks) + " ranks",
                  "Root gives one for each rank");
    }
    std::vector<std::byte> bytes;
    std::vector<std::uint64_t> lengths(ranks);
    for (std::size_t rank = 0; rank < ranks && at_root; ++rank) {
      const std::vector<std::byte> each = encode_object(static_cast<const T&>(objects[rank]));
      lengths[rank] = each.size();
      bytes.insert(bytes.end(), each.begin(), each.end());
    }
    const RootedOptions rooted{.root = options.root, .timeout = options.timeout};
    const Purpose for_lengths = call.part("the lengths"), for_bytes = call.part("the bytes");
    group.broadcast(lengths, rooted, where.with(for_lengths));
    call.check_lengths(lengths, options, options.root);
    const std::vector<std::size_t> counts(lengths.begin(), lengths.end());
    std::vector<std::byte> own(counts[static_cast<std::size_t>(group.rank())]);
    group.scatterv(bytes, counts, own, rooted, where.with(for_bytes));
    return call.decode<T>(own, options.root);
  }
}

/// An object to rank `to`, which calls recv_object; returns when that has.
///
/// Errors    Of send. kInvalidArgument before anything is sent: too long.
template <class T>
void send_object(ProcessGroup& group, const T& object, int to, SendObjectOptions options = {},
                 Where where = Where::current()) {
  detail::check_object<T>();
  if constexpr (Object<T>) {
    const std::vector<std::byte> bytes = encode_object(object);
    const detail::ObjectCall call{group, "send_object", where};
    if (bytes.size() > options.max_bytes) {
      call.refuse_length(group.rank(), bytes.size(), options.max_bytes);
    }
    const Purpose purpose = call.part();
    group.send(bytes, to, {.tag = options.tag, .timeout = options.timeout}, where.with(purpose));
  }
}

/// An object from rank `from`, or from whichever rank sends first with this tag (kAnyRank).
///
///     auto plan = recv_object<std::map<std::string, int>>(world, 0);
///
/// Errors    Of recv. kInvalidArgument: bytes that are no T; the message is gone, the group stays
///           usable.
template <class T>
T recv_object(ProcessGroup& group, int from, RecvObjectOptions options = {},
              Where where = Where::current()) {
  detail::check_object<T>();
  if constexpr (Object<T>) {
    const detail::ObjectCall call{group, "recv_object", where};
    const Purpose purpose = call.part();
    std::vector<std::byte> bytes;
    const MessageInfo message = group.recv_resize(
        bytes, from, {.tag = options.tag, .timeout = options.timeout}, where.with(purpose));
    if (options.info != nullptr) *options.info = message;
    return call.decode<T>(bytes, message.rank);
  }
}

}  // namespace tutti
