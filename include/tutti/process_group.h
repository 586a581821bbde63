// A group of ranks and the operations they perform together.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/backend.h"
#include "tutti/error.h"
#include "tutti/types.h"
#include "tutti/work.h"

namespace tutti {

namespace detail {
class BorrowedGroup;
}

using Timeout = std::optional<std::chrono::nanoseconds>;

/// Options of the collectives that have neither a root nor a reduce operation.
struct CollectiveOptions {
  Timeout timeout = {};  ///< until all members have entered; the group's timeout if empty
};
struct MonitoredBarrierOptions {
  Timeout timeout = {};        ///< as above
  bool wait_all_ranks = true;  ///< false: name only those furthest behind, as barrier does
};
struct RootedOptions {
  int root = 0;
  Timeout timeout = {};
};
struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum;
  Timeout timeout = {};
};
struct ReduceOptions {
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  Timeout timeout = {};
};
struct SendOptions {
  int tag = 0;
  /// Return once the bytes are on their way. Up to 4 KiB are copied, and up to 64 messages of a tag
  /// (1024 of a peer) may be unmatched; beyond either the call waits for a recv like any other.
  bool buffered = false;
  Timeout timeout = {};
};
struct RecvOptions {
  int tag = 0;
  Timeout timeout = {};
  MessageInfo* info = nullptr;  ///< asynchronous: filled in by the time the Work is done
};

struct SendRecvOptions {
  int to = 0;
  int from = 0;
  int send_tag = 0;
  int recv_tag = 0;
  Timeout timeout = {};
};
struct SplitOptions {
  int color = 0;  ///< ranks of one color form a group; negative: in none
  int key = 0;    ///< their order in it; ranks of one key keep theirs
};

/// One message of a batch.
struct Message {
  static Message send(ConstBuffer data, int to, SendOptions options = {}) {
    return {Op::send, data, {}, to, options.tag, options.timeout};
  }
  static Message recv(Buffer data, int from, RecvOptions options = {}) {
    return {Op::recv, {}, data, from, options.tag, options.timeout};
  }
  Op op = Op::send;
  ConstBuffer input = {};  ///< of send
  Buffer output = {};      ///< of recv
  int peer = 0;
  int tag = 0;
  Timeout timeout = {};
};

/// What `on_failure` is handed: called once, by the control thread.
using FailureCallback = std::function<void(const Error&)>;

/// Ranks that communicate. Made by init_process_group (the world) and by new_group.
///
///     auto world = tutti::init_process_group();
///     std::vector<float> x(1000, world.rank());
///     world.all_reduce(x);                              // every rank holds the sum
///     world.all_reduce(x, {.op = ReduceOp::avg, .timeout = 5s});
///
/// Shape     `count` is the number of elements each rank contributes or receives in all_gather,
///           gather, scatter, reduce_scatter and all_to_all, and of the whole buffer elsewhere.
///           In-place forms take the whole buffer; rank r's part begins at r * count.
/// Lifetime Move-only. Works and the world's groups must not outlive what made them. The
/// destructor
///           closes within 2 s and never throws; while an exception unwinds it aborts at once.
/// Ordering  Collectives of a group, blocking and asynchronous, complete in submission order on
///           every rank; so do messages of one (peer, tag, direction). Neither waits for the other.
/// Threads   One thread at a time submits collectives to a group: a second one gets
///           kInvalidArgument naming both call sites. Different groups are free, and so are
///           send and recv with different tags. abort, error and on_failure: any thread.
/// Numerics  The same bits on every rank and every layout: docs/numerics.md.
/// Errors    kInvalidArgument and kUnsupported leave the group usable. kCollectiveMismatch,
///           kTimeout, kPeerLost, kAborted and kClosed close it: every later call throws the first
///           cause; a recv that timed out before anything matched is the exception.
class TUTTI_API ProcessGroup {
 public:
  class Impl;  // src/group/process_group.cc

  ProcessGroup() noexcept;  ///< the empty group, which a non-member gets from new_group
  explicit ProcessGroup(std::unique_ptr<Impl> impl) noexcept;
  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;
  ~ProcessGroup();

