// What a backend implements, and the one value it is handed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/error.h"
#include "tutti/store.h"
#include "tutti/types.h"
#include "tutti/work.h"

namespace tutti {

namespace control {
class Membership;
}

class Observer;
using GroupId = std::uint64_t;

/// One operation, as a plain value: everything below the group reads it, nothing adds to it.
/// The group has checked it: counts fit, ranks and tags are in range, buffers of the ranks that use
/// them are not null, `supports` said yes. Buffers that a rank has no use for are empty.
///
/// Shape     `input` and `output` hold `count` elements or, where parts of all ranks lie side by
/// side,
///           count * group size. They overlap only in the *in-place* forms: all_gather and gather,
///           where `input` is part `rank` of `output`; reduce_scatter and scatter, where `output`
///           is part `rank` of `input`; broadcast, all_reduce, reduce and all_to_all, where both
///           point to the same bytes.
struct Request {
  Op op = Op::barrier;
  DType dtype = DType::u8;
  bool buffered = false;  ///< send: return before the message is matched
  ReduceOp reduce = ReduceOp::sum;
  ConstBuffer input;  ///< empty for recv and barrier
  Buffer output;      ///< empty for send and barrier
  /// A v-variant: the parts of the ranks differ in count. `send_counts` are those of `input`,
  /// `recv_counts` those of `output`, by rank, where that buffer has parts on this rank.
  bool uneven = false;
  std::span<const std::size_t> send_counts, recv_counts;
  int root_or_peer = -1;
  int tag = 0;
  GroupId group = 0;
  std::uint64_t seq = 0;    ///< collectives of the group are numbered from 1; messages carry 0
  std::uint64_t chain = 0;  ///< running hash of the group's collectives, this one included
  Deadline arrive;          ///< a member has not entered
  Deadline stall;           ///< all members are in and no byte moved
  Stream stream;
  Where where;
  std::shared_ptr<const void> keep_alive;
  Observer* observer = nullptr;  ///< told by whoever runs the operation; null: nobody watches
  /// A side group's barrier: the operation it precedes, which the board shows in its place.
  const Request* stands_for = nullptr;

  /// Elements in the sense of the design's glossary: what each rank contributes or receives in
  /// all_gather, gather, scatter, reduce_scatter and all_to_all; the whole buffer elsewhere.
  /// Uneven: the whole of all_gather's output and of reduce_scatter's and all_to_all's input.
  std::size_t count = 0;
};

/// "all_gather"; of a v-variant "all_gatherv".
inline std::string call_name(const Request& request) {
  return std::string(name_of(request.op)) + (request.uneven ? "v" : "");
}

/// Key of the support matrix.
struct OpKey {
  Op op;
  DType dtype;
  ReduceOp::Kind reduce;
  Device::Kind device;
};

/// Whether a backend can serve an OpKey; if not, why and what to do instead.
struct Support {
  bool yes = true;
  std::string reason;
};

/// What a backend is told about the group it serves.
struct GroupSpec {
  GroupId id = 0;
  int rank = 0;                               ///< own rank in the group
  std::vector<int> world_ranks;               ///< by rank in the group
  std::shared_ptr<Store> store;               ///< private to this group
  control::Membership* membership = nullptr;  ///< the group's place on the board; outlives it
  std::chrono::nanoseconds timeout{0};        ///< for setting up
};

/// Memory from Backend::allocate; freed with its last owner.
struct Memory {
  std::shared_ptr<void> data;
  std::size_t byte_count = 0;
};

/// Why a group has failed: kept as a value, thrown as an Error by whoever waits or calls next.
struct Cause {
  ErrorCode code = ErrorCode::kAborted;
  std::string text;           ///< the sentence after "all_reduce #41 (rank 3): "
  std::vector<int> culprits;  ///< ranks of the group
  std::string host;
};

struct BackendInfo {
  std::string name;  ///< "native"
  std::string version;
  bool checks_itself = false;  ///< verifies (seq, chain); if not, the group does before each call
  bool threads = true;         ///< several ranks may live in one process
};

/// Moves the bytes. Eight virtual functions; a foreign backend fits in one file.
///
/// Threads   run: one collective at a time per group, messages with different tags at once.
///           abort: from any thread, at any time. Everything else: as the group's user calls it.
/// Errors    run and start throw tutti::Error. After abort every pending and later call fails.
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

}  // namespace tutti
