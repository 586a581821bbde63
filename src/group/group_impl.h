// The inside of a ProcessGroup.
//
// A call becomes a Request. To *submit* it is: to find nothing wrong with it, to take the group's
// only *turn* (collectives), to *number* it (sequence and chain), and to hand it to the backend.
// One that does not check itself is used through Foreign.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/rank_thread.h"
#include "control/callers.h"
#include "control/host.h"
#include "control/membership.h"
#include "group/callback.h"
#include "group/device_queue.h"
#include "group/foreign.h"
#include "group/turnstile.h"
#include "tutti/observer.h"
#include "tutti/process_group.h"

namespace tutti::group {

/// What a group shares with the world and all groups made from it.
struct WorldParts {
  std::chrono::nanoseconds arrive{0};
  std::chrono::nanoseconds stall{0};
  std::chrono::nanoseconds close_timeout{0};
  std::shared_ptr<control::Host> host;
  std::shared_ptr<Store> store;
  std::shared_ptr<Observer> observer;  ///< may be null
  std::shared_ptr<Recall> recall;      ///< of a rank that is a thread; else null
  Settings settings;                   ///< every row
  bool check = true;                   ///< before each call of a backend that does not itself
  /// A rank of the world sees devices: large operations go in the pieces in which they are staged,
  /// on all ranks and whatever their memory.
  bool may_stage = false;
  std::string cuda_library;  ///< the setting
  std::size_t staging_bytes = std::size_t{64} << 20;
  /// The side of a device backend where the backend for host memory checks itself.
  std::function<std::unique_ptr<Side>(Backend& checks_itself)> make_side_of;
  std::string backend_name;  ///< as the program says it, if there is a device backend
  std::string why_staged;    ///< and not by NCCL, though the choice is automatic
};

/// What a group is made of.
struct Parts : WorldParts {
  std::string name;
  GroupId id = 0;
  /// The group whose new_group made this one; 0: a world. Another id once that group has failed, so
  /// that counting starts anew.
  GroupId asked_of = 0;
  std::string call;         ///< then "new_group({1, 0})", as it was written
  std::uint64_t times = 0;  ///< then so often its ranks have been asked for
  int rank = 0;
  std::vector<int> world_ranks;  ///< by rank in the group
  std::unique_ptr<control::Membership> membership;
  std::shared_ptr<Backend> backend;
  std::unique_ptr<group::Side> side;  ///< null if the backend checks itself
  /// What takes device memory; null: it is staged.
  std::shared_ptr<Backend> device_backend;
  std::unique_ptr<group::Side> device_side;  ///< of that, where `side` is null
  Recall::Entry recalled;                    ///< the membership, by which its spawner fails it
};

/// Makes `parts.backend` and, where that does not check itself, `parts.side`; and what there is for
/// device memory, but for its side.
using AddBackends = std::function<void(Parts& parts, const GroupSpec& spec)>;

/// Makes `parts.membership`, waits for the other members, adds the backends. `parent`: the group
/// that was asked for it, or null: see Membership::meet.
/// Errors  Of Membership::meet and of `add_backends`; one rank's failure ends it on all.
ProcessGroup make_group(Parts parts, const control::Membership* parent, const Where& where,
                        const AddBackends& add_backends);

}  // namespace tutti::group

namespace tutti {

class ProcessGroup::Impl {
 public:
  explicit Impl(group::Parts parts);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  int rank() const noexcept { return parts_.rank; }
  Self self() const noexcept { return membership().self(); }
  std::size_t size() const noexcept { return parts_.world_ranks.size(); }
  /// How many of the members below that number are on this host.
  int local_ranks_before(int member) const noexcept;
  const std::string& host() const noexcept { return membership().host(); }
  int group_size() const noexcept { return static_cast<int>(size()); }
  const group::Parts& parts() const noexcept { return parts_; }
  const BackendInfo& info() const noexcept { return info_; }

  int count_borrower() noexcept { return ++borrowers_; }

  /// A request with everything filled in that does not depend on the operation.
  Request request(Op op, const Timeout& timeout, const Where& where) const noexcept;
  /// Throws kInvalidArgument about `request`.
  [[noreturn]] void refuse(const Request& request, const std::string& text) const;
  void run(Request& request);
  Work start(Request& request);
  /// Messages: none is started if one is wrong.
  std::vector<Work> start_all(std::span<Request> messages);

  Support supports(const OpKey& key) const { return answer(key).support; }
  /// Refuses a buffer of `request` in device memory that cannot be used, or, once the group has
  /// used such, one that is not where it is said to be.
  void check_device_of(const Request& request, const ConstBuffer& buffer,
                       const std::string& name) const;
  /// Copies between host memory and the memory of `buffer`, in order with its stream. What comes
  /// from a device is there when this returns.
  void copy(void* to, const void* from, const ConstBuffer& buffer) const;
  /// Until the stream of `buffer` has done what it was given, or the group has failed.
  void wait_for_device(const ConstBuffer& buffer) const;
  Memory allocate(std::size_t byte_count) { return parts_.backend->allocate(byte_count); }
  ProcessGroup new_group(std::span<const int> ranks, const Where& where);

  std::optional<Error> error() const;
  void on_failure(FailureCallback callback);
  void abort(const std::string& reason);
  void close(const Timeout& budget, const Where& where);

 private:
  /// How an operation gets to a backend.
  enum class Way : std::uint8_t {
    unknown,
    host,    ///< its memory is there
    staged,  ///< from a device through the host
    direct,  ///< the device backend takes it
  };
  struct Answer {
    Support support;
    Way way;
  };
  struct Number {
    std::uint64_t seq = 0;
    std::uint64_t chain = 0;
  };

