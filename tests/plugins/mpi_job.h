// Jobs of the program mpi_rank under the launchers of both MPIs: it does what it is told and writes
// down what became of it; nothing else that a launcher shows can be relied on when ranks die.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "e2e/launched_job.h"

namespace tutti::mpi_test {

using namespace std::chrono_literals;
using e2e::LaunchedJob;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

struct Mpi {
  const char* name;
  const char* launcher;  // its path; empty: not installed
  const char* own_rank;  // mpi_rank that starts MPI itself; empty: no plugin
  Words flags;           // more ranks than cores; survivors of a failure go on
};
inline const Mpi kOpenMpi{
    "openmpi", TUTTI_MPIRUN_OPENMPI, TUTTI_RANK_OPENMPI, {"--oversubscribe", "--enable-recovery"}};
inline const Mpi kMpich{"mpich", TUTTI_MPIRUN_MPICH, TUTTI_RANK_MPICH, {"-disable-auto-cleanup"}};

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What a job has left: by rank what it wrote down ("ok\n") and the exit code of its process.
struct Outcome {
  std::vector<std::string> records;
  std::vector<int> codes;  // -1: the rank did not get so far
  std::string err;
};

class MpiJob {
 public:
  MpiJob() {
    std::string pattern = testing::TempDir() + "tutti-mpi-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~MpiJob() {
    std::error_code error;
    fs::remove_all(folder_, error);
  }

  /// `start` is a launcher with its flags, or nothing. The shell writes the exit code down and does
  /// not let MPICH's launcher end survivors with SIGUSR1.
  Outcome run(const Words& start, int ranks, const Words& settings, const std::string& program,
              const std::string& scenario) {
    const std::string records = (folder_ / "rank").string();
    // Jobs of Open MPI share a folder in /tmp, which one that ends takes from one that begins.
    LaunchedJob::Command command{{"env", "OMPI_ALLOW_RUN_AS_ROOT=1",
                                  "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "LSAN_OPTIONS=detect_leaks=0",
                                  "ASAN_OPTIONS=detect_leaks=0",
                                  "OMPI_MCA_orte_tmpdir_base=" + folder_.string()}};
    const auto add = [&](const Words& words) {
      command.words.insert(command.words.end(), words.begin(), words.end());
    };
    add(settings);
    add(start);
    add({"sh", "-c",
         "trap '' USR1; \"$@\"; code=$?; "
         "echo $code > $0.${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}.code; exit $code",
         records, program, scenario, records});
    LaunchedJob job(std::move(command));
    EXPECT_GE(job.wait_exit(200s), 0) << "the job did not end: " << job.err();
    Outcome outcome;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string file = records + "." + std::to_string(rank);
      outcome.records.push_back(read_file(file));
      const std::string code = read_file(file + ".code");
      outcome.codes.push_back(code.empty() ? -1 : std::atoi(code.c_str()));
      fs::remove(file);
      fs::remove(file + ".code");
    }
    outcome.err = job.err();
    return outcome;
  }

 private:
  fs::path folder_;
};

class MpiBackend : public testing::TestWithParam<const Mpi*> {
 protected:
  void SetUp() override {
    if (*mpi().launcher == '\0') GTEST_SKIP() << mpi().name << ": its launcher is not installed";
    if (*mpi().own_rank == '\0') GTEST_SKIP() << mpi().name << ": its plugin was not built";
  }
  static const Mpi& mpi() { return *GetParam(); }
  static const Mpi& other() { return &mpi() == &kOpenMpi ? kMpich : kOpenMpi; }

  Outcome launch(const Mpi& launcher, int ranks, const std::string& scenario,
                 const Words& settings = {}, const std::string& program = TUTTI_RANK) {
    Words start{launcher.launcher};
    start.insert(start.end(), launcher.flags.begin(), launcher.flags.end());
    start.insert(start.end(), {"-n", std::to_string(ranks)});
    return job_.run(start, ranks, settings, program, scenario);
  }
  Outcome run(int ranks, const std::string& scenario, const Words& settings = {}) {
    return launch(mpi(), ranks, scenario, settings);
  }
  void expect_ok(const Outcome& outcome) {
    for (std::size_t rank = 0; rank < outcome.records.size(); ++rank) {
      EXPECT_EQ(outcome.records[rank], "ok\n") << "rank " << rank << "\n" << outcome.err;
      EXPECT_EQ(outcome.codes[rank], 0) << "rank " << rank << "\n" << outcome.err;
    }
  }
  /// Each of the ranks, `except` excepted, wrote a line that begins so and has all `parts`.
  void expect_records(const Outcome& outcome, const std::string& begin, const Words& parts = {},
                      int except = -1) {
    for (int rank = 0; rank < static_cast<int>(outcome.records.size()); ++rank) {
      if (rank == except) continue;
      const std::string& record = outcome.records[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(record.starts_with(begin)) << "rank " << rank << ": '" << record << "'\n"
                                             << outcome.err;
      for (const std::string& part : parts) {
        EXPECT_NE(record.find(part), std::string::npos)
            << "rank " << rank << ": no '" << part << "' in '" << record << "'";
      }
    }
  }

  MpiJob job_;
};

}  // namespace tutti::mpi_test
