#include "group/under_way.h"

#include <fmt/format.h>

namespace tutti::group {

Cause destroyed_too_early(int rank) {
  return {ErrorCode::kAborted,
          fmt::format("rank {} destroyed the group while asynchronous operations were under way; "
                      "close it first",
                      rank),
          {rank},
          {}};
}

Error still_under_way(int rank, std::size_t pending) {
  return Error(ErrorCode::kTimeout,
               fmt::format("{} still under way: wait for {} before closing, or give a later "
                           "deadline",
                           pending == 1 ? "1 asynchronous operation is"
                                        : fmt::format("{} asynchronous operations are", pending),
                           pending == 1 ? "it" : "them"),
               {.op = "close", .rank = rank});
}

}  // namespace tutti::group
