// The checks of arguments: what a single rank can see to be wrong before anything is sent.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/self.h"
#include "tutti/request.h"

namespace tutti::group {

/// "1 element", "2 elements".
std::string elements_text(std::size_t count);

/// More elements than any memory holds: a count that has wrapped or was negative.
inline constexpr std::size_t kMaxElements = std::numeric_limits<std::ptrdiff_t>::max() / 16;

/// The sentence that says what is wrong with `request`, made by rank `rank` of `group_size`; empty
/// if nothing is. No allocation when nothing is. `blocking`: the caller waits for it.
std::optional<std::string> objection(const Request& request, int rank, int group_size,
                                     bool blocking);

/// The same for messages that are under way together: two of which one is received share memory.
std::optional<std::string> overlap_objection(std::span<const Request> messages);

/// The same for the list of ranks given to new_group.
std::optional<std::string> objection(std::span<const int> ranks, int group_size);

/// Whom the error of a new group of `ranks` names, as its parent counts them. One that fails with
/// its parent has those of the parent's culprits that are its members: then all of them are named.
std::vector<int> culprits_of_new_group(std::span<const int> ranks, std::span<const int> of_new,
                                       std::span<const int> of_parent);

/// Whether the group can go on as if the call that failed so had never been made.
constexpr bool is_harmless(ErrorCode code) noexcept {
  return code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported;
}

/// "all_reduce #42 of group world/1-3 (rank 1) at train.cc:88: TEXT." as an Error with its context.
Error make_error(ErrorCode code, const Request& request, const Self& self, const std::string& text);

/// `failure`, of a part that knows of no operation, as one of `request`; its culprit is this rank
/// unless the call alone is at fault.
Error of_operation(const Error& failure, const Request& request, const Self& self);

/// What `call` throws without a heading gets that of the operation.
template <class Call>
auto with_heading(const Request& request, const Self& self, Call&& call) {
  try {
    return call();
  } catch (const Error& failure) {
    if (!failure.context().op.empty()) throw;
    throw of_operation(failure, request, self);
  }
}

}  // namespace tutti::group
