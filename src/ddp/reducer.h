// The bookkeeping of one data-parallel step.
//
// During backward each parameter is *marked ready* once, when its gradient lies in its slot. A
// bucket whose parameters are all ready is *complete*. Buckets are *launched* strictly in index
// order, whatever order they complete in, so that all ranks issue the same sequence of collectives.
// The step *finishes* when all have been launched and waited for. The order of marks of the first
// finished step is the *observed order*, from which buckets may be assigned anew.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "ddp/buckets.h"

namespace tutti::ddp {

/// What the reducer does to the outside world, by bucket.
struct ReducerActions {
  std::function<void(std::size_t bucket)> launch;  ///< starts the bucket's all_reduce
  std::function<void(std::size_t bucket)> wait;    ///< until it is done; throws its failure
  std::function<void(std::size_t bucket)> drop;    ///< until what launch began is over; no throw
};

/// Threads   mark_ready may be called from several threads at once; everything else by one thread
///           at a time, when no mark_ready is under way.
class Reducer {
 public:
  enum class Mark { accepted, repeated };

  Reducer(std::size_t parameter_count, ReducerActions actions);

  /// Replaces the buckets; only between steps.
  void set_buckets(const std::vector<BucketShape>& buckets);

  /// Marks a parameter, launching what has become launchable. `repeated` changes nothing: the
  /// gradient has been marked (and perhaps sent) before in this step.
  /// Errors    What launch throws; the step then is to be reset.
  Mark mark_ready(std::size_t parameter);

  std::size_t bucket_of(std::size_t parameter) const { return bucket_of_[parameter]; }

  bool in_step() const;    ///< something has been marked since the last finish or reset
  bool all_ready() const;  ///< nothing is missing
  std::vector<std::size_t> missing() const;  ///< parameters not marked in this step, ascending

  /// Waits for every bucket and ends the step. Every launched bucket is waited for even if one
  /// fails; then the first failure is thrown.
  void finish();

  /// Forgets the step: drops what was launched.
  void reset() noexcept;

  /// The order of marks in the first step that finished; empty before.
  const std::vector<std::size_t>& observed_order() const { return observed_order_; }
  std::size_t finished_steps() const { return finished_steps_; }

 private:
  void begin_anew();

  const ReducerActions actions_;
  std::vector<std::size_t> bucket_of_;      // by parameter
  std::vector<std::size_t> parameters_in_;  // by bucket

  mutable std::mutex mutex_;  // guards what follows
  std::vector<bool> ready_;
  std::vector<std::size_t> order_;
  std::vector<std::size_t> pending_;  // by bucket: parameters not yet ready
  std::size_t launched_ = 0;          // buckets [0, launched_) are under way

  std::vector<std::size_t> observed_order_;
  std::size_t finished_steps_ = 0;
};

}  // namespace tutti::ddp