  /// False for the group that a non-member of `new_group` gets: any call on it is kInvalidArgument.
  bool is_member() const noexcept;
  int rank() const;
  int world_size() const;                    ///< number of ranks in this group
  std::span<const int> world_ranks() const;  ///< ranks in the world, by rank in this group
  const std::string& name() const;
  BackendInfo backend() const;
  Support supports(const OpKey& key) const;

  // ---- collectives ----------------------------------------------------------------------------
  // Forms that take a list (`std::span<const Buffer>`) instead of one buffer with the parts of all
  // ranks side by side copy its buffers once more, through memory of their size.

  /// Copies root's buffer to all.
  void broadcast(Buffer data, RootedOptions options = {}, Where where = Where::current());
  Work broadcast(Buffer data, RootedOptions options, Async, Where where = Where::current());
  Work broadcast(Buffer data, Async, Where where = Where::current());

  /// Combines element by element over all ranks; every rank gets the result.
  void all_reduce(Buffer data, AllReduceOptions options = {}, Where where = Where::current());
  void all_reduce(Buffer data, ReduceOp op, Where where = Where::current());
  void all_reduce(ConstBuffer input, Buffer output, AllReduceOptions options = {},
                  Where where = Where::current());
  Work all_reduce(Buffer data, AllReduceOptions options, Async, Where where = Where::current());
  Work all_reduce(Buffer data, ReduceOp op, Async, Where where = Where::current());
  Work all_reduce(Buffer data, Async, Where where = Where::current());
  Work all_reduce(ConstBuffer input, Buffer output, AllReduceOptions options, Async,
                  Where where = Where::current());
  /// Buffers of one dtype in one pass, for many small ones; each gets what an all_reduce of its own
  /// would give, to the bit. All ranks give the same counts. The buffers must not overlap.
  ///
  /// Cost      One all_reduce of all elements and two copies of them, through memory of their size.
  /// Errors    kInvalidArgument if the dtypes differ. kCollectiveMismatch if ranks' lists do.
  void all_reduce(std::span<const Buffer> list, AllReduceOptions options = {},
                  Where where = Where::current());
  Work all_reduce(std::span<const Buffer> list, AllReduceOptions options, Async,
                  Where where = Where::current());
  /// all_reduce of one scalar, by value.
  template <Element T>
  T all_reduce_value(T value, AllReduceOptions options = {}, Where where = Where::current()) {
    all_reduce(Buffer(value), options, where);
    return value;
  }

  /// Like all_reduce, but only root's buffer holds the result; the others' is unchanged
  /// (out of place: `output` is used on root only and may be empty elsewhere).
  void reduce(Buffer data, ReduceOptions options = {}, Where where = Where::current());
  void reduce(ConstBuffer input, Buffer output, ReduceOptions options = {},
              Where where = Where::current());
  Work reduce(Buffer data, ReduceOptions options, Async, Where where = Where::current());
  Work reduce(ConstBuffer input, Buffer output, ReduceOptions options, Async,
              Where where = Where::current());

  /// Root's `output` (count * world_size elements) gets every rank's `input`, in rank order.
  void gather(ConstBuffer input, Buffer output, RootedOptions options = {},
              Where where = Where::current());
  void gather(ConstBuffer input, std::span<const Buffer> outputs, RootedOptions options = {},
              Where where = Where::current());
  Work gather(ConstBuffer input, Buffer output, RootedOptions options, Async,
              Where where = Where::current());
  Work gather(ConstBuffer input, std::span<const Buffer> outputs, RootedOptions options, Async,
              Where where = Where::current());

  /// Every rank's `output` (count * world_size elements) gets every rank's `input`, in rank order.
  /// In place: `data`, with the own part filled in.
  void all_gather(ConstBuffer input, Buffer output, CollectiveOptions options = {},
                  Where where = Where::current());
  void all_gather(ConstBuffer input, std::span<const Buffer> outputs,
                  CollectiveOptions options = {}, Where where = Where::current());
  void all_gather(Buffer data, CollectiveOptions options = {}, Where where = Where::current());
  Work all_gather(ConstBuffer input, Buffer output, CollectiveOptions options, Async,
                  Where where = Where::current());
  Work all_gather(ConstBuffer input, Buffer output, Async, Where where = Where::current());
  Work all_gather(ConstBuffer input, std::span<const Buffer> outputs, CollectiveOptions options,
                  Async, Where where = Where::current());

