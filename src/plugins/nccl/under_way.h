// The operations of a communicator that are on their way on the device.
//
// An operation is *reached* when the device has done all that its stream was given before it. Once
// all ranks have said so of theirs it is NCCL's business, and without an end after the stall time
// it is *stuck*. What a program has put before it may take as long as it likes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda.h"
#include "tutti/request.h"

namespace tutti::nccl_backend {

/// Threads   begin and end: one. first_reached, begin_stall: another. reached: any.
/// Errors    kSystem: the device has failed.
class UnderWay {
 public:
  using Clock = Deadline::Clock;

  struct Operation {
    std::string call;
    std::uint64_t seq = 0;     ///< of the request
    std::uint64_t number = 0;  ///< among those of the communicator, from 1
    std::chrono::nanoseconds stall{};
    std::optional<Clock::time_point> stalls_since;  ///< see begin_stall
    bool is_stuck(Clock::time_point now) const {
      return stalls_since && now - *stalls_since >= stall;
    }
  };

  explicit UnderWay(const device::Cuda& cuda) noexcept : cuda_(cuda) {}

  /// Before the operation is queued, and after; its device is current.
  void begin(const Request& request);
  void end(Stream stream);
  /// The first that has not ended, if the device has come to it.
  std::optional<Operation> first_reached();
  /// All devices have come to the first one: it is expected to end.
  void begin_stall(Clock::time_point now);
  /// How far the device has come.
  std::uint64_t reached() const noexcept { return reached_.load(); }
  /// Lets go of all events.
  void clear() noexcept;

 private:
  struct Watched {
    explicit Watched(const device::Cuda& cuda) : reached(cuda), ended(cuda) {}
    device::Event reached, ended;
    Operation what;
  };
  bool retire_first();

  const device::Cuda& cuda_;
  std::uint64_t begun_count_ = 0;
  std::optional<Watched> begun_;
  std::atomic<std::uint64_t> reached_{0};
  std::mutex mutex_;
  std::deque<Watched> operations_;  // mutex_; in order
  std::vector<Watched> spare_;      // mutex_
};

}  // namespace tutti::nccl_backend
