// One exception type, with a code chosen by what the caller does next.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/types.h"

namespace tutti {

enum class ErrorCode : std::uint8_t {
  kInvalidArgument,     ///< fix this call
  kUnsupported,         ///< choose another backend, dtype or operation
  kCollectiveMismatch,  ///< ranks disagree: fix the program (the message shows both sides)
  kDeadlock,            ///< ranks wait for each other: fix the program (the message shows whom)
  kTimeout,             ///< a deadline passed: read who was awaited; rebuild or exit
  kPeerLost,            ///< a rank died: make a group or a world without it
  kAborted,             ///< somebody called abort
  kClosed,              ///< the group is closed, or a member left in order
  kSystem,              ///< the operating system refused: limits, permissions, memory
  kUnauthenticated,     ///< the other end could not prove who it is
  kInternal,            ///< a bug in Tutti: please report
  kCancelled,           ///< Work::cancel took the message back; the group goes on
};
inline constexpr int kErrorCodeCount = static_cast<int>(ErrorCode::kCancelled) + 1;

TUTTI_API std::string_view name_of(ErrorCode code) noexcept;  ///< "kPeerLost"

/// What a program can read off an Error without parsing its text. Empty where not known.
struct ErrorContext {
  std::string op = {};             ///< "all_reduce"; "store" where that is lost
  std::uint64_t seq = 0;           ///< number of the operation in its group, from 1
  int rank = -1;                   ///< own rank in the group
  std::vector<int> culprits = {};  ///< ranks of the group whose loss or disagreement came first
  std::string host = {};           ///< host of the first culprit
  std::string call_site = {};      ///< "train.cc:88"
};

/// How a message about `context` begins: "all_reduce #42 (rank 1) at train.cc:88". `of` names the
/// group, `purpose` is that of the call.
TUTTI_API std::string heading(const ErrorContext& context, std::string_view of = {},
                              std::string_view purpose = {});

/// Everything Tutti throws. `what()` says what happened, to whom, after how long, what to try.
///
/// Threads   Copies share nothing mutable; an Error may be read from any thread.
class TUTTI_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, ErrorContext context = {});
  ~Error() override;  // key function: the type must be one object across shared libraries
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  Error(Error&&) noexcept = default;  // takes no memory
  Error& operator=(Error&&) noexcept = default;

  ErrorCode code() const noexcept { return code_; }
  const ErrorContext& context() const noexcept { return context_; }

 private:
  ErrorCode code_;
  ErrorContext context_;
};

}  // namespace tutti
