// Running the ranks of a job inside a test, and testing a backend (target tutti::test_kit).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tutti/init.h"
#include "tutti/process_group.h"

namespace tutti::test_kit {

/// What a rank is made of.
enum class As { threads, processes };

struct RunOptions {
  As as = As::threads;
  std::chrono::milliseconds deadline = std::chrono::seconds(60);  ///< then the ranks are killed
  InitOptions init = {};  ///< for every rank; rank, world_size and store are filled in
  /// By rank: the number of its host. Ranks with different ones share no memory and speak over TCP,
  /// as if they were on different machines. Empty: all are on one.
  std::vector<int> hosts = {};
};

/// One rank as its function sees it: `init_process_group(me.init)` makes it part of the world.
struct Rank {
  int rank = 0;
  int world_size = 1;
  InitOptions init = {};
};

/// How the function of one rank ended.
struct Outcome {
  int rank = 0;
  std::string result;   ///< what the function returned
  std::string failure;  ///< what() of the exception, or how the process ended; empty: success
  std::optional<Error> error;  ///< if it threw a tutti::Error
  int wait_status = 0;         ///< of the process, as waitpid gives it
};

/// Thrown by run_ranks: the failures of all ranks, by rank.
class RanksFailed : public std::runtime_error {
 public:
  RanksFailed(const std::string& message, std::vector<Outcome> outcomes)
      : std::runtime_error(message), outcomes_(std::move(outcomes)) {}
  const std::vector<Outcome>& outcomes() const noexcept { return outcomes_; }

 private:
  std::vector<Outcome> outcomes_;
};

/// Runs `function` on every rank at once and returns their outcomes by rank, failures included.
///
/// As processes, ranks are forked without exec, and reaped before this returns: by the deadline
/// they are killed, and they die with the caller. What the function returns comes back; nothing
/// else does.
///
/// Errors    kInvalidArgument for processes if the caller has other threads: they would be missing
///           in the children, with whatever they had locked. kSystem if fork fails.
std::vector<Outcome> collect_ranks(int world_size,
                                   const std::function<std::string(const Rank&)>& function,
                                   const RunOptions& options = {});

/// Runs `function` on every rank of a new world, closes the world, and throws RanksFailed if any
/// rank failed.
///
///     run_ranks(4, [](ProcessGroup& world) {
///       float x = world.rank();
///       world.all_reduce(x);
///       if (x != 6) throw std::runtime_error("wrong sum");
///     });
void run_ranks(int world_size, const std::function<void(ProcessGroup&)>& function,
               const RunOptions& options = {});

/// Where a conformance run has its buffers, if not in the memory of the host.
struct DeviceMemory {
  Device device;
  Stream stream;
  std::function<std::shared_ptr<void>(std::size_t byte_count)> allocate;
  /// In order with `stream`. copy_back blocks until the bytes are there.
  std::function<void(void* to, const void* from, std::size_t byte_count)> copy_there;
  std::function<void(void* to, const void* from, std::size_t byte_count)> copy_back;
};

/// What a conformance run goes through.
struct ConformanceOptions {
  std::optional<Op> op = {};             ///< this operation only
  std::vector<std::size_t> counts = {};  ///< empty: 0, 1, n - 1, n, n + 1, 1000 on n ranks
  std::uint64_t seed = 1;
  /// Of the variants of a cell (in place, asynchronous) one in so many is run: 1, 2 or 4.
  int one_variant_in = 1;
  /// Sums and products have the bits of the canonical order (docs/numerics.md), as native's have.
  /// Else they lie within the error bound of the dtype.
  bool canonical = false;
  /// Whether the buffers of this rank lie there: any rank may have its own. Null: in host memory.
  const DeviceMemory* memory = nullptr;
};

struct ConformanceReport {
  int cells = 0;                           ///< that this rank ran
  std::vector<std::string> failures = {};  ///< what was wrong on this rank, the first few
};

/// Runs every operation x dtype x reduce operation that the backend of `world` says it supports, on
/// data with NaNs, infinities and both zeros, against an independent reference: moved data,
/// integers, min and max bit by bit, and all_reduce with the same bits on all ranks. Collective.
///
/// Errors  What the backend throws.
ConformanceReport run_conformance(ProcessGroup& world, const ConformanceOptions& options = {});

/// What the backend of `world` supports, as JSON, which run_conformance shows to be true: groups of
/// operations with their rows of dtypes and reduce operations under "supported", and by reason what
/// is not supported under "holes". Of device memory also, by reason, what is staged.
std::string support_matrix(const ProcessGroup& world, Device::Kind device = Device::Kind::cpu);

}  // namespace tutti::test_kit
