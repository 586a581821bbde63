#include "group/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace tutti::group {

namespace {

using Objection = std::optional<std::string>;

/// More elements than any memory holds: a count that has wrapped or was negative.
constexpr std::size_t kMaxElements = std::numeric_limits<std::ptrdiff_t>::max() / 16;

/// What `op` reads and writes on `rank`, as multiples of count; 0: nothing.
struct Parts {
  std::size_t input = 0;
  std::size_t output = 0;
};

Parts parts_of(const Request& request, int rank, int group_size) {
  const auto all = static_cast<std::size_t>(group_size);
  const bool at_root = request.root_or_peer == rank;
  switch (request.op) {
    case Op::send:
      return {1, 0};
    case Op::recv:
      return {0, 1};
    case Op::broadcast:
    case Op::all_reduce:
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

Objection check_ranks(const Request& request, int rank, int group_size, bool blocking) {
  const int given = request.root_or_peer;
  if (has_root(request.op) || is_message(request.op)) {
    if (given < 0 || given >= group_size) {
      return fmt::format("{} {} is out of range: the group has ranks 0 to {}",
                         has_root(request.op) ? "root" : "peer", given, group_size - 1);
    }
  }
  if (is_message(request.op)) {
    if (request.tag < 0) return fmt::format("tag {} is negative", request.tag);
    if (request.op == Op::send && given == rank && blocking && !request.buffered) {
      return fmt::format(
          "a blocking send to oneself (rank {}) would wait for ever: send with tutti::async, or "
          "copy",
          rank);
    }
  }
  return {};
}

Objection check_buffer(std::string_view name, const ConstBuffer& buffer, const Request& request,
                       std::size_t parts) {
  if (parts == 0) return {};
  if (buffer.count > kMaxElements) {
    return fmt::format("{} has {} elements, which no memory holds: was the count negative?", name,
                       buffer.count);
  }
  if (buffer.dtype != request.dtype) {
    return fmt::format("input is of {}, output of {}: they must be of one dtype",
                       tutti::name_of(request.input.dtype), tutti::name_of(request.output.dtype));
  }
  if (request.count > kMaxElements / parts || buffer.count != request.count * parts) {
    if (parts == 1) {
      return fmt::format("{} has {} elements, but {} are needed", name, buffer.count,
                         request.count);
    }
    return fmt::format("{} has {} elements, but {} are needed: {} for each of {} ranks", name,
                       buffer.count, request.count * parts, request.count, parts);
  }
  if (buffer.data == nullptr && buffer.count > 0) {
    return fmt::format("{} is null, but {} elements are needed", name, buffer.count);
  }
  return {};
}

/// Overlap is right only in the in-place form of the operation.
Objection check_overlap(const Request& request, Parts parts, int rank) {
  if (request.count == 0 || parts.input == 0 || parts.output == 0) return {};
  const auto input = reinterpret_cast<std::uintptr_t>(request.input.data);
  const auto output = reinterpret_cast<std::uintptr_t>(request.output.data);
  const std::size_t part = request.count * size_of(request.dtype);
  const bool apart = input + parts.input * part <= output || output + parts.output * part <= input;
  if (apart) return {};
  const std::size_t offset = static_cast<std::size_t>(rank) * part;
  const bool in_place = parts.input == parts.output  ? input == output
                        : parts.input < parts.output ? input == output + offset
                                                     : output == input + offset;
  if (in_place) return {};
  return fmt::format("input and output overlap, but not in place: {}",
                     parts.input == parts.output ? "pass one buffer, or two that do not overlap"
                     : parts.input < parts.output
                         ? "input must be the own part of output, or lie outside it"
                         : "output must be the own part of input, or lie outside it");
}

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

Objection objection(const Request& request, int rank, int group_size, bool blocking) {
  for (const DType dtype : {request.dtype, request.input.dtype, request.output.dtype}) {
    if (static_cast<std::size_t>(dtype) >= kDTypeCount) {
      return fmt::format("dtype {} does not exist", static_cast<int>(dtype));
    }
  }
  const Parts parts = parts_of(request, rank, group_size);
  if (auto wrong = check_ranks(request, rank, group_size, blocking)) return wrong;
  if (auto wrong = check_buffer("input", request.input, request, parts.input)) return wrong;
  if (auto wrong = check_buffer("output", request.output, request, parts.output)) return wrong;
  if (auto wrong = check_overlap(request, parts, rank)) return wrong;
  if (parts.input != 0 && parts.output != 0 && !(request.input.device == request.output.device)) {
    return "input and output are on different devices";
  }
  if (request.arrive.budget() < std::chrono::nanoseconds(0)) {
    return fmt::format("the timeout is negative: {} ns", request.arrive.budget().count());
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
    if (taken[static_cast<std::size_t>(rank)]) return fmt::format("rank {} is given twice", rank);
    taken[static_cast<std::size_t>(rank)] = true;
  }
  return {};
}

std::string name_of(const Where& where) {
  if (where.file == nullptr || *where.file == '\0') return {};
  return fmt::format("{}:{}", base_name(where.file), where.line);
}

Error make_error(ErrorCode code, const Request& request, int rank, const std::string& text) {
  ErrorContext context{.op = std::string(tutti::name_of(request.op)),
                       .seq = request.seq,
                       .rank = rank,
                       .culprits = {},
                       .host = {},
                       .call_site = name_of(request.where)};
  const std::string number = request.seq != 0 ? fmt::format(" #{}", request.seq) : "";
  const std::string site =
      context.call_site.empty() ? "" : fmt::format("; called at {}", context.call_site);
  const std::string message =
      fmt::format("{}{} (rank {}): {}{}.", context.op, number, rank, text, site);
  return Error(code, message, std::move(context));
}

}  // namespace tutti::group
