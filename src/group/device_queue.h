// The collectives of a group from the first on that touches device memory: in order, whatever
// memory each of them uses.
//
// A call is cut into *pieces*, the same on all ranks; each is a collective of its own to the
// backend. A piece on device memory is *staged* (copied to the host, done there, copied back) or,
// where a backend takes device memory, *direct*. Copies of the pieces that follow and that came
// before go on while one is done. A blocking call does its pieces itself; asynchronous ones are
// done by a thread, and everything that is called meanwhile queues up behind them.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "control/membership.h"
#include "control/progress.h"
#include "device/staging.h"
#include "tutti/backend.h"

namespace tutti::group {

/// An empty buffer may be nowhere, and says what device it would be of all the same.
inline bool is_placed_by_output(const Request& request) noexcept {
  const Buffer& output = request.output;
  return request.input.data == nullptr &&
         (output.data != nullptr || output.device.kind != Device::Kind::cpu);
}
inline const Device& device_of(const Request& request) noexcept {
  return is_placed_by_output(request) ? request.output.device : request.input.device;
}
inline Stream stream_of(const Request& request) noexcept {
  return is_placed_by_output(request) ? request.output.stream : request.input.stream;
}
inline bool is_on_device(const Request& request) noexcept {
  return device_of(request).kind != Device::Kind::cpu;
}

/// Threads   run and start of collectives: one at a time. Messages: any.
class DeviceQueue final : private control::Driver {
 public:
  /// What does an operation of host memory, or one that a backend takes on the device, as if it had
  /// been called so.
  struct Calls {
    std::function<void(const Request& collective)> run;
    std::function<Work(const Request& request)> start;
    /// Whether a backend takes this operation's device memory itself.
    std::function<bool(const Request& request)> is_direct;
  };
  /// `library`: the setting cuda_library.
  DeviceQueue(control::Membership& membership, std::string library, std::size_t staging_bytes,
              Calls calls);
  ~DeviceQueue() override;

  /// `pieces`: those of `whole`, numbered.
  void run(const Request& whole, std::vector<Request> pieces);
  Work start(Request whole, std::vector<Request> pieces);
  /// Of device memory. A send returns when its data has left the device.
  void run_message(const Request& message);
  Work start_message(const Request& message);

  std::size_t pending() const noexcept { return pending_.load(); }
  /// Ends what is under way in order until the deadline; throws kTimeout if something is left.
  void drain(Deadline deadline);

 private:
  class Operation;
  class Started;
  class Entry;
  class Carried;
  class Received;
  /// Gives a passage to the queue, which keeps it until its copies are over.
  struct Leave {
    DeviceQueue* queue;
    void operator()(device::Passage* passage) const noexcept {
      queue->leave(std::unique_ptr<device::Passage>(passage));
    }
  };
  using PassageOwner = std::unique_ptr<device::Passage, Leave>;

  Step step() noexcept override;
  void ask(Deadline::Clock::time_point now, Deadline::Clock::time_point* next) noexcept override;
  Deadline::Clock::time_point due() const noexcept override { return next_look_; }

  const device::Cuda& cuda() const { return device::Cuda::open(library_); }
  device::Lane& lane(const Device& device);
  /// Until it is `done`, or the group has failed: then it throws.
  template <class Done>
  void wait_for_device(const Request& request, Done&& done);
  bool failed() const noexcept { return membership_.abort_word().load() != 0; }
  template <class Call>
  void throwing_errors(const Request& request, Call&& call);
  template <class Call>
  void at_device(const Request& request, Call&& call);
  void fail(const Error& failure, const Request& request) noexcept;
  void ensure_thread();
  void wait_for_pending(const std::atomic<std::size_t>& count, const Request& request);
  bool step_collectives() noexcept;
  void begin_copies();
  bool end_those_over() noexcept;
  bool step_messages() noexcept;
  PassageOwner make_passage(device::Lane& lane, const Request& real);
  void leave(std::unique_ptr<device::Passage> passage) noexcept;
  bool is_leaving();
  void reap() noexcept;
  void look_after_copies() noexcept;
  void fail_stuck() noexcept;

  control::Membership& membership_;
  const std::string library_;
  const std::size_t staging_bytes_;
  const Calls calls_;

  std::mutex lanes_mutex_;
  std::map<int, std::unique_ptr<device::Lane>> lanes_;  // lanes_mutex_; by device
  std::mutex leaving_mutex_;
  std::list<std::unique_ptr<device::Passage>> leaving_;  // leaving_mutex_; with copies under way

  std::atomic<std::size_t> pending_{0};  // collectives that are not done on the host
  std::atomic<std::size_t> messages_pending_{0};
  std::atomic<std::size_t> unfinished_{0};  // collectives that are not done on the device
  std::mutex mutex_;
  std::deque<std::shared_ptr<Entry>> new_entries_;     // mutex_
  std::list<std::shared_ptr<Received>> new_received_;  // mutex_

  // The thread's own.
  std::deque<std::shared_ptr<Entry>> entries_;   // not done on the host
  std::list<std::shared_ptr<Entry>> on_device_;  // done there, or given up
  std::list<std::shared_ptr<Received>> received_;
  bool first_has_begun_ = false;
  bool is_stuck_ = false;  // a copy does not end or has failed, and so the group has failed
  Deadline::Clock::time_point next_look_ = {};

  std::atomic<bool> is_drained_{false};
  std::atomic<bool> has_thread_{false};
  control::ProgressThread thread_;
};

}  // namespace tutti::group
