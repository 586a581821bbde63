// The way of a request from the public call to the backend.
#include <fmt/format.h>

#include <new>
#include <utility>
#include <vector>

#include "base/legality.h"
#include "group/callback.h"
#include "group/chain.h"
#include "group/check.h"
#include "group/group_impl.h"

namespace tutti {

namespace {

std::size_t support_index(const Request& request) noexcept {
  return (static_cast<std::size_t>(request.op) * kDTypeCount +
          static_cast<std::size_t>(request.dtype)) *
             kReduceKindCount +
         static_cast<std::size_t>(request.reduce.kind());
}

Device device_of(const Request& request) noexcept {
  return request.input.data != nullptr ? request.input.device : request.output.device;
}

/// Whether the group can go on as if the call had never been made.
bool is_harmless(ErrorCode code) noexcept {
  return code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported;
}

/// Shares the ownership of what the buffers point into, where their types have owners.
std::shared_ptr<const void> retain(const Request& request) {
  using Owner = std::shared_ptr<const void>;
  Owner input, output;
  if (request.input.retain != nullptr) input = request.input.retain(request.input.source);
  if (request.output.retain != nullptr) output = request.output.retain(request.output.source);
  if (!input) return output;
  if (!output) return input;
  return std::make_shared<std::pair<Owner, Owner>>(std::move(input), std::move(output));
}

/// Copies the counts of a v-variant, so that the caller need not keep them.
void keep_counts(Request& request) {
  auto counts =
      std::make_shared<std::pair<std::vector<std::size_t>, std::shared_ptr<const void>>>();
  std::vector<std::size_t>& all = counts->first;
  all.assign(request.send_counts.begin(), request.send_counts.end());
  all.insert(all.end(), request.recv_counts.begin(), request.recv_counts.end());
  counts->second = std::move(request.keep_alive);
  const std::span<const std::size_t> kept(all);
  request.send_counts = kept.first(request.send_counts.size());
  request.recv_counts = kept.subspan(request.send_counts.size());
  request.keep_alive = std::move(counts);
}

/// Runs a blocking operation and tells its observer.
template <class Operation>
void watched(const Request& request, Operation&& operation) {
  Observer* const observer = request.observer;
  if (observer == nullptr) {
    operation();
    return;
  }
  observer->entered(request);
  try {
    operation();
  } catch (const Error& failure) {
    observer->left(request, &failure);
    throw;
  }
  observer->left(request, nullptr);
}

}  // namespace

Request ProcessGroup::Impl::request(Op op, const Timeout& timeout,
                                    const Where& where) const noexcept {
  Request request;
  request.op = op;
  request.group = parts_.id;
  request.arrive = Deadline::after(timeout.value_or(parts_.arrive));
  request.has_own_timeout = timeout.has_value();
  request.stall = Deadline::after(parts_.stall);
  request.where = where;
  request.observer = parts_.observer.get();
  return request;
}

void ProcessGroup::Impl::refuse(const Request& request, const std::string& text) const {
  throw group::make_error(ErrorCode::kInvalidArgument, request, rank(), text);
}

void ProcessGroup::Impl::throw_closed(const Request& request) const {
  throw group::make_error(ErrorCode::kClosed, request, rank(), "the group has been closed");
}

void ProcessGroup::Impl::admit(const Request& request, bool blocking) {
  // Mistakes in the arguments first: if all ranks make one, the first to die of it fails the group,
  // and the others should still read about the mistake.
  if (auto wrong = group::objection(request, rank(), group_size(), blocking)) {
    refuse(request, *wrong);
  }
  if (failed()) membership().throw_cause(request);
  if (closed_.load(std::memory_order_relaxed)) throw_closed(request);
  const bool known = supported_[support_index(request)].load(std::memory_order_relaxed);
  if (!known || device_of(request).kind != Device::Kind::cpu) check_support(request);
}

void ProcessGroup::Impl::check_support(const Request& request) {
  const Device device = device_of(request);
  const Support answer = supports({request.op, request.dtype, request.reduce.kind(), device.kind});
  if (!answer.yes) {
    const ReduceOp::Kind kind = request.reduce.kind();
    const bool is_illegal = !why_illegal(request.op, request.dtype, kind).empty();
    const std::string what =
        is_illegal ? fmt::format("{} of {}: ", name_of(kind), name_of(request.dtype)) : "";
    throw group::make_error(ErrorCode::kUnsupported, request, rank(), what + answer.reason);
  }
  if (device.kind == Device::Kind::cpu) {
    supported_[support_index(request)].store(true, std::memory_order_relaxed);
  }
}

ProcessGroup::Impl::Number ProcessGroup::Impl::number(Request& request) noexcept {
  const Number before = last_;
  last_ = {before.seq + 1, group::chain_next(before.chain, request)};
  request.seq = last_.seq;
  request.chain = last_.chain;
  return before;
}

void ProcessGroup::Impl::after_failure(const Number& before, const Error& failure) noexcept {
  if (is_harmless(failure.code())) {
    last_ = before;  // found before anything was sent: nobody can have seen the number
  } else {
    fail_alone(failure);
  }
}

/// Something that only this rank knows of (memory, limits): the others must not wait for it.
void ProcessGroup::Impl::fail_alone(const Error& failure) noexcept {
  if (!failed()) fail({failure.code(), failure.what(), {rank()}, {}});
}

void ProcessGroup::Impl::dispatch(const Request& request) {
  foreign_ ? foreign_->run(request) : parts_.backend->run(request);
}

Work ProcessGroup::Impl::dispatch_async(const Request& request) try {
  return foreign_ ? foreign_->start(request) : parts_.backend->start(request);
} catch (const std::bad_alloc&) {
  throw group::make_error(ErrorCode::kSystem, request, rank(),
                          "the system has refused memory for it; see its limits (ulimit -a) and "
                          "what else the host runs");
}

bool ProcessGroup::Impl::is_nothing(const Request& request) noexcept {
  if (!is_message(request.op) || request.message.peer != kNoRank) return false;
  const Request::Message& message = request.message;
  if (message.matched != nullptr) {
    *message.matched = {.rank = kNoRank, .tag = message.tag, .dtype = request.dtype};
  }
  return true;
}

void ProcessGroup::Impl::run(Request& request) try {
  callers_.note();
  if (group::inside_callback()) {
    refuse(request,
           "it would block inside a callback of Work::then or on_failure: pass tutti::async");
  }
  admit(request, true);
  if (is_nothing(request)) return;
  if (is_message(request.op)) {
    watched(request, [&] { dispatch(request); });
    return;
  }
  const group::Turn turn(turnstile_, request, rank());
  const Number before = number(request);
  try {
    watched(request, [&] { dispatch(request); });
  } catch (const Error& failure) {
    after_failure(before, failure);
    throw;
  }
} catch (const Error& failure) {
  told(failure.code());
  throw;
}

std::vector<Work> ProcessGroup::Impl::start_all(std::span<Request> messages) try {
  for (const Request& message : messages) admit(message, false);
  if (auto wrong = group::overlap_objection(messages)) refuse(messages.front(), *wrong);
  std::vector<Work> works;
  works.reserve(messages.size());
  for (Request& message : messages) works.push_back(start(message));
  return works;
} catch (const Error& failure) {
  told(failure.code());
  throw;
}

Work ProcessGroup::Impl::start_message(const Request& request) try {
  return dispatch_async(request);
} catch (const Error& failure) {
  if (!is_harmless(failure.code())) fail_alone(failure);
  throw;
}

Work ProcessGroup::Impl::start(Request& request) try {
  callers_.note();
  admit(request, false);
  if (is_nothing(request)) return {};
  request.keep_alive = retain(request);
  if (request.uneven) keep_counts(request);
  if (is_message(request.op)) return start_message(request);
  const group::Turn turn(turnstile_, request, rank());
  const Number before = number(request);
  membership().queue(request);
  try {
    return dispatch_async(request);
  } catch (const Error& failure) {
    after_failure(before, failure);
    request.seq = last_.seq;
    membership().queue(request);
    throw;
  }
} catch (const Error& failure) {
  told(failure.code());
  throw;
}

}  // namespace tutti
