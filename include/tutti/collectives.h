// The collectives of a ProcessGroup: what all its ranks do together.
#pragma once

#include <utility>

#include "tutti/buffer.h"
#include "tutti/misuse.h"
#include "tutti/types.h"
#include "tutti/work.h"

namespace tutti {

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

constexpr ReduceOp::operator AllReduceOptions() const noexcept { return {.op = *this}; }
constexpr ReduceOp::operator ReduceOptions() const noexcept { return {.op = *this}; }

/// One count per rank: `{9, 9}`, or any range of integers.
using CountList = Integers<std::size_t>;

/// A base of ProcessGroup, which says what holds for all of them.
///
/// Messages show the line that made a call. A function that wraps calls passes on the line of its
/// own caller: give it a last parameter `Where where = Where::current()` and each call
/// `(..., {}, where)`.
///
/// Every collective has three forms: blocking; asynchronous; asynchronous with the usual options.
/// Where a reduce operation is among the options it may stand for them: `scan(x, ReduceOp::max)`.
/// Forms that take a list (`{a, b}`, a vector or span of Buffer) instead of one buffer with the
/// parts of all ranks side by side copy its buffers once more, through memory of their size; its
/// parts may differ in count.
class TUTTI_API Collectives : private detail::MisusedCollectives {
 public:
  /// Copies root's buffer to all.
  void broadcast(Buffer data, RootedOptions options = {}, Where where = Where::current());
  Work broadcast(Buffer data, RootedOptions options, Async, Where where = Where::current());
  Work broadcast(Buffer data, Async, Where where = Where::current()) {
    return broadcast(data, {}, async, where);
  }
  /// Combines element by element over all ranks; every rank gets the result.
  void all_reduce(Operand data, AllReduceOptions options = {}, Where where = Where::current());
  Work all_reduce(Operand data, AllReduceOptions options, Async, Where where = Where::current());
  Work all_reduce(Operand data, Async, Where where = Where::current()) {
    return all_reduce(data, {}, async, where);
  }
  void all_reduce(ConstOperand input, Operand output, AllReduceOptions options = {},
                  Where where = Where::current());
  Work all_reduce(ConstOperand input, Operand output, AllReduceOptions options, Async,
                  Where where = Where::current());
  Work all_reduce(ConstOperand input, Operand output, Async, Where where = Where::current()) {
    return all_reduce(input, output, {}, async, where);
  }
  /// Buffers of one dtype in one pass, for many small ones; each gets what an all_reduce of its own
  /// would give, to the bit. All ranks give the same counts. The buffers must not overlap.
  ///
  /// Cost      One all_reduce of all elements and two copies of them, through memory of their size.
  /// Errors    kInvalidArgument if the dtypes differ. kCollectiveMismatch if ranks' lists do.
  void all_reduce(List<Buffer> list, AllReduceOptions options = {}, Where where = Where::current());
  Work all_reduce(List<Buffer> list, AllReduceOptions options, Async,
                  Where where = Where::current());
  Work all_reduce(List<Buffer> list, Async, Where where = Where::current()) {
    return all_reduce(list, {}, async, where);
  }
  /// all_reduce of one scalar, by value.
  template <Element T>
  T all_reduce_value(T value, AllReduceOptions options = {}, Where where = Where::current()) {
    all_reduce(value, options, where);
    return value;
  }

