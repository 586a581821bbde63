#include "group/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/of_rank.h"

namespace tutti::group {

std::string elements_text(std::size_t count) {
  return fmt::format("{} element{}", count, count == 1 ? "" : "s");
}

namespace {

using Objection = std::optional<std::string>;

/// What `op` reads and writes on `rank`, as multiples of count; 0: nothing.
struct Extent {
  std::size_t input = 0;
  std::size_t output = 0;
};

Extent extent_of(const Request& request, int rank, int group_size) {
  const auto all = static_cast<std::size_t>(group_size);
  const bool at_root = request.root == rank;
  switch (request.op) {
    case Op::send:
      return {1, 0};
    case Op::recv:
      return {0, 1};
    case Op::broadcast:
    case Op::all_reduce:
    case Op::scan:
    case Op::exclusive_scan:
      return {1, 1};
    case Op::reduce:
      return {1, at_root ? 1u : 0u};
    case Op::gather:
      return {1, at_root ? all : 0u};
    case Op::all_gather:
      return {1, all};
    case Op::scatter:
      return {at_root ? all : 0u, 1};
    case Op::reduce_scatter:
      return {all, 1};
    case Op::all_to_all:
      return {all, all};
    case Op::barrier:
      return {0, 0};
  }
  return {};
}

bool has_root(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::scatter;
}

Objection check_ranks(const Request& request, int group_size) {
  const int given = root_or_peer(request);
  if (has_root(request.op) || is_message(request.op)) {
    const bool from_any = request.op == Op::recv && given == kAnyRank;
    const bool nobody = is_message(request.op) && given == kNoRank;
    if (!from_any && !nobody && (given < 0 || given >= group_size)) {
      return fmt::format("{} {} is out of range: the group has ranks 0 to {}",
                         has_root(request.op) ? "root" : "peer", given, group_size - 1);
    }
  }
  if (is_message(request.op) && request.message.tag < 0) {
    return fmt::format("tag {} is negative: tags begin at 0{}", request.message.tag,
                       request.op == Op::recv
                           ? ", and a recv names one (the rank it comes from may be kAnyRank)"
                           : "");
  }
  return {};
}

/// What can be wrong with a buffer.
enum class Wrong : std::uint8_t {
  nothing,
  too_long,
  dtype,
  is_struct,
  part_of_item,
  count,
  is_null
};

/// Whether the buffer holds `parts` times the count of `request`; of a v-variant see check_uneven.
/// Every call asks it twice: no words, no division.
template <class AnyBuffer>
Wrong wrong_with(const AnyBuffer& buffer, const Request& request, std::size_t parts) noexcept {
  if (parts == 0) return Wrong::nothing;
  if (buffer.count > kMaxElements) return Wrong::too_long;
  if (buffer.dtype != request.dtype) return Wrong::dtype;
  if (buffer.is_struct && reduces(request.op)) return Wrong::is_struct;
  if (!request.uneven) {
    if (buffer.per_item > 1 && request.count % buffer.per_item != 0) return Wrong::part_of_item;
    std::size_t needed = 0;
    const bool wraps = __builtin_mul_overflow(request.count, parts, &needed);
    if (wraps || needed != buffer.count) return Wrong::count;
  }
  if (buffer.data == nullptr && buffer.count > 0) return Wrong::is_null;
  return Wrong::nothing;
}

Objection say(Wrong wrong, std::string_view name, const ConstBuffer& buffer, const Request& request,
              std::size_t parts) {
  switch (wrong) {
    case Wrong::nothing:
      break;
    case Wrong::too_long:
      return fmt::format(
          "{} has {} elements, which no memory holds; the count may have been negative", name,
          buffer.count);
    case Wrong::dtype:
      return fmt::format("input is of {}, output of {}: they must be of one dtype",
                         tutti::name_of(request.input.dtype), tutti::name_of(request.output.dtype));
    case Wrong::is_struct:
      return fmt::format("{} is of structs or enums, which can be moved but not combined", name);
    case Wrong::part_of_item:
      return fmt::format(
          "{} is made of items of {} elements (a struct's are its bytes), and {} for each rank are "
          "no whole number of them",
          name, buffer.per_item, request.count);
    case Wrong::count:
      if (parts == 1) {
        return fmt::format("{} has {}, but {} {} needed", name, elements_text(buffer.count),
                           request.count, request.count == 1 ? "is" : "are");
      }
      return fmt::format("{} has {}, but {} are needed: {} for each of {} ranks", name,
                         elements_text(buffer.count), request.count * parts, request.count, parts);
    case Wrong::is_null:
      return fmt::format("{} is null, but {} {} needed", name, elements_text(buffer.count),
                         buffer.count == 1 ? "is" : "are");
  }
  return {};
}

Objection check_buffers(const Request& request, Extent extent) {
  const Wrong input = wrong_with(request.input, request, extent.input);
  if (input != Wrong::nothing) return say(input, "input", request.input, request, extent.input);
  const Wrong output = wrong_with(request.output, request, extent.output);
  if (output != Wrong::nothing) {
    return say(output, "output", request.output, request, extent.output);
  }
  return {};
}

/// Which buffers of a v-variant have a part for every rank, and so counts.
struct Counted {
  bool input = false;
  bool output = false;
};

Counted counted(const Request& request, int rank) {
  const bool at_root = request.root == rank;
  switch (request.op) {
    case Op::all_gather:
      return {false, true};
    case Op::gather:
      return {false, at_root};
    case Op::scatter:
      return {at_root, false};
    case Op::reduce_scatter:
      return {true, false};
    case Op::all_to_all:
      return {true, true};
    case Op::send:
    case Op::recv:
    case Op::broadcast:
    case Op::all_reduce:
    case Op::reduce:
    case Op::barrier:
    case Op::scan:
    case Op::exclusive_scan:
      return {};
  }
  return {};
}

Objection check_counts(std::string_view name, std::span<const std::size_t> counts,
                       const ConstBuffer& buffer, int group_size) {
  if (counts.size() != static_cast<std::size_t>(group_size)) {
    return fmt::format("{} needs one count for each of the {} ranks of the group, and has {}", name,
                       group_size, counts.size());
  }
  std::size_t sum = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] > kMaxElements || (sum += counts[rank]) > kMaxElements) {
      return fmt::format(
          "{}: {} elements for rank {} are more than memory holds; the count may have been "
          "negative",
          name, counts[rank], rank);
    }
  }
  if (buffer.count == sum) return {};
  return fmt::format("{} has {}, but its counts add up to {}", name, elements_text(buffer.count),
                     sum);
}

