// Ways in which spawned ranks end: one call of spawn each, for the tests, for the soak, and for a
// program that runs one of them, so that its ranks can be made by exec.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tutti/error.h"
#include "tutti/spawn.h"

namespace tutti::ways {

/// The rank that ends in the way that is asked for; the others are in all_reduce then.
inline constexpr int kCulprit = 1;
inline constexpr int kRanks = 3;

struct Result {
  bool is_well = false;
  ErrorCode code = ErrorCode::kInternal;
  std::string text;
  std::vector<int> culprits;
  std::vector<int> exit_codes;  ///< -2: it runs
};

/// Ways: "well", "error" (throws an Error), "throws", "throws odd" (no std::exception), "unwinds"
/// (pthread_exit), "returns", "exits", "exits well" (all exit with 0), "killed", "aborts",
/// "hangs", "stubborn" (does not hear SIGTERM either), "waits" (in a call of ours for somebody who
/// never comes), "spawns" (from inside a rank), "before" (does not come to its world), "absent"
/// (nor fails), "leaves" (does not fail, and the others still call it), "untold".
/// With "+helpers" every rank first starts a process in a session of its own.
Result attempt(Start start, const std::string& way, std::chrono::nanoseconds timeout,
               std::chrono::nanoseconds grace = std::chrono::milliseconds(300));

/// "kPeerLost culprits 1 exits 143 1 143: what it says", or "well exits 0 0 0".
std::string line_of(const Result& result);

}  // namespace tutti::ways
