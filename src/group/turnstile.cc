#include "group/turnstile.h"

#include <fmt/format.h>

#include "group/check.h"

namespace tutti::group {

void Turn::throw_taken(const Request& request, int rank, const Where& holder) {
  const std::string site = name_of(holder);
  throw make_error(
      ErrorCode::kInvalidArgument, request, rank,
      fmt::format("another thread is in a call on this group (at {}); submit to a group "
                  "from one thread at a time, or make a group for each thread",
                  site.empty() ? "an unknown place" : site));
}

}  // namespace tutti::group
