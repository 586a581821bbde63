#include "launch/allocation.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "rendezvous/identity.h"
#include "rendezvous/slurm.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::string text_of(const Environment& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

std::optional<int> parse_count(const std::string& text) {
  int count = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool is_count = problem == std::errc() && end == text.data() + text.size() && count >= 1;
  return is_count ? std::optional(count) : std::nullopt;
}

/// A count in a variable; empty where it is not set.
std::optional<int> count_in(const Environment& variables, const std::string& name) {
  const std::string text = text_of(variables, name);
  if (text.empty()) return std::nullopt;
  const auto count = parse_count(text);
  if (!count) {
    refuse(fmt::format("{}={} is no number of at least 1: give the number of ranks, -n N", name,
                       text.substr(0, 80)));
  }
  return count;
}

/// A rank of an inner launcher has no say over the allocation: its launcher has used it.
bool is_rank_of_another(const Environment& variables) {
  constexpr const char* kMarks[] = {"TUTTI_AGENT", "TORCHELASTIC_RUN_ID", "GROUP_RANK",
                                    "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"};
  return std::any_of(std::begin(kMarks), std::end(kMarks),
                     [&](const char* mark) { return !text_of(variables, mark).empty(); });
}

/// By the numbers that go with SLURM_NTASKS: a step's own, or the job's in the shell of salloc.
void check_one_node(const Environment& variables, const std::string& job) {
  if (const auto nodes = count_in(variables, "SLURM_NNODES"); nodes.value_or(1) > 1) {
    refuse(fmt::format(
        "Slurm's job {} has {} nodes ({}), and tutti run starts ranks on this host only: start "
        "them by `srun PROGRAM`, with MASTER_ADDR (an address of the first node) and MASTER_PORT "
        "set, or give the number of ranks for this host, -n N",
        job, *nodes, text_of(variables, "SLURM_NODELIST")));
  }
}

}  // namespace

std::optional<Allocation> find_allocation(const Environment& variables) {
  const std::string job = text_of(variables, "SLURM_JOB_ID");
  if (job.empty() || is_rank_of_another(variables)) return std::nullopt;
  if (const auto tasks = count_in(variables, "SLURM_STEP_NUM_TASKS"); tasks.value_or(1) > 1) {
    refuse(fmt::format(
        "srun has started this command {} times (SLURM_STEP_NUM_TASKS): start it once, `srun -n 1 "
        "tutti run -n {} PROGRAM`, or leave tutti run out, `srun -n {} PROGRAM`",
        *tasks, *tasks, *tasks));
  }
  check_one_node(variables, job);
  Allocation allocation;
  std::string name;
  if (const auto tasks = count_in(variables, "SLURM_NTASKS")) {
    name = "SLURM_NTASKS";
    allocation.ranks = *tasks;
  } else if (const auto per_node = count_in(variables, "SLURM_NTASKS_PER_NODE")) {
    name = "SLURM_NTASKS_PER_NODE";
    allocation.ranks = *per_node;
  } else {
    const auto listed = rendezvous::tasks_per_node(text_of(variables, "SLURM_TASKS_PER_NODE"));
    if (listed.empty()) return std::nullopt;
    name = "SLURM_TASKS_PER_NODE";
    allocation.ranks = listed.front();
  }
  allocation.source = fmt::format("{}={} of Slurm's job {}", name, allocation.ranks, job);
  if (allocation.ranks > rendezvous::kMaxRanksOfHost) {
    refuse(fmt::format("{}: a job has 1 to {} ranks on a host: give the number of ranks, -n N",
                       allocation.source, rendezvous::kMaxRanksOfHost));
  }
  return allocation;
}

std::string explain_several_starts(const Environment& variables) {
  if (text_of(variables, "SLURM_JOB_ID").empty() || is_rank_of_another(variables)) return {};
  const int tasks = parse_count(text_of(variables, "SLURM_STEP_NUM_TASKS")).value_or(1);
  const std::string task = text_of(variables, "SLURM_PROCID");
  if (tasks == 1 || (!task.empty() && task != "0")) return {};
  return fmt::format(
      "srun has started this command {0} times (SLURM_STEP_NUM_TASKS), and each is a job of its "
      "own; for one job `srun -n 1 tutti run -n N PROGRAM`, or `srun -n {0} PROGRAM`",
      tasks);
}

}  // namespace tutti::launch
