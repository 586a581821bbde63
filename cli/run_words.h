// The words of `tutti run`: torchrun's, mpirun's and its own, and what each means here.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "launch/arguments.h"
#include "launch/job.h"
#include "manual.h"

namespace CLI {
class App;
}

namespace tutti::cli {

class RunWords {
 public:
  RunWords();
  ~RunWords();
  RunWords(const RunWords&) = delete;
  RunWords& operator=(const RunWords&) = delete;

  /// Takes the words before the program, and torchrun's variables PET_* for what they leave open.
  /// False: they ask for help. Throws Error(kInvalidArgument).
  bool parse(const launch::CutArguments& cut, const Environment& environment);
  std::vector<launch::OptionWord> known() const;
  /// Their groups, and those that stand in none.
  std::vector<WordGroup> groups() const;
  std::vector<Word> hidden() const;
  /// "--mca, --rdzv-conf": what is taken and changes nothing here.
  static std::string meaningless();

  /// What they ask for. `command`: the words from the program on. `*notes`: lines for people.
  ///
  /// Errors  kInvalidArgument: what cannot be done here, why, and what can.
  launch::JobOptions job(std::vector<std::string> command, Environment environment,
                         std::vector<std::string>* notes) const;
  bool is_dry_run() const { return dry_run_; }
  /// Whether words, PET_* or an allocation say how many ranks there are.
  bool knows_ranks(const Environment& environment) const;

 private:
  bool names_ranks() const {
    return is_given("-n") || one_a_host_ || !hosts_.empty() || !hostfile_.empty();
  }
  void declare_ranks();
  void declare_meeting();
  void declare_program();
  void declare_output();
  void declare_endings();
  void declare_others();
  void take_pet(const Environment& environment, std::vector<std::string>& options);
  bool is_given(const std::string& option) const;
  /// As it was given: "--nnodes", or "PET_NNODES"; of several names the one that was typed.
  std::string name_of(const std::string& option) const;
  std::optional<int> asked_ranks(const Environment& of_ranks) const;
  int gpus_per_rank() const;
  /// Variables of -x are those of the ranks, and say nothing of where `tutti run` itself is.
  int rank_count(const Environment& own, const Environment& of_ranks,
                 std::vector<std::string>* notes) const;
  void set_output(launch::JobOptions& options) const;
  void check_output_folder() const;
  void check_hosts() const;
  std::string exported_master() const;
  std::string what_means_nothing() const;

  const std::unique_ptr<CLI::App> app_;
  std::vector<std::string> typed_;  // options, made uniform
  std::set<std::string> from_pet_;  // names of options
  std::string count_ = "1", hosts_, hostfile_, nnodes_ = "1", node_rank_ = "0";
  std::string master_address_, master_port_, rdzv_backend_, rdzv_endpoint_, rdzv_id_, role_,
      folder_;
  std::string grace_ = "30s", failure_grace_, timeout_ = "never", max_restarts_ = "0";
  std::string reader_of_stdin_ = "0";
  std::string log_folder_, redirects_, tee_, shown_ranks_, output_folder_;
  std::vector<std::string> exports_;
  bool one_a_host_ = false, oversubscribe_ = false, standalone_ = false, module_ = false,
       no_python_ = false;
  std::string bind_to_ = "none", map_by_ = "slot";
  std::string gpus_per_rank_ = "0";
  bool reports_bindings_ = false;
  bool dry_run_ = false, tag_output_ = false, fold_output_ = false;
};

}  // namespace tutti::cli