Objection check_uneven(const Request& request, int rank, int group_size) {
  if (!request.uneven) return {};
  const auto [input, output] = counted(request, rank);
  if (input) {
    if (auto wrong = check_counts("input", request.send_counts, request.input, group_size)) {
      return wrong;
    }
  }
  if (output) {
    if (auto wrong = check_counts("output", request.recv_counts, request.output, group_size)) {
      return wrong;
    }
  }
  const auto own = static_cast<std::size_t>(rank);
  if (input && output && request.send_counts[own] != request.recv_counts[own]) {
    return fmt::format("the counts give {} from rank {} to itself, and {} at its other end",
                       elements_text(request.send_counts[own]), rank, request.recv_counts[own]);
  }
  if (input == output) return {};
  // The own part, on the side that has no counts.
  const std::size_t due = (input ? request.send_counts : request.recv_counts)[own];
  const std::size_t count = input ? request.output.count : request.input.count;
  if (count == due) return {};
  return fmt::format("{} has {}, but the counts give {} to rank {}", input ? "output" : "input",
                     elements_text(count), due, rank);
}

/// How the buffers of an operation may share memory.
enum class InPlace : std::uint8_t { same, input_in_output, output_in_input, never };

InPlace in_place_of(const Request& request, Extent extent, int rank) {
  if (!request.uneven) {
    return extent.input == extent.output  ? InPlace::same
           : extent.input < extent.output ? InPlace::input_in_output
                                          : InPlace::output_in_input;
  }
  const auto [input, output] = counted(request, rank);
  return input == output ? InPlace::never
         : output        ? InPlace::input_in_output
                         : InPlace::output_in_input;
}

/// Where the own part begins in the buffer that holds everybody's.
std::size_t own_offset_bytes(const Request& request, int rank) {
  const auto own = static_cast<std::ptrdiff_t>(rank);
  if (!request.uneven) {
    return request.count * static_cast<std::size_t>(rank) * size_of(request.dtype);
  }
  const auto counts = request.send_counts.empty() ? request.recv_counts : request.send_counts;
  return std::accumulate(counts.begin(), counts.begin() + own, std::size_t{0}) *
         size_of(request.dtype);
}

Objection check_overlap(const Request& request, Extent extent, int rank) {
  if (extent.input == 0 || extent.output == 0) return {};
  const std::size_t input_bytes = request.input.byte_count();
  const std::size_t output_bytes = request.output.byte_count();
  if (input_bytes == 0 || output_bytes == 0) return {};
  const auto input = reinterpret_cast<std::uintptr_t>(request.input.data);
  const auto output = reinterpret_cast<std::uintptr_t>(request.output.data);
  if (input + input_bytes <= output || output + output_bytes <= input) return {};
  std::string_view way;
  switch (in_place_of(request, extent, rank)) {
    case InPlace::same:
      if (input == output) return {};
      way = "pass one buffer, or two that do not overlap";
      break;
    case InPlace::input_in_output:
      if (input == output + own_offset_bytes(request, rank)) return {};
      way = "input must be the own part of output, or lie outside it";
      break;
    case InPlace::output_in_input:
      if (output == input + own_offset_bytes(request, rank)) return {};
      way = "output must be the own part of input, or lie outside it";
      break;
    case InPlace::never:
      way = "pass two buffers that do not overlap";
      break;
  }
  return fmt::format("input and output overlap, but not in place: {}", way);
}

}  // namespace