  /// Rank r gets part r of root's `input` (count * world_size elements; empty elsewhere).
  void scatter(ConstBuffer input, Buffer output, RootedOptions options = {},
               Where where = Where::current());
  void scatter(std::span<const ConstBuffer> inputs, Buffer output, RootedOptions options = {},
               Where where = Where::current());
  Work scatter(ConstBuffer input, Buffer output, RootedOptions options, Async,
               Where where = Where::current());
  Work scatter(std::span<const ConstBuffer> inputs, Buffer output, RootedOptions options, Async,
               Where where = Where::current());

  /// Combines the `input`s (count * world_size elements each); rank r gets part r of the result.
  /// In place: part r of `data` gets it, the other parts are unspecified.
  void reduce_scatter(ConstBuffer input, Buffer output, AllReduceOptions options = {},
                      Where where = Where::current());
  void reduce_scatter(Buffer data, AllReduceOptions options = {}, Where where = Where::current());
  Work reduce_scatter(ConstBuffer input, Buffer output, AllReduceOptions options, Async,
                      Where where = Where::current());
  void reduce_scatter(std::span<const ConstBuffer> inputs, Buffer output,
                      AllReduceOptions options = {}, Where where = Where::current());
  Work reduce_scatter(std::span<const ConstBuffer> inputs, Buffer output, AllReduceOptions options,
                      Async, Where where = Where::current());

  /// Part p of rank r's `input` goes to part r of rank p's `output`. In place: `data`.
  void all_to_all(ConstBuffer input, Buffer output, CollectiveOptions options = {},
                  Where where = Where::current());
  void all_to_all(Buffer data, CollectiveOptions options = {}, Where where = Where::current());
  Work all_to_all(ConstBuffer input, Buffer output, CollectiveOptions options, Async,
                  Where where = Where::current());
  Work all_to_all(ConstBuffer input, Buffer output, Async, Where where = Where::current());
  /// The buffers of a list may differ in count; both ends of each must agree. The lists may hold
  /// the same buffers.
  void all_to_all(std::span<const ConstBuffer> inputs, std::span<const Buffer> outputs,
                  CollectiveOptions options = {}, Where where = Where::current());
  Work all_to_all(std::span<const ConstBuffer> inputs, std::span<const Buffer> outputs,
                  CollectiveOptions options, Async, Where where = Where::current());

  /// Rank r gets what all_reduce over the ranks 0 to r would give. In place: `data`.
  ///
  /// Numerics  The bits of that all_reduce. avg is kUnsupported.
  /// Cost      n (n - 1) / 2 messages of the whole buffer: made for few ranks or small buffers.
  void scan(Buffer data, AllReduceOptions options = {}, Where where = Where::current());
  void scan(ConstBuffer input, Buffer output, AllReduceOptions options = {},
            Where where = Where::current());
  Work scan(Buffer data, AllReduceOptions options, Async, Where where = Where::current());
  Work scan(ConstBuffer input, Buffer output, AllReduceOptions options, Async,
            Where where = Where::current());

  /// The same over the ranks 0 to r - 1. Rank 0 gets the identity: 0 for sums, 1 for product,
  /// infinity or the largest value for min, its opposite for max, all bits for band, none for bor
  /// and bxor.
  void exclusive_scan(Buffer data, AllReduceOptions options = {}, Where where = Where::current());
  void exclusive_scan(ConstBuffer input, Buffer output, AllReduceOptions options = {},
                      Where where = Where::current());
  Work exclusive_scan(Buffer data, AllReduceOptions options, Async, Where where = Where::current());
  Work exclusive_scan(ConstBuffer input, Buffer output, AllReduceOptions options, Async,
                      Where where = Where::current());

  // ---- the same with parts of different counts ------------------------------------------------
  // `counts` have one entry per rank, in elements; parts lie side by side in rank order. Entries
  // may be 0. Blocking forms copy nothing; asynchronous ones copy the counts.

