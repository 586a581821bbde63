// A group of ranks and the operations they perform together.
#pragma once

#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tutti/backend.h"
#include "tutti/buffer.h"
#include "tutti/collectives.h"
#include "tutti/error.h"
#include "tutti/misuse.h"
#include "tutti/types.h"
#include "tutti/work.h"

namespace tutti {

namespace detail {
class BorrowedGroup;
}

struct SendOptions {
  int tag = 0;
  /// Return once the bytes are copied, whatever the receiver does. Up to 64 MiB for each pair of
  /// ranks may be unmatched (see send); beyond that it waits for its turn like any other.
  bool buffered = false;
  Timeout timeout = {};
};
struct RecvOptions {
  int tag = 0;
  Timeout timeout = {};
  MessageInfo* info = nullptr;  ///< filled in by the time the call, or its Work, is done
};

/// A rank that must be given: an option of this type that is left out does not compile.
class RequiredRank {
 public:
  template <class T = int>
  constexpr RequiredRank() noexcept {
    static_assert(!std::same_as<T, int>,
                  "tutti: sendrecv takes the rank to send to and the one to receive from, maybe "
                  "the same: {.to = 1, .from = 1}; kNoRank is nobody");
  }
  constexpr RequiredRank(int rank) noexcept : rank_(rank) {}
  constexpr operator int() const noexcept { return rank_; }

 private:
  int rank_;
};

struct SendRecvOptions {
  RequiredRank to;    ///< or kNoRank
  RequiredRank from;  ///< or kAnyRank, kNoRank
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
    return {.op = Op::send,
            .input = data,
            .peer = to,
            .tag = options.tag,
            .timeout = options.timeout,
            .buffered = options.buffered};
  }
  static Message recv(Buffer data, int from, RecvOptions options = {}) {
    return {.op = Op::recv,
            .output = data,
            .peer = from,
            .tag = options.tag,
            .timeout = options.timeout,
            .info = options.info};
  }
  Op op = Op::send;
  ConstBuffer input = {};  ///< of send
  Buffer output = {};      ///< of recv
  int peer = 0;
  int tag = 0;
  Timeout timeout = {};
  bool buffered = false;        ///< of send
  MessageInfo* info = nullptr;  ///< of recv: filled in by the time its Work is done
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
/// Its collectives are in tutti/collectives.h.
///
/// Shape     `count` is the number of elements each rank contributes or receives in all_gather,
///           gather, scatter, reduce_scatter and all_to_all, and of the whole buffer elsewhere.
///           In-place forms take the whole buffer; rank r's part begins at r * count. Where only
///           the root has a whole (output of gather, input of scatter), others pass Buffer() or
///           ConstBuffer(), not {}.
/// Lifetime  Move-only. Works and the world's groups must not outlive what made them. The
///           destructor closes within 2 s and never throws; while an exception unwinds it aborts at
///           once.
/// Ordering  Collectives of a group, blocking and asynchronous, complete in submission order on
///           every rank; so do messages of one (peer, tag, direction), but for buffered sends,
///           which end at once. Neither waits for the other.
/// Threads   One thread at a time submits collectives to a group: a second one gets
///           kInvalidArgument naming both call sites. Different groups are free, and so are
///           send and recv with different tags. abort, error and on_failure: any thread.
/// Numerics  The same bits on every rank and every layout: docs/numerics.md.
/// Errors    kInvalidArgument and kUnsupported leave the group usable. kCollectiveMismatch,
///           kDeadlock, kTimeout, kPeerLost, kAborted and kClosed close it: every later call throws
///           the first cause; a message that timed out before it was matched is the exception.
/// Deadlock  Ranks that wait for each other in a circle, in calls on one world's groups, are told
///           within about a second (setting deadlock_after): kDeadlock on every member of the
///           groups they wait in. Not taken for stuck is a rank in a call with a timeout of its
///           own, in `Work::wait_for`, in a `wait_any` of more than eight Works, in `close`, which
///           has a deadline of its own, in a backend's library, or in which a callback of
///           `Work::then` is yet to run, or one of `on_failure` of a group that has failed; nor
///           one whose other operations, asynchronous ones, still move now and then. Nor is one in
///           which two threads have called the world, at any time; the thread that made it is one.
///           What cannot be seen is a thread that is about to help with the first call it
///           makes: let it call something before (`error`, `rank` and `Work::done` do not count),
///           give the waiting call a timeout, or set TUTTI_DEADLOCK=warn or off, on all ranks.
class TUTTI_API ProcessGroup : public Collectives, private detail::MisusedMessages {
 public:
  class Impl;  // src/group/group_impl.h

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
  /// Of the ranks of this group those on this host: which of them this one is, and how many there
  /// are. With one rank per GPU, in the world: the number of the GPU.
  int local_rank() const;
  int local_world_size() const;
  std::string host() const;  ///< this one's name
  const std::string& name() const;
  BackendInfo backend() const;
  Support supports(const OpKey& key) const;