  /// Like all_reduce, but only root's buffer holds the result; the others' is unchanged
  /// (out of place: `output` is used on root only and may be empty elsewhere).
  void reduce(Operand data, ReduceOptions options = {}, Where where = Where::current());
  Work reduce(Operand data, ReduceOptions options, Async, Where where = Where::current());
  Work reduce(Operand data, Async, Where where = Where::current()) {
    return reduce(data, {}, async, where);
  }
  void reduce(ConstOperand input, Operand output, ReduceOptions options = {},
              Where where = Where::current());
  Work reduce(ConstOperand input, Operand output, ReduceOptions options, Async,
              Where where = Where::current());
  Work reduce(ConstOperand input, Operand output, Async, Where where = Where::current()) {
    return reduce(input, output, {}, async, where);
  }
  /// Root's `output` (count * world_size elements) gets every rank's `input`, in rank order. With a
  /// list all ranks call the form with a list, empty on all but root.
  void gather(ConstBuffer input, Buffer output, RootedOptions options = {},
              Where where = Where::current());
  Work gather(ConstBuffer input, Buffer output, RootedOptions options, Async,
              Where where = Where::current());
  Work gather(ConstBuffer input, Buffer output, Async, Where where = Where::current()) {
    return gather(input, output, {}, async, where);
  }
  void gather(ConstBuffer input, List<Buffer> outputs, RootedOptions options = {},
              Where where = Where::current());
  Work gather(ConstBuffer input, List<Buffer> outputs, RootedOptions options, Async,
              Where where = Where::current());
  Work gather(ConstBuffer input, List<Buffer> outputs, Async, Where where = Where::current()) {
    return gather(input, outputs, {}, async, where);
  }
  /// Every rank's `output` (count * world_size elements) gets every rank's `input`, in rank order.
  /// In place: `data`, with the own part filled in.
  void all_gather(ConstBuffer input, Output output, CollectiveOptions options = {},
                  Where where = Where::current());
  Work all_gather(ConstBuffer input, Output output, CollectiveOptions options, Async,
                  Where where = Where::current());
  Work all_gather(ConstBuffer input, Output output, Async, Where where = Where::current()) {
    return all_gather(input, output, {}, async, where);
  }
  void all_gather(ConstBuffer input, List<Buffer> outputs, CollectiveOptions options = {},
                  Where where = Where::current());
  Work all_gather(ConstBuffer input, List<Buffer> outputs, CollectiveOptions options, Async,
                  Where where = Where::current());
  Work all_gather(ConstBuffer input, List<Buffer> outputs, Async, Where where = Where::current()) {
    return all_gather(input, outputs, {}, async, where);
  }
  void all_gather(Buffer data, CollectiveOptions options = {}, Where where = Where::current());
  Work all_gather(Buffer data, CollectiveOptions options, Async, Where where = Where::current());
  Work all_gather(Buffer data, Async, Where where = Where::current()) {
    return all_gather(data, {}, async, where);
  }
  /// Rank r gets part r of root's `input` (count * world_size elements; empty elsewhere). With a
  /// list all ranks call the form with a list, empty on all but root.
  void scatter(ConstBuffer input, Buffer output, RootedOptions options = {},
               Where where = Where::current());
  Work scatter(ConstBuffer input, Buffer output, RootedOptions options, Async,
               Where where = Where::current());
  Work scatter(ConstBuffer input, Buffer output, Async, Where where = Where::current()) {
    return scatter(input, output, {}, async, where);
  }
  void scatter(List<ConstBuffer> inputs, Buffer output, RootedOptions options = {},
               Where where = Where::current());
  Work scatter(List<ConstBuffer> inputs, Buffer output, RootedOptions options, Async,
               Where where = Where::current());
  Work scatter(List<ConstBuffer> inputs, Buffer output, Async, Where where = Where::current()) {
    return scatter(inputs, output, {}, async, where);
  }
  /// Combines the `input`s (count * world_size elements each); rank r gets part r of the result.
  /// In place: part r of `data` gets it, the other parts are unspecified.
  void reduce_scatter(ConstOperand input, Operand output, AllReduceOptions options = {},
                      Where where = Where::current());
  Work reduce_scatter(ConstOperand input, Operand output, AllReduceOptions options, Async,
                      Where where = Where::current());
  Work reduce_scatter(ConstOperand input, Operand output, Async, Where where = Where::current()) {
    return reduce_scatter(input, output, {}, async, where);
  }
  void reduce_scatter(List<ConstBuffer> inputs, Operand output, AllReduceOptions options = {},
                      Where where = Where::current());
  Work reduce_scatter(List<ConstBuffer> inputs, Operand output, AllReduceOptions options, Async,
                      Where where = Where::current());
  Work reduce_scatter(List<ConstBuffer> inputs, Operand output, Async,
                      Where where = Where::current()) {
    return reduce_scatter(inputs, output, {}, async, where);
  }
  void reduce_scatter(Operand data, AllReduceOptions options = {}, Where where = Where::current());
  Work reduce_scatter(Operand data, AllReduceOptions options, Async,
                      Where where = Where::current());
  Work reduce_scatter(Operand data, Async, Where where = Where::current()) {
    return reduce_scatter(data, {}, async, where);
  }
  /// Part p of rank r's `input` goes to part r of rank p's `output`. In place: `data`. The lists
  /// may hold the same buffers.
  void all_to_all(ConstBuffer input, Output output, CollectiveOptions options = {},
                  Where where = Where::current());
  Work all_to_all(ConstBuffer input, Output output, CollectiveOptions options, Async,
                  Where where = Where::current());
  Work all_to_all(ConstBuffer input, Output output, Async, Where where = Where::current()) {
    return all_to_all(input, output, {}, async, where);
  }
  void all_to_all(List<ConstBuffer> inputs, List<Buffer> outputs, CollectiveOptions options = {},
                  Where where = Where::current());
  Work all_to_all(List<ConstBuffer> inputs, List<Buffer> outputs, CollectiveOptions options, Async,
                  Where where = Where::current());
  Work all_to_all(List<ConstBuffer> inputs, List<Buffer> outputs, Async,
                  Where where = Where::current()) {
    return all_to_all(inputs, outputs, {}, async, where);
  }
  void all_to_all(Buffer data, CollectiveOptions options = {}, Where where = Where::current());
  Work all_to_all(Buffer data, CollectiveOptions options, Async, Where where = Where::current());
  Work all_to_all(Buffer data, Async, Where where = Where::current()) {
    return all_to_all(data, {}, async, where);
  }
  /// Rank r gets what all_reduce over the ranks 0 to r would give. In place: `data`.
  ///
  /// Numerics  The bits of that all_reduce. avg is kUnsupported.
  /// Cost      n (n - 1) / 2 messages of the whole buffer: made for few ranks or small buffers.
  void scan(Operand data, AllReduceOptions options = {}, Where where = Where::current());
  Work scan(Operand data, AllReduceOptions options, Async, Where where = Where::current());
  Work scan(Operand data, Async, Where where = Where::current()) {
    return scan(data, {}, async, where);
  }
  void scan(ConstOperand input, Operand output, AllReduceOptions options = {},
            Where where = Where::current());
  Work scan(ConstOperand input, Operand output, AllReduceOptions options, Async,
            Where where = Where::current());
  Work scan(ConstOperand input, Operand output, Async, Where where = Where::current()) {
    return scan(input, output, {}, async, where);
  }
  /// The same over the ranks 0 to r - 1. Rank 0 gets the identity: 0 for sums, 1 for product,
  /// infinity or the largest value for min, its opposite for max, all bits for band, none for bor
  /// and bxor.
  void exclusive_scan(Operand data, AllReduceOptions options = {}, Where where = Where::current());
  Work exclusive_scan(Operand data, AllReduceOptions options, Async,
                      Where where = Where::current());
  Work exclusive_scan(Operand data, Async, Where where = Where::current()) {
    return exclusive_scan(data, {}, async, where);
  }
  void exclusive_scan(ConstOperand input, Operand output, AllReduceOptions options = {},
                      Where where = Where::current());
  Work exclusive_scan(ConstOperand input, Operand output, AllReduceOptions options, Async,
                      Where where = Where::current());
  Work exclusive_scan(ConstOperand input, Operand output, Async, Where where = Where::current()) {
    return exclusive_scan(input, output, {}, async, where);
  }
  // ---- the same with parts of different counts ------------------------------------------------
  // `counts` have one entry per rank, in items of the buffer; parts lie side by side in rank order.
  // Entries may be 0. Blocking forms copy nothing if they are std::size_t; asynchronous ones copy
  // the counts.

