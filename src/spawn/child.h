// Being a rank that tutti::spawn has started as a process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "spawn/report.h"
#include "tutti/types.h"

namespace tutti::spawning {

/// What a rank finds: `inherited` without what launchers around the spawner have said, and who it
/// is.
Environment rank_variables(Environment inherited, int rank, int world_size,
                           const std::string& agent);

/// What execve takes, made before the fork: this program.
class Command {
 public:
  /// Those that this program was started with.
  static std::vector<std::string> of_this_program();
  /// This program, with these.
  ///
  /// Errors  kSystem: neither /proc says which it is, nor is it where it was at its start.
  Command(const std::vector<std::string>& arguments, const Environment& variables);
  /// Returns errno where that fails.
  int execute() const noexcept;

 private:
  std::string path_;
  std::vector<std::string> texts_;
  std::vector<char*> arguments_, variables_;
};

/// Writes what is in the buffers of C's and C++'s output: those of std::cout and the like are their
/// own after sync_with_stdio(false).
void flush_output() noexcept;

/// In a forked child: runs `function` as that rank, and ends the process. Nothing of the program's
/// runs at its end but what `function` has printed.
[[noreturn]] void be_forked_rank(const std::function<int(int rank)>& function, int rank,
                                 const Environment& variables, Report& report);

/// Whether this process is a rank, or a thread of it, and by what: "RANK=1 WORLD_SIZE=4 (tutti
/// run)". Empty: it is none.
std::string rank_here();

/// How often spawn has been called at that line with that type of callable, this time included. In
/// a rank by exec that is to come to this call it does not return: it runs `function` and exits.
struct Turn {
  int times = 1;
  bool is_passed = false;  ///< a rank by exec passes here on the way to its call: nothing is done
};
Turn take_turn(const std::function<int(int rank)>& function, int world_size, const Where& where,
               std::uint64_t callable);

/// "train.cc:88", with the whole path: the same in each process of the program.
std::string site_of(const Where& where);

/// For init_process_group: in a rank by exec that has not come to its call it throws
/// kInvalidArgument.
void refuse_before_call();

}  // namespace tutti::spawning
