// How the ranks of a group meet before NCCL connects them: in the group's store.
#pragma once

#include <functional>
#include <string>

#include "plugins/nccl/library.h"
#include "tutti/backend.h"

namespace tutti::nccl_backend {

/// `check` throws once the group has failed; it is asked while others are waited for.
/// Errors    kTimeout, and what the store throws.
class Meeting {
 public:
  using Clock = Deadline::Clock;
  Meeting(Store& store, int rank, int ranks, Clock::time_point end, std::function<void()> check)
      : store_(store), rank_(rank), ranks_(ranks), end_(end), check_(std::move(check)) {}

  /// Tells all others which device this rank uses. NCCL takes one rank for each, unless they
  /// `may_share`.
  /// `bus_id`: of the device; `host`: what NCCL tells hosts apart by.
  /// Errors  kUnsupported, on all ranks: two of them use one device.
  void share_devices(const std::string& bus_id, const std::string& host,
                     const std::string& nccl_version, bool may_share);
  /// What NCCL finds the others by: made by rank 0.
  ncclUniqueId exchange_id(const Nccl& nccl);

 private:
  std::string get(const std::string& key) const;
  Store::Timeout left() const;

  Store& store_;
  const int rank_;
  const int ranks_;
  const Clock::time_point end_;
  const std::function<void()> check_;
};

}  // namespace tutti::nccl_backend