  /// Rank r contributes counts[r] elements. `counts` are the same on all ranks. In place: `input`
  /// is the own part of `output`.
  void all_gatherv(ConstBuffer input, Buffer output, CountList counts,
                   CollectiveOptions options = {}, Where where = Where::current());
  Work all_gatherv(ConstBuffer input, Buffer output, CountList counts, CollectiveOptions options,
                   Async, Where where = Where::current());
  Work all_gatherv(ConstBuffer input, Buffer output, CountList counts, Async,
                   Where where = Where::current()) {
    return all_gatherv(input, output, std::move(counts), {}, async, where);
  }
  /// Rank r contributes counts[r] elements. `output` and `counts` are used on root only.
  void gatherv(ConstBuffer input, Buffer output, CountList counts, RootedOptions options = {},
               Where where = Where::current());
  Work gatherv(ConstBuffer input, Buffer output, CountList counts, RootedOptions options, Async,
               Where where = Where::current());
  Work gatherv(ConstBuffer input, Buffer output, CountList counts, Async,
               Where where = Where::current()) {
    return gatherv(input, output, std::move(counts), {}, async, where);
  }
  /// Rank r gets counts[r] elements. `input` and `counts` are used on root only.
  void scatterv(ConstBuffer input, CountList counts, Buffer output, RootedOptions options = {},
                Where where = Where::current());
  Work scatterv(ConstBuffer input, CountList counts, Buffer output, RootedOptions options, Async,
                Where where = Where::current());
  Work scatterv(ConstBuffer input, CountList counts, Buffer output, Async,
                Where where = Where::current()) {
    return scatterv(input, std::move(counts), output, {}, async, where);
  }
  /// Rank r gets part r, of counts[r] elements, of the combined inputs. `counts` are the same on
  /// all ranks. In place: `output` is the own part of `input`.
  void reduce_scatterv(ConstOperand input, Operand output, CountList counts,
                       AllReduceOptions options = {}, Where where = Where::current());
  Work reduce_scatterv(ConstOperand input, Operand output, CountList counts,
                       AllReduceOptions options, Async, Where where = Where::current());
  Work reduce_scatterv(ConstOperand input, Operand output, CountList counts, Async,
                       Where where = Where::current()) {
    return reduce_scatterv(input, output, std::move(counts), {}, async, where);
  }
  /// Part p of `input` goes to rank p, whose recv_counts must say so. Not in place.
  void all_to_allv(ConstBuffer input, CountList send_counts, Buffer output, CountList recv_counts,
                   CollectiveOptions options = {}, Where where = Where::current());
  Work all_to_allv(ConstBuffer input, CountList send_counts, Buffer output, CountList recv_counts,
                   CollectiveOptions options, Async, Where where = Where::current());
  Work all_to_allv(ConstBuffer input, CountList send_counts, Buffer output, CountList recv_counts,
                   Async, Where where = Where::current()) {
    return all_to_allv(input, std::move(send_counts), output, std::move(recv_counts), {}, async,
                       where);
  }

