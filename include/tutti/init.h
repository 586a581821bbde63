// Becoming part of a job.
#pragma once

#include <chrono>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/config.h"
#include "tutti/process_group.h"
#include "tutti/store.h"

namespace tutti {

/// Everything is optional: what is not given comes from TUTTI_* variables, then from the launcher's
/// environment (docs/getting-started.md lists them), and if nothing is set the world is of one
/// rank.
struct InitOptions {
  /// "automatic" (native, and nccl for device memory where every rank has a device of its own),
  /// "native", "gloo", "mpi", "nccl", a plugin's, or "cpu:gloo,cuda:nccl"; empty: the setting
  /// backend, else automatic; docs/choosing-a-backend.md. "mpi" is an exception to what is said of
  /// failures: in its default mode a rank lost while all are inside MPI ends the process, with one
  /// line and code 1.
  std::string backend = {};
  /// "env://" (default), "tcp://HOST:PORT", "tcp://HOST:PORT?rank=R&world_size=N" (IPv6 addresses
  /// in brackets), or with "rank=auto": numbers in the order of arrival. Rank 0 is on that host.
  /// "file:///PATH", also with "?rank=R&world_size=N": rank 0 says in that file, which all hosts
  /// see, where it is. Each job has a path of its own; what a job that died has left there does not
  /// matter.
  std::string init_method = {};
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  Timeout timeout = {};  ///< for meeting, and the default `arrive` deadline; 30 min if empty
  /// Of the world, the same on all its ranks: ranks that give different ones meet in different
  /// worlds, and wait for the others there.
  std::string name = {};
  /// Meet here; then rank and world_size must be given. Other hosts are reached by the interface of
  /// the default route, unless the setting socket_ifname names one.
  std::shared_ptr<Store> store = {};
  Settings settings = {};  ///< rows of the configuration table, for this world only
};

/// Joins the job and returns the group of all its ranks; waits until all are there.
///
///     auto world = tutti::init_process_group();
///
/// Lifetime  The world must outlive the groups made from it.
/// Threads   Several worlds may live in one process; ranks may be threads.
/// Errors    kInvalidArgument: two launchers give the process different identities, rank out of
///           range, unknown backend or setting, a malformed init_method, a number in it that an
///           option contradicts, an address that rank 0 cannot have or whose port is taken.
///           kTimeout: who is missing. kPeerLost: who died before. kSystem: no meeting point.
///           kUnauthenticated: another secret than the others'. kUnsupported: security=encrypt
///           between hosts.
TUTTI_API ProcessGroup init_process_group(const InitOptions& options = {},
                                          Where where = Where::current());
template <class Name>
  requires std::convertible_to<Name, std::string_view> ProcessGroup
  init_process_group(const Name&) {
    static_assert(!std::convertible_to<Name, std::string_view>,
                  "tutti: the backend is an option: init_process_group({.backend = \"native\"})");
    return ProcessGroup();
  }

/// Which of the ranks on this host this process is, and how many they are, as its launcher says.
/// Before init or after it, and without it: 0 and 1 in a program that was started by itself.
///
///     torch::Device device(torch::kCUDA, tutti::local_device());
///
/// Errors  kInvalidArgument: variables that contradict each other, as of init; a launcher that does
///         not say it (RANK and WORLD_SIZE without LOCAL_RANK and LOCAL_WORLD_SIZE). The group
///         knows it in any case: `world.local_rank()`.
TUTTI_API int local_rank();
TUTTI_API int local_world_size();
/// The number of CUDA's device that this rank is to use: the ranks of a host take the devices that
/// the process may see in turn, and share them where there are fewer. 0 where it may see one only
/// (a launcher that gives each rank its own), or none. Initialises nothing and asks no driver.
/// Errors  Those of local_rank, where there are several.
TUTTI_API int local_device();

}  // namespace tutti
