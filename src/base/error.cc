#include "tutti/error.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

namespace tutti {

// A failure is handed on where nothing may throw.
static_assert(std::is_nothrow_move_constructible_v<Error>);
static_assert(std::is_nothrow_move_assignable_v<Error>);

std::string_view name_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "kInvalidArgument";
    case ErrorCode::kUnsupported:
      return "kUnsupported";
    case ErrorCode::kCollectiveMismatch:
      return "kCollectiveMismatch";
    case ErrorCode::kDeadlock:
      return "kDeadlock";
    case ErrorCode::kTimeout:
      return "kTimeout";
    case ErrorCode::kPeerLost:
      return "kPeerLost";
    case ErrorCode::kAborted:
      return "kAborted";
    case ErrorCode::kClosed:
      return "kClosed";
    case ErrorCode::kSystem:
      return "kSystem";
    case ErrorCode::kUnauthenticated:
      return "kUnauthenticated";
    case ErrorCode::kInternal:
      return "kInternal";
    case ErrorCode::kCancelled:
      return "kCancelled";
  }
  return "?";
}

std::string heading(const ErrorContext& context, std::string_view of, std::string_view purpose) {
  const std::string number = context.seq != 0 ? fmt::format(" #{}", context.seq) : "";
  const std::string group = of.empty() ? "" : fmt::format(" of group {}", of);
  const std::string site = context.call_site.empty() ? "" : " at " + context.call_site;
  return fmt::format("{}{}{} (rank {}){}{}", context.op, number, group, context.rank, purpose,
                     site);
}

Error::Error(ErrorCode code, const std::string& message, ErrorContext context)
    : std::runtime_error(message), code_(code), context_(std::move(context)) {}

Error::~Error() = default;

}  // namespace tutti