  /// Returns when every rank has entered.
  void barrier(CollectiveOptions options = {}, Where where = Where::current());
  Work barrier(CollectiveOptions options, Async, Where where = Where::current());
  Work barrier(Async, Where where = Where::current()) { return barrier({}, async, where); }
  /// A barrier for finding out who is missing. Where the error of any other operation names the
  /// ranks that are furthest behind, since the rest may be waiting for those, this one names every
  /// rank that has not entered, on every rank, with what each is doing.
  ///
  /// Errors  kTimeout: `culprits` are all that are missing; the group is closed.
  void monitored_barrier(MonitoredBarrierOptions options = {}, Where where = Where::current());

  // What is said of other arguments.
  using MisusedCollectives::broadcast, MisusedCollectives::all_reduce,
      MisusedCollectives::all_reduce_value, MisusedCollectives::reduce, MisusedCollectives::gather,
      MisusedCollectives::all_gather, MisusedCollectives::scatter,
      MisusedCollectives::reduce_scatter, MisusedCollectives::all_to_all, MisusedCollectives::scan,
      MisusedCollectives::exclusive_scan, MisusedCollectives::all_gatherv,
      MisusedCollectives::gatherv, MisusedCollectives::scatterv,
      MisusedCollectives::reduce_scatterv, MisusedCollectives::all_to_allv,
      MisusedCollectives::barrier, MisusedCollectives::monitored_barrier;

 private:
  friend class ProcessGroup;
  // src/group/group_impl.h
  auto& impl(const Where& where, const char* call = __builtin_FUNCTION());
  Collectives() = default;
  Collectives(Collectives&&) = default;
  Collectives& operator=(Collectives&&) = default;
  ~Collectives() = default;
};

}  // namespace tutti
