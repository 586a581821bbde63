// The contract of endings, as data: what happens in a job of three ranks under `tutti run`, who is
// told what, and the exit code. docs/troubleshooting.md has the same table in words.
//
// A rank that has said goodbye to every group may end as it likes. A failure that some rank's
// program was never told of makes the job FAILED, whatever the exit codes are. One that all were
// told of is theirs to judge: the codes decide.
#pragma once

#include <string>
#include <vector>

namespace tutti::e2e {

struct Ending {
  enum class Kind { orderly, untold, told, abnormal };
  Kind kind;
  std::string way;                ///< of endings_rank
  std::string what;               ///< what happens
  std::vector<std::string> told;  ///< the lines of the ranks about it, sorted
  int code;
  std::string root = {};  ///< in the post-mortem, behind "ROOT CAUSE: "; empty: there is none
};

inline std::vector<Ending> endings() {
  using enum Ending::Kind;
  // Of which two it is told depends on who had called by then.
  const std::string roots = "the ranks disagree about operation #1: rank ";
  return {
      {orderly, "close", "all close and return", {}, 0},
      {orderly, "destructor", "all return; the destructors close", {}, 0},
      {orderly, "close, exit", "all close, then one calls exit(0)", {}, 0},
      {orderly, "close, quick exit", "all close, then one calls _exit(0)", {}, 0},
      {orderly, "close, exec", "all close, then one becomes another program", {}, 0},
      {orderly, "static, exit", "all call exit(0) with a static world", {}, 0},
      {orderly, "stopped in close", "one is stopped in close() while the others end", {}, 0},
      {orderly,
       "stopped in destructor",
       "one is stopped in a destructor, for less than 2 s",
       {},
       0},
      {abnormal, "close, kill", "all close, then one is killed", {}, 137, "rank 1 on "},

      {untold, "roots", "they disagree, and only the destructors find it", {}, 1, roots},
      {untold,
       "fewer",
       "one calls one operation too few and returns",
       {"[0] told by throw: kClosed", "[2] told by throw: kClosed"},
       1,
       "rank 1 (pid "},
      {untold,
       "none",
       "one leaves before its first operation",
       {"[0] told by throw: kClosed", "[2] told by throw: kClosed"},
       1,
       "rank 1 (pid "},
      {untold,
       "leave open",
       "one calls _exit(0) without a goodbye, nobody notices",
       {},
       1,
       "rank 1 on "},
      {untold,
       "used again",
       "a new group fails in its destructor, many others do not",
       {},
       1,
       "the ranks of group world/0-1-2 disagree about operation #1: rank "},
      {untold, "second world", "the second world fails in its destructor", {}, 1, roots},
      {untold,
       "unaware",
       "an operation fails, one rank never touches the group again",
       {"[0] told by throw: kTimeout", "[1] told by error: kTimeout"},
       1,
       "after 0.1 s in rank 0's all_reduce #2("},
      {untold,
       "too late",
       "one has left for good when the others call again",
       {"[0] told by throw: kClosed", "[2] told by throw: kClosed"},
       1,
       "rank 1 (pid "},

      {told,
       "timeout",
       "one is late, all catch kTimeout and make a new group",
       {"[0] told by throw: kTimeout", "[1] told by throw: kTimeout",
        "[2] told by throw: kTimeout"},
       0},
      {told,
       "unwind",
       "the same, and the exception unwinds through an idle group",
       {"[0] told by throw: kTimeout", "[1] told by throw: kTimeout",
        "[2] told by throw: kTimeout"},
       0},
      {told,
       "abort",
       "one aborts, all catch kAborted and make a new group",
       {"[0] told by throw: kAborted", "[1] told by throw: kAborted",
        "[2] told by throw: kAborted"},
       0},
      {told,
       "exit, survivors",
       "one calls exit(0) without a goodbye, the others catch and go on",
       {"[0] told by throw: kPeerLost", "[2] told by throw: kPeerLost"},
       0},
      {told,
       "callback",
       "one aborts, all hear it from on_failure",
       {"[0] told by callback: kAborted", "[1] told by callback: kAborted",
        "[2] told by callback: kAborted"},
       0},
      {told,
       "error",
       "one aborts, the others read error()",
       {"[0] told by error: kAborted", "[2] told by error: kAborted"},
       0},
      {told,
       "work",
       "one aborts, the others wait for a Work",
       {"[0] told by throw: kAborted", "[2] told by throw: kAborted"},
       0},
      {abnormal,
       "kill, survivors",
       "one is killed, the others catch and go on",
       {"[0] told by throw: kPeerLost", "[2] told by throw: kPeerLost"},
       137,
       "rank 1 on "},
      {abnormal,
       "timeout, kill",
       "one is late, all catch kTimeout and go on in a new group; then another is killed",
       {"[0] told by throw: kTimeout", "[1] told by throw: kPeerLost",
        "[1] told by throw: kTimeout", "[2] told by throw: kPeerLost",
        "[2] told by throw: kTimeout"},
       137,
       "rank 0 on "},
      {abnormal,
       "disagree, kill",
       "the same after a disagreement",
       {"[0] told by throw: kCollectiveMismatch", "[1] told by throw: kCollectiveMismatch",
        "[1] told by throw: kPeerLost", "[2] told by throw: kCollectiveMismatch",
        "[2] told by throw: kPeerLost"},
       137,
       "rank 0 on "},
      {abnormal,
       "disagree, new world, kill",
       "they disagree, all catch it and make a new world; then one is killed",
       {"[0] told by throw: kCollectiveMismatch", "[1] told by throw: kCollectiveMismatch",
        "[1] told by throw: kPeerLost", "[2] told by throw: kCollectiveMismatch",
        "[2] told by throw: kPeerLost"},
       137,
       "rank 0 on "},
      {abnormal,
       "exit in callback",
       "all call exit(7) in a callback of Work::then",
       {},
       7,
       "rank "},
  };
}

}  // namespace tutti::e2e