  bool failed() const noexcept {
    return membership().abort_word().load(std::memory_order_acquire) != 0;
  }
  control::Membership& membership() const noexcept { return *parts_.membership; }

  /// Of the group that was asked for the `times`th time with these ranks; its rank is -1 where this
  /// one is none of them. `of_survivors`: this group has failed.
  /// The member that is rank 0 of the world, which serves the store of a job started by hand, if it
  /// is lost.
  std::vector<int> lost_rank_0() const;
  std::optional<Error> failed_with(const Error& of_new) const;
  group::Turn take_turn(const Request& request);
  group::Parts next_child(std::span<const int> ranks, bool of_survivors);
  group::Parts child_parts(std::span<const int> ranks, std::uint64_t times,
                           bool of_survivors) const;
  /// Refuses what is wrong with `request`; how it gets to a backend.
  Way admit(Request& request, bool blocking);
  /// Of a request of device memory, or once the group has used such; gives it its stream.
  void admit_to_device(Request& request);
  template <class Call>
  void at_device(const Request& request, Call&& call) const;
  const device::Cuda& cuda() const;
  /// A callback is no thread of the program's, whichever runs it.
  void note_caller() const noexcept {
    if (!group::inside_callback()) callers_.note();
  }
  /// Whether an operation of the group has used device memory.
  bool uses_device() const noexcept { return uses_device_.load(std::memory_order_relaxed); }
  void check_place(const Request& request, const ConstBuffer& buffer, std::string_view name) const;
  /// With its device current.
  void check_stream(const Request& request, const Device& device, Stream stream) const;
  /// A message to or from kNoRank is over at once: true, and the caller's MessageInfo says so.
  static bool is_nothing(const Request& request) noexcept;
  Answer answer(const OpKey& key) const;
  Way way_of(const Request& request) const noexcept;
  /// Refuses what nobody here does.
  Way find_way(const Request& request);
  [[noreturn]] void throw_closed(const Request& request) const;
  /// Gives `request` the next number.
  void number(Request& request, Way way);
  std::unique_ptr<group::Foreign> make_foreign(const std::shared_ptr<Backend>& backend,
                                               group::Side& side);
  void dispatch(const Request& request);
  Work dispatch_async(const Request& request);
  bool is_direct(const Request& request) const noexcept { return way_of(request) == Way::direct; }
  void dispatch_direct(const Request& request);
  Work start_direct(const Request& request);
  bool is_for_device_queue(const Request& request, Way way) const noexcept;
  /// The pieces of a collective, numbered; `request` gets the number of the first.
  std::vector<Request> pieces_of(Request& request, Way way);
  /// After a collective has thrown `failure`; `before` is what came before it.
  void after_failure(const Number& before, const Error& failure) noexcept;
  void fail_alone(const Error& failure) const noexcept;
  /// After `request` has found no memory: has failed the group with it.
  Error without_memory(const Request& request) const;
  Work start_message(const Request& request, Way way);
  /// Closes the group if nobody has; logs why it could not.
  void end() noexcept;
  /// What close does, and the destructor (which has no line), which tells nobody of a failure.
  void close_once(const Timeout& budget, const Where& where);
  /// For a further close, of what the first one failed with.
  Error closed_before(const Where& where) const;
  /// For a destructor that runs inside an operation of the group, which would wait for itself: the
  /// group is aborted, and what the operation goes on to use stays as long as the process does.
  void leave_behind() noexcept;
  /// What it is made of stays as long as the process does, and nothing of it ends.
  void keep_parts() noexcept;
  void abort_unwound();
  void abort_with(const std::string& reason, std::vector<int> culprits);
  void close_in_order(Deadline deadline, const Where& where);
  /// The program gets an Error of this group.
  void told(ErrorCode code) const noexcept;
  void fail(const Cause& cause) const noexcept;

  static Request blank(const group::Parts& parts) noexcept;

  group::Parts parts_;
  const Request blank_;        ///< what all requests have in common
  control::Callers& callers_;  // of the world
  BackendInfo info_;
  const int exceptions_at_birth_;

  int borrowers_ = 0;  // so far
  group::Turnstile turnstile_;
  Number last_;  // of the last collective; read and written by whoever has the turn
  /// new_group, by ranks: before and after the group has failed.
  std::array<std::map<std::vector<int>, std::uint64_t>, 2> times_asked_;
  std::vector<GroupId> asked_;                      ///< the latest that this rank has asked for
  std::unique_ptr<group::Foreign> foreign_;         // null if the backend checks itself
  std::unique_ptr<group::Foreign> device_foreign_;  // null without a device backend
  std::unique_ptr<group::DeviceQueue> device_queue_;
  std::atomic<bool> uses_device_{false};
  std::atomic<bool> closed_{false};       // takes no more operations
  std::atomic<bool> close_ended_{false};  // and cannot be aborted any more
  std::optional<Error> close_failure_;    // what the first close threw
  /// By operation and memory, each found by the first call.
  std::array<std::atomic<Way>, 2 * kOpCount * kDTypeCount * kReduceKindCount> ways_{};
};

inline ProcessGroup::Impl& ProcessGroup::impl(const Where& where, const char* call) const {
  if (!impl_) throw_empty(where, call);
  return *impl_;
}
inline auto& Collectives::impl(const Where& where, const char* call) {
  return static_cast<ProcessGroup&>(*this).impl(where, call);
}

}  // namespace tutti
