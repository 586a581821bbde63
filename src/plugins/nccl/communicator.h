// The communicator of one group, and how it ends.
//
// It is *made* by the group's first operation, on the device of its buffers: all ranks are in that
// one, so that none waits for ranks that never use the device. NCCL is told not to block. A call
// returns at once, and what it has begun is *polled* until it is queued on the stream.
//
// It *fails* once, with a cause; from then on nobody waits for NCCL. Then the watching thread
// *aborts* it, which lets go of the streams that wait for the other ranks. NCCL must not be told to
// abort while a thread is in another call with the same communicator, so every call is made under a
// lock, which the watching thread only tries to take.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "device/cuda.h"
#include "plugins/nccl/library.h"
#include "plugins/nccl/progress.h"
#include "plugins/nccl/under_way.h"
#include "plugins/nccl/watch.h"
#include "tutti/backend.h"

namespace tutti::nccl_backend {

/// Threads   prepare to free_scratch, close: one at a time. fail: any. look: the watching thread.
/// Errors    Of all but fail and look: what it has failed with. Whatever NCCL or CUDA reports is
///           such a failure.
class Communicator final : public Watched {
 public:
  /// `list`: who looks after it once it is made.
  Communicator(const GroupSpec& spec, std::shared_ptr<const Nccl> nccl,
               std::shared_ptr<WatchList> list);
  ~Communicator() override;

  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }
  const Nccl& nccl() const noexcept { return *nccl_; }

  /// Makes it, if this is the first operation. `own`: this, to be looked after.
  /// Errors  kInvalidArgument: it was made on another device. kUnsupported: CUDA cannot be used, or
  ///         two ranks use one device. kTimeout: ranks that do not come.
  void prepare(const Request& request, const std::shared_ptr<Communicator>& own);
  const device::Cuda& cuda() const noexcept { return *cuda_; }
  int device() const noexcept { return device_; }

  /// Before the first of an operation's calls, and after the last; its device is current.
  void begin(const Request& request) { under_way_->begin(request); }
  void end(const Request& request) { under_way_->end(request.stream); }

  /// Calls NCCL, `use(comm)`, and waits until what that has begun is queued; not longer than
  /// `deadline`.
  template <class Use>
  void call(const char* function, Deadline& deadline, Use&& use) {
    std::unique_lock lock(calls_);
    check();
    const ncclResult_t result = use(comm_);
    lock.unlock();
    if (result != ncclSuccess) settle(function, result, deadline);
  }
  /// Device memory that is free for what `stream` is given next, until the next use.
  void* scratch(std::size_t byte_count, Stream stream);
  /// `stream` has been given the last that uses it.
  void free_scratch(Stream stream);

  void fail(const Cause& cause) noexcept;
  /// The group goes: it is told nothing any more.
  void forget_group() noexcept;
  void close(Deadline deadline);
  bool look() noexcept override;

 private:
  struct Scratch {
    explicit Scratch(const device::Cuda& cuda) : used(cuda) {}
    device::Event used;
    void* memory = nullptr;
    std::size_t byte_count = 0;
  };

  void make(int device, const std::shared_ptr<Communicator>& own);
  ncclUniqueId meet(Deadline& deadline);
  void check() const;
  void keep(const Error& failure) noexcept;
  [[noreturn]] void fail_with(const Error& failure);
  void settle(const char* function, ncclResult_t result, Deadline& deadline);
  ncclResult_t state();
  void look_for_errors();
  void look_for_stall();
  bool end_if_failed() noexcept;

  const int rank_;
  const int ranks_;
  const int host_;  // its number
  const std::shared_ptr<Store> store_;
  const std::chrono::nanoseconds timeout_;
  const std::string cuda_file_;
  const std::shared_ptr<const Nccl> nccl_;
  const std::shared_ptr<WatchList> list_;

  // The watching thread's.
  Progress progress_;
  const std::chrono::nanoseconds progress_period_;
  std::chrono::steady_clock::time_point next_progress_{};
  std::uint64_t awaited_ = 0;  // the operation that was found to be reached, and not ended

  // Of who runs operations; constant once it is made.
  const device::Cuda* cuda_ = nullptr;
  int device_ = -1;
  std::optional<UnderWay> under_way_;
  std::optional<Scratch> scratch_;

  std::mutex calls_;           // held in every call of NCCL
  ncclComm_t comm_ = nullptr;  // calls_
  bool ended_ = false;         // calls_; closed, or aborted

  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::optional<Error> failure_;  // mutex_; the first counts
  std::mutex group_mutex_;
  std::function<void(const Cause&)> fail_group_;  // group_mutex_
};

}  // namespace tutti::nccl_backend
