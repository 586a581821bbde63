// Key-value stores through which ranks find each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/error.h"

namespace tutti {

/// A small shared map from keys to byte strings: how ranks publish addresses and meet.
///
///     store->set("host/0", "a");
///     std::string host = store->get("host/0", 10s);   // waits until somebody has set it
///
/// A store of one's own defines seven functions; the rest is built on them, unless it can do better
/// (wait and multi_get in one round trip).
///
/// Threads   All calls may be made from any thread.
/// Errors    Every call throws kTimeout when `timeout` has passed (naming the keys that are
///           missing) and kSystem when the server is gone or its store full (2^20 keys, 1 GiB in
///           all). Keys have 1 byte to 4 KiB, values at most 16 MiB, a multi-call at most 4096
///           keys: anything else is kInvalidArgument.
class TUTTI_API Store {
 public:
  using Timeout = std::chrono::milliseconds;
  static constexpr Timeout kDefaultTimeout{300'000};

  virtual ~Store();
  virtual void set(std::string_view key, std::string_view value,
                   Timeout timeout = kDefaultTimeout) = 0;
  /// Waits until `key` exists and returns its value.
  virtual std::string get(std::string_view key, Timeout timeout = kDefaultTimeout) = 0;
  /// Returns at once; empty when `key` does not exist.
  virtual std::optional<std::string> try_get(std::string_view key,
                                             Timeout timeout = kDefaultTimeout) = 0;
  /// Adds to a decimal integer (absent counts as 0) and returns the sum.
  virtual std::int64_t add(std::string_view key, std::int64_t amount,
                           Timeout timeout = kDefaultTimeout) = 0;
  /// Sets `key` to `desired` if its value is `expected` (or if it is absent and `expected` is
  /// empty). Returns the value after the call.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired, Timeout timeout = kDefaultTimeout) = 0;
  /// Appends to a value (absent counts as empty).
  virtual void append(std::string_view key, std::string_view value,
                      Timeout timeout = kDefaultTimeout) = 0;
  /// Removes a key; says whether it was there.
  virtual bool erase(std::string_view key, Timeout timeout = kDefaultTimeout) = 0;

  /// Waits until all keys exist.
  virtual void wait(std::span<const std::string> keys, Timeout timeout = kDefaultTimeout);
  /// Whether all keys exist now.
  virtual bool check(std::span<const std::string> keys, Timeout timeout = kDefaultTimeout);
  /// get for several keys; waits for all of them.
  virtual std::vector<std::string> multi_get(std::span<const std::string> keys,
                                             Timeout timeout = kDefaultTimeout);
  /// In a store that is full: none of them.
  virtual void multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                         Timeout timeout = kDefaultTimeout);
  /// Errors  kUnsupported: a store of one's own that does not define it.
  virtual std::int64_t num_keys(Timeout timeout = kDefaultTimeout);
  /// Returns once `world_size` callers have entered the barrier `name`. A name serves many times,
  /// for the same callers. The first whose time is over ends it for all: those who wait get
  /// kTimeout, too, and later calls with that name kInvalidArgument. The last to come returns
  /// first: if that one serves the store and ends it, the others get an error instead.
  virtual void barrier(std::string_view name, int world_size, Timeout timeout = kDefaultTimeout);
};

/// A store inside this process, shared by its threads.
TUTTI_API std::shared_ptr<Store> make_memory_store();

/// A view of `base` in which every key begins with `prefix` + '/'. num_keys counts the whole base.
TUTTI_API std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> base, std::string prefix);

/// A store in a file that all who use it see, on one host or on a file system that keeps locks
/// (fcntl) between hosts. What was written stays: remove the file before another job has the same
/// path, or give each job one of its own. It grows with every change. Waiting looks at it up to 100
/// times a second.
///
/// Errors    kSystem: it cannot be opened, locked or written, or was removed in use.
///           kInvalidArgument: it is no store's file; used in a forked child, which makes its own.
TUTTI_API std::shared_ptr<Store> make_file_store(std::string path);

/// A store that one process serves to others over TCP, as torch's TCPStore.
struct TcpStoreOptions {
  std::string host = {};  ///< of the process that serves it: a name or an address, never a wildcard
  int port = 29500;       ///< 1 to 65535
  bool is_server = false;  ///< this process serves it, for as long as it has the store
  /// Who serves it waits until so many have come, itself included. One that has come counts, also
  /// where it has gone since; each call of make_tcp_store counts as one. 0: for nobody.
  int world_size = 0;
  Store::Timeout timeout = Store::kDefaultTimeout;  ///< for this, not for the calls of the store
};

/// Serves it or connects, trying until somebody serves it.
///
///     auto store = tutti::make_tcp_store({.host = "node-1", .port = 29500, .is_server = rank == 0,
///                                         .world_size = n});
///
/// Whoever reaches the port is served, unless all who use it have TUTTI_SECURITY=auth or integrity
/// and one secret in TUTTI_SECRET_FILE. Nothing is encrypted.
///
/// Lifetime  The server ends with its store; calls of the others are kSystem then.
/// Errors    kInvalidArgument: a port out of range or taken (by whom), a host that is none or not
///           the server's, another level, no secret. kUnauthenticated: another secret. kTimeout:
///           nobody serves it, or who has not come. kUnsupported: TUTTI_SECURITY=encrypt.
TUTTI_API std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options);

}  // namespace tutti
