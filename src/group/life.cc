// How groups begin and end.
//
// A group ends *in order* by close: pending work is finished, then every rank says goodbye with the
// number and chain of its last collective. It ends *at once* when it has failed, and when it is
// destroyed while an exception unwinds: then nobody may wait for this rank.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/of_rank.h"
#include "control/process.h"
#include "control/untold.h"
#include "group/callback.h"
#include "group/chain.h"
#include "group/check.h"
#include "group/group_impl.h"
#include "group/native_spec.h"

namespace tutti {

namespace {

constexpr std::chrono::seconds kDestructorBudget{2};

}  // namespace

namespace group {

ProcessGroup make_group(Parts parts, const control::Membership* parent, const Where& where,
                        const AddBackends& add_backends) {
  parts.membership =
      parts.host->make_membership({parts.id, parts.name, world_ranks(parts.world_ranks), parts.rank,
                                   parts.asked_of, parts.call, parts.times});
  control::Membership& membership = *parts.membership;
  parts.recalled = Recall::add(parts.recall, [&membership](const std::string& reason) {
    membership.fail({ErrorCode::kAborted, reason, {}, {}});
  });
  const std::string prefix = fmt::format("group/{:016x}", parts.id);
  NativeSpec spec;
  spec.id = parts.id;
  spec.rank = parts.rank;
  spec.world_ranks = parts.world_ranks;
  spec.store = parts.store ? make_prefix_store(parts.store, prefix) : nullptr;
  spec.timeout = parts.arrive;
  spec.settings = parts.settings;
  spec.on_failure = [&membership](FailureCallback callback) {
    membership.on_failure(std::move(callback));
  };
  spec.fail = [&membership](const Cause& cause) {
    membership.blame(Error(cause.code, cause.text, {.culprits = cause.culprits}), nullptr);
  };
  spec.membership = &membership;
  spec.sockets = parts.host->sockets();
  spec.address = parts.host->address();
  for (int member = 0; member < membership.group_size(); ++member)
    spec.hosts.push_back(spec.sockets != nullptr ? membership.host_of(member) : 0);
  const auto blame = [&](const Error& error) {
    const Error cause = membership.blame(error, parent);
    control::Untold::of_process().told(parts.id, parts.rank, cause.code());
    return cause;
  };
  try {
    membership.meet(parent, where, Deadline::after(parts.arrive));
    add_backends(parts, spec);
  } catch (const Error& error) {
    throw blame(error);
  } catch (const std::exception& thrown) {  // of what a backend is built on
    throw blame(Error(ErrorCode::kSystem, thrown.what()));
  }
  return ProcessGroup(std::make_unique<ProcessGroup::Impl>(std::move(parts)));
}

}  // namespace group

ProcessGroup::Impl::Impl(group::Parts parts)
    : parts_(std::move(parts)),
      blank_(blank(parts_)),
      callers_(parts_.host->callers()),
      info_(parts_.backend->info()),
      exceptions_at_birth_(std::uncaught_exceptions()),
      last_{0, group::chain_seed(parts_.id)} {
  note_caller();
  if (parts_.side) foreign_ = make_foreign(parts_.backend, *parts_.side);
  if (parts_.device_backend) {
    if (!parts_.side) parts_.device_side = parts_.make_side_of(*parts_.backend);
    device_foreign_ =
        make_foreign(parts_.device_backend, parts_.side ? *parts_.side : *parts_.device_side);
    info_.name = parts_.backend_name;
  }
  device_queue_ = std::make_unique<group::DeviceQueue>(
      membership(), parts_.cuda_library, parts_.staging_bytes,
      group::DeviceQueue::Calls{
          .run =
              [this](const Request& collective) {
                group::is_on_device(collective) ? dispatch_direct(collective)
                                                : dispatch(collective);
              },
          .start =
              [this](const Request& request) {
                return group::is_on_device(request) ? start_direct(request)
                                                    : dispatch_async(request);
              },
          .is_direct = [this](const Request& request) { return is_direct(request); }});
}

std::unique_ptr<group::Foreign> ProcessGroup::Impl::make_foreign(
    const std::shared_ptr<Backend>& backend, group::Side& side) {
  // Native watches the abort word; a foreign backend must be told.
  membership().on_failure([weak = std::weak_ptr(backend)](const Error& failure) {
    const std::shared_ptr<Backend> alive = weak.lock();
    if (alive) alive->abort({failure.code(), failure.what(), failure.context().culprits, {}});
  });
  return std::make_unique<group::Foreign>(*backend, side, membership(), parts_.check);
}

ProcessGroup::Impl::~Impl() {
  if (control::Process::forked()) {  // the threads that the parts wait for are in the parent
    keep_parts();
    return;
  }
  end();
  // The callback above may come too late, and a foreign backend must not end as if all were well.
  if (const auto cause = foreign_ || device_foreign_ ? membership().cause() : std::nullopt) {
    parts_.backend->abort(*cause);
    if (parts_.device_backend) parts_.device_backend->abort(*cause);
  }
}

void ProcessGroup::Impl::end() noexcept {
  if (closed_.load(std::memory_order_relaxed)) return;
  if (group::inside_callback_of(parts_.id)) {
    leave_behind();
    return;
  }
  const bool unwinds = std::uncaught_exceptions() > exceptions_at_birth_;
  try {
    if (failed()) {
      // Who gives the group up need not be told that others have given it up, too.
      if (unwinds) told(ErrorCode::kAborted);
      return;
    }
    if (unwinds) return abort_unwound();
    close_once(kDestructorBudget, {});
  } catch (const std::exception& failure) {
    if (failed()) return;  // that has its own line
    log(LogLevel::warn,
        fmt::format("group {}: closing in the destructor: {}", parts_.name, failure.what()));
  }
}

void ProcessGroup::Impl::leave_behind() noexcept {
  abort("it was destroyed in a callback of Work::then, by exit() or by the program");
  keep_parts();
}

void ProcessGroup::Impl::keep_parts() noexcept {
  (void)new (std::nothrow) group::Parts(std::move(parts_));
  (void)device_queue_.release();
  (void)device_foreign_.release();
  (void)foreign_.release();
}

int ProcessGroup::Impl::local_ranks_before(int member) const noexcept {
  int count = 0;
  for (int each = 0; each < member; ++each) count += membership().is_here(each) ? 1 : 0;
  return count;
}

void ProcessGroup::Impl::fail(const Cause& cause) const noexcept {
  until_done([&] { membership().fail(cause); });
  parts_.backend->abort(cause);
  if (parts_.device_backend) parts_.device_backend->abort(cause);
  if (parts_.side) parts_.side->abort(cause);
}

void ProcessGroup::Impl::abort(const std::string& reason) {
  if (close_ended_.load(std::memory_order_relaxed)) return;
  abort_with(reason, {rank()});
}

/// What unwinds may come from another group of the world: who began that is named here, too.
void ProcessGroup::Impl::abort_unwound() {
  std::string reason = "it left the group while an exception unwound";
  std::set<int> culprits = {rank()};
  const auto before = membership().last_told();
  if (!before) {
    reason += fmt::format(
        "; the output of that rank (pid {}), or of the program that spawned it, says which",
        ::getpid());
  }
  if (before) {
    reason += "; its program had been told: " + before->text;
    culprits.insert(before->culprits.begin(), before->culprits.end());
  }
  abort_with(reason, {culprits.begin(), culprits.end()});
}

void ProcessGroup::Impl::abort_with(const std::string& reason, std::vector<int> culprits) {
  note_caller();
  fail({ErrorCode::kAborted,
        fmt::format("rank {} aborted the group{}{}", rank(), reason.empty() ? "" : ": ", reason),
        std::move(culprits),
        {}});
  told(ErrorCode::kAborted);
}

void ProcessGroup::Impl::told(ErrorCode code) const noexcept {
  control::Untold::of_process().told(parts_.id, rank(), code);
}

std::optional<Error> ProcessGroup::Impl::error() const {
  if (!failed()) return std::nullopt;
  const Error failure = membership().error(nullptr);
  told(failure.code());
  return failure;
}

void ProcessGroup::Impl::on_failure(FailureCallback callback) {
  membership().on_failure(
      [id = parts_.id, rank = rank(), callback = std::move(callback)](const Error& failure) {
        control::Untold::of_process().told(id, rank, failure.code());
        group::run_callback([&] { callback(failure); });
      });
}

void ProcessGroup::Impl::close_in_order(Deadline deadline, const Where& where) {
  try {
    device_queue_->drain(deadline);
    if (device_foreign_) device_foreign_->drain(deadline);
    if (foreign_) foreign_->drain(deadline);
    if (parts_.device_backend) parts_.device_backend->close(deadline);
    parts_.backend->close(deadline);
    if (parts_.side) parts_.side->close(deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    ErrorContext context = error.context();
    context.call_site = name_of(where);
    throw Error(error.code(),
                fmt::format("{}: {}; rank {} {}", heading(context, parts_.name), error.what(),
                            rank(), membership().doing()),
                context);
  }
  membership().close(last_.seq, last_.chain, deadline, where);
}

void ProcessGroup::Impl::close(const Timeout& budget, const Where& where) try {
  close_once(budget, where);
} catch (const Error& failure) {
  told(failure.code());
  throw;
}

void ProcessGroup::Impl::close_once(const Timeout& budget, const Where& where) {
  group::refuse_in_callback({.op = "close", .rank = rank(), .call_site = name_of(where)});
  note_caller();
  const group::Turn turn(turnstile_, where, [&](const std::string& text) {
    ErrorContext context{.op = "close", .rank = rank(), .call_site = name_of(where)};
    const std::string message = fmt::format("{}: {}", heading(context, self().group), text);
    return Error(ErrorCode::kInvalidArgument, message, std::move(context));
  });
  if (closed_.exchange(true)) {
    if (close_failure_) throw closed_before(where);
    return;
  }
  Deadline deadline = Deadline::after(budget.value_or(parts_.close_timeout));
  deadline.start(Deadline::Clock::now());
  try {
    if (!failed()) close_in_order(deadline, where);
  } catch (const Error& failure) {
    close_failure_ = failure;
    if (failed()) membership().give_up();
    close_ended_.store(true, std::memory_order_relaxed);
    throw;
  }
  close_ended_.store(true, std::memory_order_relaxed);
  if (!failed()) return;
  membership().give_up();
  throw *(close_failure_ = membership().close_error(where));
}

Error ProcessGroup::Impl::closed_before(const Where& where) const {
  ErrorContext context = close_failure_->context();
  context.call_site = name_of(where);
  const std::string text = fmt::format("{}: closed before, which failed: {}",
                                       heading(context, parts_.name), close_failure_->what());
  return Error(close_failure_->code(), text, std::move(context));
}

namespace {

std::string new_group_call(std::span<const int> ranks) {
  return fmt::format("new_group({{{}}})", fmt::join(ranks, ", "));
}

Error new_group_error(ErrorCode code, std::span<const int> ranks, const Self& self,
                      const Where& where, const std::string& text, ErrorContext context = {}) {
  context.op = new_group_call(ranks);
  context.rank = self.rank;
  context.call_site = name_of(where);
  const std::string message = fmt::format("{}: {}", heading(context, self.group), text);
  context.op = "new_group";
  return Error(code, message, std::move(context));
}

}  // namespace

group::Parts ProcessGroup::Impl::child_parts(std::span<const int> ranks, std::uint64_t times,
                                             bool of_survivors) const {
  group::Parts child;
  const group::WorldParts& of_world = parts_;
  static_cast<group::WorldParts&>(child) = of_world;
  child.rank = -1;
  for (const int member : ranks) {
    if (member == rank()) child.rank = static_cast<int>(child.world_ranks.size());
    child.world_ranks.push_back(of_rank(parts_.world_ranks, member));
  }
  const std::string again = times > 1 ? fmt::format("#{}", times) : "";
  child.name = fmt::format("{}/{}{}", parts_.name, fmt::join(ranks, "-"), again);
  child.asked_of = of_survivors ? group::survivors_of(parts_.id) : parts_.id;
  child.call = new_group_call(ranks);
  child.times = times;
  child.id = group::child_id(child.asked_of, child.world_ranks, times);
  return child;
}

/// Of these a dispute may still be told.
constexpr std::size_t kAsked = 64;

/// A group that was asked for in vain counts: also for who asked for another one meanwhile, and so
/// knows of it.
group::Parts ProcessGroup::Impl::next_child(std::span<const int> ranks, bool of_survivors) {
  std::uint64_t& times = times_asked_[of_survivors][std::vector<int>(ranks.begin(), ranks.end())];
  group::Parts child = child_parts(ranks, ++times, of_survivors);
  while (membership().was_disputed(child.id, asked_)) {
    child = child_parts(ranks, ++times, of_survivors);
  }
  asked_.push_back(child.id);
  if (asked_.size() > kAsked) asked_.erase(asked_.begin());
  return child;
}

std::vector<int> ProcessGroup::Impl::lost_rank_0() const {
  const auto& ranks = parts_.world_ranks;
  const auto found = std::find(ranks.begin(), ranks.end(), 0);
  if (found == ranks.end()) return {};
  const auto member = static_cast<int>(found - ranks.begin());
  return membership().is_lost(member) ? std::vector<int>{member} : std::vector<int>{};
}

/// The failure of this group, if that is why one that was asked of it was not made.
std::optional<Error> ProcessGroup::Impl::failed_with(const Error& of_new) const {
  const auto cause = membership().cause();
  if (!cause || cause->code != of_new.code()) return std::nullopt;
  const bool is_same =
      cause->code == ErrorCode::kPeerLost ||
      std::string_view(of_new.what()).find(control::kParentFailed) != std::string_view::npos;
  return is_same ? error() : std::nullopt;
}

ProcessGroup ProcessGroup::Impl::new_group(std::span<const int> ranks, const Where& where) {
  group::refuse_in_callback({.op = "new_group", .rank = rank(), .call_site = name_of(where)});
  note_caller();
  const auto wrong = [&](ErrorCode code, const std::string& text, ErrorContext context = {}) {
    return new_group_error(code, ranks, self(), where, text, std::move(context));
  };
  if (closed_.load(std::memory_order_relaxed)) {
    throw wrong(ErrorCode::kClosed, "the group has been closed");
  }
  if (auto text = group::objection(ranks, group_size())) {
    throw wrong(ErrorCode::kInvalidArgument, *text);
  }
  const group::Turn turn(turnstile_, where, [&](const std::string& text) {
    return wrong(ErrorCode::kInvalidArgument, text);
  });
  // After a failure ranks may differ in what they asked for before it: counting starts anew.
  const bool of_survivors = failed();
  // Others may be making a group of survivors of the same ranks: this rank does not mean that one.
  if (of_survivors && membership().is_untold()) {
    const Error cause = *error();
    throw wrong(cause.code(), cause.what(), cause.context());
  }
  group::Parts child = next_child(ranks, of_survivors);
  if (child.rank < 0) return {};
  try {
    return group::make_group(std::move(child), &membership(), where,
                             [&](group::Parts& made, const GroupSpec& spec) {
                               made.backend = parts_.backend->make_group(spec);
                               if (parts_.side) made.side = parts_.side->make_group(spec);
                               if (!parts_.device_backend) return;
                               made.device_backend = parts_.device_backend->make_group(spec);
                             });
  } catch (const Error& error) {
    ErrorContext context = error.context();
    const std::optional<Error> own_failure = of_survivors ? std::nullopt : failed_with(error);
    // Without a culprit: the store is gone.
    context.culprits =
        group::culprits_of_new_group(ranks, context.culprits,
                                     own_failure                ? own_failure->context().culprits
                                     : context.culprits.empty() ? lost_rank_0()
                                                                : std::vector<int>{});
    throw wrong(error.code(), error.what(), std::move(context));
  }
}

}  // namespace tutti