  /// Rank r contributes counts[r] elements. `counts` are the same on all ranks. In place: `input`
  /// is the own part of `output`.
  void all_gatherv(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                   CollectiveOptions options = {}, Where where = Where::current());
  Work all_gatherv(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                   CollectiveOptions options, Async, Where where = Where::current());

  /// Rank r contributes counts[r] elements. `output` and `counts` are used on root only.
  void gatherv(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
               RootedOptions options = {}, Where where = Where::current());
  Work gatherv(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
               RootedOptions options, Async, Where where = Where::current());

  /// Rank r gets counts[r] elements. `input` and `counts` are used on root only.
  void scatterv(ConstBuffer input, std::span<const std::size_t> counts, Buffer output,
                RootedOptions options = {}, Where where = Where::current());
  Work scatterv(ConstBuffer input, std::span<const std::size_t> counts, Buffer output,
                RootedOptions options, Async, Where where = Where::current());

  /// Rank r gets part r, of counts[r] elements, of the combined inputs. `counts` are the same on
  /// all ranks. In place: `output` is the own part of `input`.
  void reduce_scatterv(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                       AllReduceOptions options = {}, Where where = Where::current());
  Work reduce_scatterv(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                       AllReduceOptions options, Async, Where where = Where::current());

  /// Part p of `input` goes to rank p, whose recv_counts must say so. Not in place.
  void all_to_allv(ConstBuffer input, std::span<const std::size_t> send_counts, Buffer output,
                   std::span<const std::size_t> recv_counts, CollectiveOptions options = {},
                   Where where = Where::current());
  Work all_to_allv(ConstBuffer input, std::span<const std::size_t> send_counts, Buffer output,
                   std::span<const std::size_t> recv_counts, CollectiveOptions options, Async,
                   Where where = Where::current());

  /// Returns when every rank has entered.
  void barrier(CollectiveOptions options = {}, Where where = Where::current());
  Work barrier(CollectiveOptions options, Async, Where where = Where::current());
  Work barrier(Async, Where where = Where::current());
  /// A barrier for finding out who is missing. Where the error of any other operation names the
  /// ranks that are furthest behind, since the rest may be waiting for those, this one names every
  /// rank that has not entered, on every rank, with what each is doing.
  ///
  /// Errors  kTimeout: `culprits` are all that are missing; the group is closed.
  void monitored_barrier(MonitoredBarrierOptions options = {}, Where where = Where::current());

  // ---- messages -------------------------------------------------------------------------------

  /// Sends to rank `to` and returns when the receive has been posted and agrees in count and dtype
  /// (buffered: as soon as the bytes are copied; its errors come at the next call).
  void send(ConstBuffer data, int to, SendOptions options = {}, Where where = Where::current());
  Work send(ConstBuffer data, int to, SendOptions options, Async, Where where = Where::current());
  Work send(ConstBuffer data, int to, Async, Where where = Where::current());
  template <class T>
  Work send(std::vector<T>&& temporary, int to, SendOptions options, Async) = delete;
  template <class T>
  Work send(std::vector<T>&& temporary, int to, Async) = delete;

  /// Receives exactly `data.count` elements from rank `from`, or from whichever rank sends first
  /// with this tag (kAnyRank); returns who sent them.
  MessageInfo recv(Buffer data, int from, RecvOptions options = {}, Where where = Where::current());
  Work recv(Buffer data, int from, RecvOptions options, Async, Where where = Where::current());
  Work recv(Buffer data, int from, Async, Where where = Where::current());

  /// Receives a message of any count: `data`, which must outlive the Work, gets its size.
  template <Element T>
    requires(!std::is_same_v<T, bool>)
  MessageInfo recv_resize(std::vector<T>& data, int from, RecvOptions options = {},
                          Where where = Where::current()) {
    return recv_into({dtype_of<T>, &make_room<T>, &data}, from, options, where);
  }
  template <Element T>
    requires(!std::is_same_v<T, bool>)
  Work recv_resize(std::vector<T>& data, int from, RecvOptions options, Async,
                   Where where = Where::current()) {
    return recv_into({dtype_of<T>, &make_room<T>, &data}, from, options, async, where);
  }
  template <Element T>
    requires(!std::is_same_v<T, bool>)
  Work recv_resize(std::vector<T>& data, int from, Async, Where where = Where::current()) {
    return recv_resize(data, from, {}, async, where);
  }

