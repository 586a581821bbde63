// What the ranks print, kept in files as it comes.
//
// Two ways to name them, those of the launchers whose words ask for them. A file is opened for each
// piece and closed again: hundreds of ranks take no descriptors, and a file may be moved away
// meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launch/lines.h"

namespace tutti::launch {

/// "0" to "3" for all ranks (1: stdout, 2: stderr), or "0:1,1:3" for some of them. `word`: for
/// messages.
///
/// Errors  kInvalidArgument: what is wrong; a rank that the job does not have.
std::vector<StreamSet> parse_streams(std::string_view word, std::string_view text, int ranks);

/// "0,2-3": true for these. As parse_streams.
std::vector<bool> parse_ranks(std::string_view word, std::string_view text, int ranks);

struct LogPlan {
  enum class Names : std::uint8_t {
    torchrun,  ///< FOLDER/attempt_0/RANK/stdout.log
    mpirun,    ///< FOLDER/1/rank.RANK/stdout
  };
  std::string folder;  ///< of this job alone; empty: nothing is kept
  Names names = Names::torchrun;
  std::vector<StreamSet> streams = {};          ///< by rank
  std::string way_out = "name another folder";  ///< where nothing can be kept there
};

class LogFiles {
 public:
  /// Makes the folders and empty files. `attempt`: how often the world has been started before.
  ///
  /// Errors  kInvalidArgument: one cannot be made.
  LogFiles(const LogPlan& plan, int attempt);

  /// Keeps a piece. What is wrong the first time with each file is a line for people; what comes
  /// for that file from then on is dropped.
  std::string write(int rank, Stream stream, std::string_view bytes);
  /// Whether it has a file that could be written so far.
  bool keeps(int rank, Stream stream) const noexcept;

 private:
  std::vector<std::string> paths_;  ///< by 2 * rank + stream; empty: not kept
};

}  // namespace tutti::launch
