// What a backend implements; the one value it is handed is in request.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/config.h"
#include "tutti/error.h"
#include "tutti/request.h"
#include "tutti/store.h"
#include "tutti/types.h"
#include "tutti/version.h"
#include "tutti/work.h"

namespace tutti {

/// Key of the support matrix.
struct OpKey {
  Op op;
  DType dtype;
  ReduceOp::Kind reduce;
  Device::Kind device;
};

/// Whether a backend can serve an OpKey; if not, why and what to do instead. Of a group also, with
/// yes: that and why device memory is staged through the host.
struct Support {
  bool yes = true;
  std::string reason = {};
};

/// What a backend is told about the group it serves.
struct GroupSpec {
  GroupId id = 0;
  int rank = 0;                  ///< own rank in the group
  std::vector<int> world_ranks;  ///< by rank in the group
  std::vector<int> hosts;        ///< by rank in the group: the number of its host
  /// Of this host, at which ranks of the world on other hosts reach this one: "192.0.2.7"; empty:
  /// the world is on one host.
  std::string address;
  std::shared_ptr<Store> store;         ///< private to this group
  std::chrono::nanoseconds timeout{0};  ///< for setting up
  Settings settings;                    ///< every row of the table, with the value in force
  /// Calls back once, from another thread, when the group fails, also while it is being made.
  std::function<void(std::function<void(const Error&)>)> on_failure;
  /// Fails the group on all its ranks: for what a backend finds out when no operation calls it. A
  /// death that it may come from is waited for, and counts. Without culprits: this rank.
  /// From any thread, as long as the backend lives; may block.
  std::function<void(const Cause&)> fail;
};

/// Memory from Backend::allocate; freed with its last owner.
struct Memory {
  std::shared_ptr<void> data;
  std::size_t byte_count = 0;
};

struct BackendInfo {
  std::string name;  ///< "native"
  std::string version;
  bool checks_itself = false;  ///< verifies (seq, chain); if not, the group does before each call
  bool threads = true;         ///< several ranks may live in one process
  bool secure = false;         ///< its peers prove who they are, or it has no connections
  std::string missing = {};    ///< why it cannot be used here; empty: it can
};

/// The shared half of a Work: what runs an asynchronous operation and those who wait for it have
/// in common. A backend derives from it, *begins* it when the operation starts to run and *ends* it
/// once, with or without an error, holding a reference. Whoever waits *helps*.
///
/// Lifetime  Shared by the Work and the backend's queue; lives until both have let go.
/// Threads   begin and end: by whoever runs the operation, one after the other. All else: any
///           thread.
class TUTTI_API WorkState {
 public:
  explicit WorkState(Request request) noexcept : request_(std::move(request)) {}
  virtual ~WorkState();
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;

  const Request& request() const noexcept { return request_; }
  bool done() const noexcept { return done_.load(std::memory_order_seq_cst); }
  /// The failure; empty while the operation is under way and when it has succeeded.
  std::optional<Error> error() const;

  /// Tells the request's observer that the operation runs now.
  void begin() noexcept;
  /// The flag is stored seq_cst, so ringing after it is enough; then the callbacks run.
  void end() noexcept { finish(std::nullopt); }
  void end(Error failure) noexcept { finish(std::move(failure)); }

  /// Calls `callback` once: by whoever ends the operation, right here if it has ended.
  void when_done(std::function<void()> callback);

  /// Helps until the operation has ended (true) or `until` has come (false). The wait itself is
  /// bounded by the operation's own deadlines, after which it has ended with an error.
  virtual bool help(Deadline::Clock::time_point until) = 0;
  /// The same, but an operation on device memory need only be ordered before what the stream of its
  /// request is given next; it ends later.
  virtual bool help_in_order(Deadline::Clock::time_point until) { return help(until); }

  /// See Work::cancel. The operation then ends with kCancelled.
  virtual bool cancel() { return false; }

  /// Whether somebody has been told of the failure; the destructor of Work logs it otherwise.
  void mark_seen() noexcept { seen_.store(true, std::memory_order_relaxed); }
  bool seen() const noexcept { return seen_.load(std::memory_order_relaxed); }
  /// Somebody has waited until it was in order: the destructor of Work need not wait for the
  /// device.
  void mark_in_order() noexcept { in_order_.store(true, std::memory_order_relaxed); }
  bool in_order() const noexcept { return in_order_.load(std::memory_order_relaxed); }

