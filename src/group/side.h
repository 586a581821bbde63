// What native does beside a backend that does not check itself: matching without moving, a barrier,
// an exchange of counts. See foreign.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tutti/backend.h"

namespace tutti::group {

/// How a message and its other half have found each other.
struct Match {
  int rank = -1;  ///< of recv: who sent it; of send: who receives it
  std::size_t count = 0;
  std::uint64_t number = 0;  ///< among the messages of this sender to this receiver, from 1
  void* data = nullptr;      ///< of recv: where it goes
  bool moved = false;        ///< its content came with it: buffered, or to oneself
};

/// What every rank tells all others when they meet in a collective; both empty: nothing.
struct Exchange {
  std::span<const std::uint64_t> own;
  std::span<std::uint64_t> all;  ///< by rank
};

/// The board shows the request itself, until whoever asked for this leaves it; deadlines, blame and
/// call sites are the request's too. Requests, exchanges and matches stay where they are until the
/// call or its Work has ended.
///
/// Threads   meet: one at a time. match: any.
class Side {
 public:
  virtual ~Side();
  /// Waits until all ranks are in this collective, with the same number and chain.
  virtual void meet(const Request& collective, const Exchange& exchange) = 0;
  virtual Work start_meet(const Request& collective, const Exchange& exchange) = 0;
  /// Waits until a send or recv has found its other half.
  virtual void match(const Request& message, Match& match) = 0;
  virtual Work start_match(const Request& message, Match& match) = 0;

  virtual std::unique_ptr<Side> make_group(const GroupSpec& spec) = 0;
  virtual void abort(const Cause& cause) noexcept = 0;
  virtual void close(Deadline deadline) = 0;
};

}  // namespace tutti::group
