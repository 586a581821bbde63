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
  /// "native" (default), "gloo", "mpi" or a plugin's; docs/choosing-a-backend.md. "mpi" is an
  /// exception to what is said of failures: in its default mode a rank lost while all are inside
  /// MPI ends the process, with one line and code 1.
  std::string backend = {};
  std::string init_method = {};  ///< "env://" (default)
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  Timeout timeout = {};  ///< for meeting, and the default `arrive` deadline; 30 min if empty
  /// Of the world, the same on all its ranks: ranks that give different ones meet in different
  /// worlds, and wait for the others there.
  std::string name = {};
  std::shared_ptr<Store> store = {};  ///< meet here; then rank and world_size must be given
  Settings settings = {};             ///< rows of the configuration table, for this world only
};

/// Joins the job and returns the group of all its ranks; waits until all are there.
///
///     auto world = tutti::init_process_group();
///
/// Lifetime  The world must outlive the groups made from it.
/// Threads   Several worlds may live in one process; ranks may be threads.
/// Errors    kInvalidArgument: two launchers give the process different identities, rank out of
///           range, unknown backend or setting. kTimeout: who is missing. kSystem: no meeting
///           point.
TUTTI_API ProcessGroup init_process_group(const InitOptions& options = {},
                                          Where where = Where::current());
template <class Name>
  requires std::convertible_to<Name, std::string_view> ProcessGroup
  init_process_group(const Name&) {
    static_assert(!std::convertible_to<Name, std::string_view>,
                  "tutti: the backend is an option: init_process_group({.backend = \"native\"})");
    return ProcessGroup();
  }

}  // namespace tutti