  // ---- messages -------------------------------------------------------------------------------
  // Every peer may be kNoRank, with which there is nothing to send or to receive.

  /// Sends to rank `to` and returns when the receive has been posted and agrees in count and dtype
  /// (buffered: as soon as the bytes are copied, whatever the receiver does; its errors come at the
  /// next call, and one that nobody has received when the group is closed is dropped without an
  /// error). Messages that nobody has received yet do not hold up others, up to 64 MiB for each
  /// pair of ranks: 128 bytes for a message, and its content where that is small or buffered.
  /// Beyond that they wait for their turn, a larger one for its receive.
  ///
  /// Errors  kTimeout before it was matched: it is taken back and the group stays usable, as with
  ///         recv.
  void send(ConstBuffer data, int to, SendOptions options = {}, Where where = Where::current());
  Work send(ConstBuffer data, int to, SendOptions options, Async, Where where = Where::current());
  Work send(ConstBuffer data, int to, Async, Where where = Where::current());

  /// Receives exactly `data.count` elements from rank `from`, or from whichever rank sends first
  /// with this tag (kAnyRank); returns who sent them.
  MessageInfo recv(Buffer data, int from, RecvOptions options = {}, Where where = Where::current());
  Work recv(Buffer data, int from, RecvOptions options, Async, Where where = Where::current());
  Work recv(Buffer data, int from, Async, Where where = Where::current());

  /// Receives a message of any count: `data`, which must outlive the Work, gets its size. A
  /// std::vector, std::string or what else resizes and holds its elements side by side.
  template <class Resizable>
  MessageInfo recv_resize(Resizable& data, int from, RecvOptions options = {},
                          Where where = Where::current()) {
    return recv_into(room_in(data), from, options, where);
  }
  template <class Resizable>
  Work recv_resize(Resizable& data, int from, RecvOptions options, Async,
                   Where where = Where::current()) {
    return recv_into(room_in(data), from, options, async, where);
  }
  template <class Resizable>
  Work recv_resize(Resizable& data, int from, Async, Where where = Where::current()) {
    return recv_resize(data, from, {}, async, where);
  }

  /// Posts all messages, then waits for all: no order among ranks can deadlock, to oneself
  /// included. If one is wrong (kInvalidArgument) nothing is posted; else the first failure is
  /// thrown once all have ended. What one of them receives must not overlap another's buffer.
  void batch(List<Message> messages, Where where = Where::current());
  std::vector<Work> batch(List<Message> messages, Async, Where where = Where::current());
  /// Sends to one rank and receives from one, maybe the same, at once; returns who sent. The
  /// buffers must not overlap.
  MessageInfo sendrecv(ConstBuffer input, Buffer output, SendRecvOptions options,
                       Where where = Where::current());

  // ---- groups, memory, life -------------------------------------------------------------------

