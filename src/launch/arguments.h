// What a person types: words of torchrun and mpirun, made uniform, and the mistakes they make.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::launch {

/// An option of `tutti run`: its name with dashes, and how many values follow.
struct OptionWord {
  std::string name;
  int values;
};

/// The command line of `tutti run`, cut where the program begins.
struct CutArguments {
  std::vector<std::string> options;  ///< uniform: "--nproc-per-node=4", "--dry-run"
  std::vector<std::string> typed;    ///< each of them as it was written: "--nproc_per_node 4"
  std::vector<std::string> command;  ///< program and its arguments
  bool is_marked = false;            ///< `--` stands before the program
};

/// Cuts at `--` or at the first word that is neither an option nor an option's value. Options are
/// made uniform: "-np 4", "--np=4" -> "--np=4"; "--nproc_per_node" -> "--nproc-per-node"; names of
/// one letter stay short, and may have their number attached: "-n 4", "-n4" -> "-n4". Two values
/// stand in words of their own: "-mca pml ob1" -> "--mca" "pml" "ob1".
///
/// Errors  kInvalidArgument: an option that is not known (with the nearest that is), a value
///         missing or empty, mpirun's ':' between programs.
CutArguments cut_arguments(std::span<const std::string> words, std::span<const OptionWord> known);

/// "4", "auto", "cpu" -> number of ranks; "gpu" is ranks_by_gpus's. Throws Error(kInvalidArgument)
/// naming the value. `word`: for messages.
int parse_rank_count(std::string_view word, std::string_view text, int cores);

/// The sentence that says so when a number of ranks may be meant that stands behind the program,
/// which gets it; else empty, also for a program behind `--`: its words are its own. Ask where
/// nothing else says how many ranks there are.
std::string explain_late_count(const CutArguments& cut);

/// What is started: "python3 -m ..." for a module, and "python3 -u ..." for a program whose name
/// ends in .py, as torchrun does, unless `no_python` says that it is a program like any other.
///
/// Errors  kInvalidArgument: a module that is no Python.
std::vector<std::string> command_of(std::vector<std::string> words, bool is_module, bool no_python);

/// Words as a shell would take them back.
std::string shell_words(std::span<const std::string> words);

}  // namespace tutti::launch
