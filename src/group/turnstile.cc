#include "group/turnstile.h"

#include <fmt/format.h>

namespace tutti::group {

std::string Turn::taken_by(const Where& holder) {
  const std::string site = name_of(holder);
  return fmt::format(
      "another thread is in a call on this group (at {}); use a group from one thread at a time, "
      "for new_group, too, or give each thread a group of its own",
      site.empty() ? "an unknown place" : site);
}

}  // namespace tutti::group
