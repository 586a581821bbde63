// One operation as a plain value: what a call becomes, and everything below the group reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/buffer.h"
#include "tutti/error.h"
#include "tutti/types.h"

namespace tutti {

class Observer;
using GroupId = std::uint64_t;

/// As the peer of a recv: any rank of the group.
inline constexpr int kAnyRank = -1;
/// As the peer of a message: nobody. A send there does nothing, a recv from there leaves its buffer
/// as it is (`MessageInfo::rank` is kNoRank, its count 0): the edges of a halo exchange need no
/// `if`.
inline constexpr int kNoRank = std::numeric_limits<int>::min();

/// A message that has come.
struct MessageInfo {
  int rank = -1;  ///< who sent it
  int tag = 0;
  DType dtype = DType::u8;
  std::size_t count = 0;  ///< elements of `dtype`; a struct of one's own counts as its bytes (u8)
};

/// One operation, as a plain value: everything below the group reads it, nothing adds to it.
/// The group has checked it: counts fit, ranks and tags are in range, buffers of the ranks that use
/// them are not null, `supports` said yes. Buffers that a rank has no use for are empty.
///
/// Shape     `input` and `output` hold `count` elements or, where parts of all ranks lie side by
///           side, count * group size. They overlap only in the *in-place* forms: all_gather and
///           gather, where `input` is part `rank` of `output`; reduce_scatter and scatter, where
///           `output` is part `rank` of `input`; broadcast, all_reduce, reduce, all_to_all and the
///           scans, where both point to the same bytes.
struct Request {
  /// What only a send or recv has.
  struct Message {
    int peer = -1;  ///< of recv also kAnyRank
    int tag = 0;
    bool buffered = false;           ///< send: return before it is matched
    MessageInfo* matched = nullptr;  ///< of recv: filled in when it is matched; may be null
    /// recv of any count: makes room for `count` elements and returns where they go; called once,
    /// by any thread, when it is matched. Null: exactly as many are awaited as the request says.
    void* (*make_room)(void* context, std::size_t count) = nullptr;
    void* room_context = nullptr;
    std::size_t per_item = 1;  ///< of recv of any count: that is a multiple of this
    /// For a backend that does not check itself: the same at both ends, among the messages from one
    /// rank to another never used twice.
    std::uint64_t number = 0;
  };

  Op op = Op::barrier;
  DType dtype = DType::u8;
  bool monitored = false;        ///< barrier: the program called monitored_barrier
  bool names_all = false;        ///< barrier: its timeout names every missing rank
  bool has_own_timeout = false;  ///< `arrive` was given with the call
  ReduceOp reduce = ReduceOp::sum;
  ConstBuffer input;  ///< empty for recv and barrier
  Buffer output;      ///< empty for send and barrier
  /// A v-variant: the parts of the ranks differ in count. `send_counts` are those of `input`,
  /// `recv_counts` those of `output`, by rank, where that buffer has parts on this rank.
  bool uneven = false;
  /// Of an all_reduce of a list in one: `send_counts` are those of its buffers.
  std::span<const std::size_t> send_counts, recv_counts;
  int root = -1;  ///< of broadcast, reduce, gather, scatter
  Message message;
  GroupId group = 0;
  std::uint64_t seq = 0;    ///< collectives of the group are numbered from 1; messages carry 0
  std::uint64_t chain = 0;  ///< running hash of the group's collectives, this one included
  Deadline arrive;          ///< a member has not entered
  Deadline stall;           ///< all members are in and no byte moved
  Stream stream;            ///< of device memory: what the operation is ordered with
  Where where;
  std::shared_ptr<const void> keep_alive;
  Observer* observer = nullptr;  ///< told by whoever runs the operation; null: nobody watches
  /// Elements: what each rank contributes or receives in all_gather, gather, scatter,
  /// reduce_scatter and all_to_all; the whole buffer elsewhere.
  /// Uneven: the whole of all_gather's output and of reduce_scatter's and all_to_all's input.
  std::size_t count = 0;
};

/// The rank that a rooted collective or a message names; -1 in other operations.
inline int root_or_peer(const Request& request) noexcept {
  return is_message(request.op) ? request.message.peer : request.root;
}

/// "all_gather"; of a v-variant "all_gatherv", of a monitored barrier "monitored_barrier".
inline std::string call_name(const Request& request) {
  if (request.monitored) return "monitored_barrier";
  return std::string(name_of(request.op)) + (request.uneven ? "v" : "");
}

/// Why a group has failed: kept as a value, thrown as an Error by whoever waits or calls next.
struct Cause {
  ErrorCode code = ErrorCode::kAborted;
  std::string text;           ///< the sentence after "all_reduce #41 (rank 3): "
  std::vector<int> culprits;  ///< ranks of the group
  std::string host;
};

}  // namespace tutti