  /// Posts all messages, then waits for all: no order among ranks can deadlock, to oneself
  /// included. If one is wrong (kInvalidArgument) nothing is posted; else the first failure is
  /// thrown once all have ended.
  void batch(std::span<const Message> messages, Where where = Where::current());
  std::vector<Work> batch(std::span<const Message> messages, Async, Where where = Where::current());
  /// Sends to one rank and receives from one, maybe the same, at once. The buffers must not
  /// overlap.
  void sendrecv(ConstBuffer input, Buffer output, SendRecvOptions options,
                Where where = Where::current());

  // ---- groups, memory, life -------------------------------------------------------------------

  /// A group of some of this group's ranks, in the order given. Local: only members need to call
  /// it, all of them with the same ranks; anybody else gets the empty group. Returns when all
  /// members have called it; survivors of a failed group may.
  ///
  /// Errors  kPeerLost, kClosed: a member died or left before it came. kTimeout after the group's
  ///         timeout: who did not come. kCollectiveMismatch: members ask for different groups. What
  ///         this group fails with meanwhile.
  ProcessGroup new_group(std::span<const int> ranks, Where where = Where::current());
  ProcessGroup new_group(std::initializer_list<int> ranks, Where where = Where::current());

  /// Divides the group: ranks that give the same color form a group, ordered by key, then by rank.
  /// All ranks must call it; one with a negative color gets the empty group.
  ///
  /// Errors  Those of all_gather and of new_group.
  ProcessGroup split(SplitOptions options, Where where = Where::current());

  /// Memory that the backend reduces without staging where it can. Aligned to a page.
  Memory allocate(std::size_t byte_count);

  /// The cause of failure, if the group has failed.
  std::optional<Error> error() const;
  /// Calls `callback` once with the cause when the group fails (at once if it has).
  void on_failure(FailureCallback callback);
  /// Fails the group on all ranks: pending and later calls throw kAborted with `reason`.
  void abort(const std::string& reason);
  /// Leaves in order: ends pending work, says goodbye, waits for the others' goodbyes and compares
  /// what was done. After the deadline (empty: the setting close_timeout, 30 s): kTimeout naming
  /// who has not left.
  void close(Timeout deadline = {});

 private:
  /// Where a message of any count goes.
  struct Room {
    DType dtype;
    void* (*make)(void* context, std::size_t count);
    void* context;
  };
  template <Element T>
  static void* make_room(void* vector, std::size_t count) {
    auto& data = *static_cast<std::vector<T>*>(vector);
    data.resize(count);
    return data.data();
  }
  MessageInfo recv_into(Room room, int from, RecvOptions options, Where where);
  Work recv_into(Room room, int from, RecvOptions options, Async, Where where);

  friend class detail::BorrowedGroup;
  explicit ProcessGroup(std::shared_ptr<Impl> impl) noexcept;

  Impl& impl() const;           // throws kInvalidArgument on the empty group
  std::shared_ptr<Impl> impl_;  // shared for the length of a call by those who have borrowed it
};

namespace detail {

/// A group that somebody else owns. It is found again wherever its ProcessGroup is moved to.
///
/// Threads   Borrowing: as collectives, one thread at a time.
class TUTTI_API BorrowedGroup {
 public:
  /// Errors  kInvalidArgument: the group is empty.
  explicit BorrowedGroup(const ProcessGroup& group);
  /// The group, for one call; the empty group once it has been destroyed.
  ProcessGroup lock() const noexcept;
  /// How many times the group had been borrowed, this time included: the same on all ranks, if they
  /// borrow in the same order.
  int number() const noexcept { return number_; }

 private:
  std::weak_ptr<ProcessGroup::Impl> impl_;
  int number_;
};

}  // namespace detail

}  // namespace tutti