 private:
  void finish(std::optional<Error> failure) noexcept;

  const Request request_;
  std::optional<Error> failure_;  // written before done_ is set, constant afterwards
  std::atomic<bool> done_{false};
  std::atomic<bool> seen_{false};
  std::atomic<bool> in_order_{false};
  std::mutex callbacks_mutex_;
  std::vector<std::function<void()>> callbacks_;  // callbacks_mutex_; until done_
};

/// Moves the bytes. Eight virtual functions; a foreign backend fits in one file.
///
/// A backend that *checks itself* is handed everything as it comes: collectives and messages,
/// blocking (run) and asynchronous (start). One that does not is easier to write: the group has
/// made sure that all ranks mean the same, and calls
///   run    for collectives only, when every rank of the group has entered the operation (one at a
///          time; by the caller of a blocking operation, else by a thread of the group);
///   start  for messages only, when both ends have found each other: the peer is a rank, both
///          counts are the same, `request.message.number` is the same at both ends. It must not
///          block; the Work ends by itself or while somebody helps it.
///
/// Memory of a device reaches only a backend whose `supports` says yes to it; for others the group
/// copies through host memory, and they see that. run then returns when the operation is queued on
/// `request.stream`, in order with what that stream has been given before.
///
/// Threads   run: one collective at a time per group. abort: from any thread, at any time.
///           Everything else: from several threads at once.
/// Errors    run and start throw tutti::Error: kTimeout if nothing moves within the request's
///           stall deadline (the group then names who has not ended the operation). After abort
///           every pending and later call fails soon.
class TUTTI_API Backend {
 public:
  virtual ~Backend();
  virtual Support supports(const OpKey& key) const = 0;
  /// Runs an operation in the caller's thread; no allocation on the fast path.
  virtual void run(const Request& request) = 0;
  virtual Work start(Request request) = 0;
  virtual std::unique_ptr<Backend> make_group(const GroupSpec& spec) = 0;
  /// Memory this backend can reduce without staging; plain aligned memory is a right answer.
  virtual Memory allocate(std::size_t byte_count) = 0;
  virtual void abort(const Cause& cause) noexcept = 0;
  /// Ends pending work in order until the deadline.
  virtual void close(Deadline deadline) = 0;
  virtual BackendInfo info() const = 0;
};

// ---- plugins: backends in shared objects of their own

/// What plugin and library must have in common; compared before a plugin is used.
inline std::string backend_abi() {
  return "tutti-backend 5; Request " + std::to_string(sizeof(Request)) + ", GroupSpec " +
         std::to_string(sizeof(GroupSpec)) + ", BackendInfo " +
         std::to_string(sizeof(BackendInfo)) + ", WorkState " + std::to_string(sizeof(WorkState)) +
         " bytes; C++ ABI " + std::to_string(__GXX_ABI_VERSION) +
#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI
         ", std::__cxx11"
#endif
      ;
}

/// Makes the shared object that contains it, `libtutti_backend_NAME.so`, the backend NAME. `make`:
/// `std::unique_ptr<Backend>(const GroupSpec&)`, called once per rank and world; `about`:
/// `BackendInfo()`, which needs no world. docs/recipes/backend.md
#define TUTTI_BACKEND_PLUGIN(make, about)                                               \
  extern "C" {                                                                          \
  [[gnu::visibility("default")]] const char* tutti_backend_abi() {                      \
    static const std::string abi = ::tutti::backend_abi();                              \
    return abi.c_str();                                                                 \
  }                                                                                     \
  [[gnu::visibility("default")]] const void* tutti_backend_library() {                  \
    return reinterpret_cast<const void*>(&::tutti::build_info);                         \
  }                                                                                     \
  [[gnu::visibility("default")]] void tutti_backend_about(::tutti::BackendInfo& info) { \
    info = about();                                                                     \
  }                                                                                     \
  [[gnu::visibility("default")]] ::tutti::Backend* tutti_backend_make(                  \
      const ::tutti::GroupSpec& spec) {                                                 \
    return make(spec).release();                                                        \
  }                                                                                     \
  }

}  // namespace tutti