Objection objection(const Request& request, int rank, int group_size, bool blocking) {
  for (const DType dtype : {request.dtype, request.input.dtype, request.output.dtype}) {
    if (static_cast<std::size_t>(dtype) >= kDTypeCount) {
      return fmt::format("dtype {} does not exist", static_cast<int>(dtype));
    }
  }
  const Extent extent = extent_of(request, rank, group_size);
  if (!blocking && request.input.is_temporary && request.input.count > 0) {
    return std::string(
        "the input is a temporary, which is gone before an asynchronous operation has ended; keep "
        "it in a variable until its Work is done");
  }
  if (auto wrong = check_ranks(request, group_size)) return wrong;
  if (auto wrong = check_buffers(request, extent)) return wrong;
  if (auto wrong = check_uneven(request, rank, group_size)) return wrong;
  if (auto wrong = check_overlap(request, extent, rank)) return wrong;
  if (extent.input != 0 && extent.output != 0 && !(request.input.device == request.output.device)) {
    return fmt::format("input is on {}, output on {}: they must be on one device",
                       tutti::name_of(request.input.device), tutti::name_of(request.output.device));
  }
  if (extent.input != 0 && extent.output != 0 &&
      request.input.stream.handle != request.output.stream.handle) {
    return "input and output have different streams: an operation is ordered with one of them";
  }
  if (request.arrive.budget() < std::chrono::nanoseconds(0)) {
    return fmt::format("the timeout is negative: {:g} s",
                       std::chrono::duration<double>(request.arrive.budget()).count());
  }
  return {};
}

Objection overlap_objection(std::span<const Request> messages) {
  struct Range {
    std::uintptr_t begin, end;
    bool written;
    std::size_t index;
  };
  std::vector<Range> ranges;
  for (const Request& message : messages) {
    const bool written = message.op == Op::recv;
    const ConstBuffer buffer = written ? message.output : message.input;
    if (buffer.byte_count() == 0 || message.message.peer == kNoRank) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer.data);
    ranges.push_back({begin, begin + buffer.byte_count(), written,
                      static_cast<std::size_t>(&message - messages.data())});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const Range* furthest = nullptr;          // of all that begin earlier, the one that ends last
  const Range* furthest_written = nullptr;  // the same of those that are written
  const auto further = [](const Range* known, const Range& range) {
    return known == nullptr || range.end > known->end ? &range : known;
  };
  for (const Range& range : ranges) {
    const Range* const other = range.written ? furthest : furthest_written;
    if (other != nullptr && range.begin < other->end) {
      const auto [first, second] = std::minmax(other->index, range.index);
      return fmt::format(
          "messages {} and {} of those posted together share memory, and one of them is received "
          "into it: use two buffers that do not overlap",
          first, second);
    }
    furthest = further(furthest, range);
    if (range.written) furthest_written = further(furthest_written, range);
  }
  return {};
}

Objection objection(std::span<const int> ranks, int group_size) {
  if (ranks.empty()) return "a group needs at least one rank";
  std::vector<bool> taken(static_cast<std::size_t>(group_size), false);
  for (const int rank : ranks) {
    if (rank < 0 || rank >= group_size) {
      return fmt::format("rank {} is out of range: the parent has ranks 0 to {}", rank,
                         group_size - 1);
    }
    if (of_rank(taken, rank)) return fmt::format("rank {} is given twice", rank);
    of_rank(taken, rank) = true;
  }
  return {};
}

std::vector<int> culprits_of_new_group(std::span<const int> ranks, std::span<const int> of_new,
                                       std::span<const int> of_parent) {
  std::vector<int> named, left_of_parent;
  for (const int culprit : of_new) named.push_back(ranks[static_cast<std::size_t>(culprit)]);
  for (const int culprit : of_parent) {
    if (std::find(ranks.begin(), ranks.end(), culprit) != ranks.end())
      left_of_parent.push_back(culprit);
  }
  const bool ends_with_parent =
      named.empty() ||
      std::is_permutation(named.begin(), named.end(), left_of_parent.begin(), left_of_parent.end());
  if (ends_with_parent && !of_parent.empty()) named.assign(of_parent.begin(), of_parent.end());
  std::sort(named.begin(), named.end());
  return named;
}

Error of_operation(const Error& failure, const Request& request, const Self& self) {
  const Error error = make_error(failure.code(), request, self, failure.what());
  if (is_harmless(error.code())) return error;
  ErrorContext context = error.context();
  context.culprits = {self.rank};
  return Error(error.code(), error.what(), std::move(context));
}

Error make_error(ErrorCode code, const Request& request, const Self& self,
                 const std::string& text) {
  ErrorContext context{.op = call_name(request),
                       .seq = request.seq,
                       .rank = self.rank,
                       .culprits = {},
                       .host = {},
                       .call_site = name_of(request.where)};
  const std::string message =
      fmt::format("{}: {}.", heading(context, self.group, purpose_of(request.where)), text);
  return Error(code, message, std::move(context));
}

}  // namespace tutti::group