  /// A group of some of this group's ranks, in the order given. Local: only members need to call
  /// it, all of them with the same ranks; anybody else gets the empty group. Returns when all
  /// members have called it; survivors of a failed group may. All members make the same groups of
  /// this one in the same order, from one thread: threads that make groups do so of a group of
  /// their own each. The members are awaited as long as InitOptions::timeout says.
  ///
  /// A member that dies as the last one comes may leave the group made on some of the others and
  /// failed on the rest. Survivors make the next one of a group that all of them have: the world.
  ///
  /// Errors  Culprits are ranks of this group. kPeerLost, kClosed: a member died or left before it
  ///         came, or has closed this group. kTimeout: who did not come. kCollectiveMismatch:
  ///         members ask for different groups; all may ask again. kSystem: a member has no room for
  ///         a group more, or the store is gone. kAborted: one has given up, and does not say why.
  ///         What this group fails with meanwhile, or has failed with and the program has not been
  ///         told.
  ProcessGroup new_group(const Integers<int>& ranks, Where where = Where::current());

  /// Divides the group: ranks that give the same color form a group, ordered by key, then by rank.
  /// All ranks must call it; one with a negative color gets the empty group.
  ///
  /// Errors  Those of all_gather and of new_group.
  ProcessGroup split(SplitOptions options, Where where = Where::current());

  /// Memory that the backend reduces without staging where it can. Aligned to a page.
  Memory allocate(std::size_t byte_count);

  /// The cause of failure, if the group has failed.
  std::optional<Error> error() const;
  /// Calls `callback` once with the cause when the group fails (at once if it has), on a thread of
  /// Tutti's. Keep it short: meanwhile this process does not see who dies. A call in it that would
  /// block is kInvalidArgument.
  void on_failure(FailureCallback callback);
  /// Fails the group on all ranks: pending and later calls throw kAborted with `reason`.
  void abort(const std::string& reason);
  /// Leaves in order: ends pending work, says goodbye, waits for the others' goodbyes and compares
  /// what was done. After the deadline (empty: the setting close_timeout, 30 s): kTimeout naming
  /// who has not left. An empty group has nothing to leave: nothing happens.
  void close(Timeout deadline = {}, Where where = Where::current());

  // What is said of other arguments.
  using MisusedMessages::send, MisusedMessages::recv, MisusedMessages::recv_resize,
      MisusedMessages::sendrecv, MisusedMessages::new_group, MisusedMessages::split;

 private:
  /// Where a message of any count goes.
  struct Room {
    DType dtype;
    void* (*make)(void* context, std::size_t count);
    void* context;
    std::size_t per_item;
  };
  template <class Resizable>
  static Room room_in(Resizable& data) {
    constexpr bool kResizes = detail::Run<Resizable&> && requires { data.resize(std::size_t{1}); };
    detail::check_buffer<Resizable&>();
    static_assert(!detail::Buffered<Resizable&> || kResizes,
                  "tutti: recv_resize makes room for what comes, in a std::vector or std::string; "
                  "recv takes buffers of any other type, of a count known beforehand");
    if constexpr (kResizes) {
      using Item = std::ranges::range_value_t<Resizable>;
      constexpr std::size_t kPerItem = detail::layout_of<Item>().per_item;
      const auto make = [](void* context, std::size_t count) -> void* {
        auto& room = *static_cast<Resizable*>(context);
        room.resize(count / kPerItem);
        return std::ranges::data(room);
      };
      return {detail::layout_of<Item>().dtype, make, &data, kPerItem};
    } else {
      return {};
    }
  }
  MessageInfo recv_into(Room room, int from, RecvOptions options, Where where);
  Work recv_into(Room room, int from, RecvOptions options, Async, Where where);

  friend class Collectives;
  friend class detail::BorrowedGroup;
  explicit ProcessGroup(std::shared_ptr<Impl> impl) noexcept;

  // src/group/group_impl.h; `call`: the calling function, for the error about an empty group.
  Impl& impl(const Where& where = {}, const char* call = __builtin_FUNCTION()) const;
  [[noreturn]] static void throw_empty(const Where& where, const char* call);
  std::shared_ptr<Impl> impl_;  // shared for the length of a call by those who have borrowed it
};

namespace detail {

/// A group that somebody else owns. It is found again wherever its ProcessGroup is moved to.
///
/// Threads   Borrowing: as collectives, one thread at a time.
class TUTTI_API BorrowedGroup {
 public:
  /// `borrower`: what needs it at `where`, for the error. An empty group is kInvalidArgument.
  BorrowedGroup(const ProcessGroup& group, const Where& where, const char* borrower);
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
