// The way of a request from the public call to the backend.
#include <fmt/format.h>

#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/legality.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "group/callback.h"
#include "group/chain.h"
#include "group/check.h"
#include "group/group_impl.h"

namespace tutti {

namespace {

/// Of an operation and where its memory is.
std::size_t way_index(const Request& request) noexcept {
  const std::size_t op = (group::is_on_device(request) ? kOpCount : 0) + std::size_t(request.op);
  return (op * kDTypeCount + static_cast<std::size_t>(request.dtype)) * kReduceKindCount +
         static_cast<std::size_t>(request.reduce.kind());
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

Request ProcessGroup::Impl::blank(const group::Parts& parts) noexcept {
  Request request;
  request.group = parts.id;
  request.arrive = Deadline::after(parts.arrive);
  request.stall = Deadline::after(parts.stall);
  request.observer = parts.observer.get();
  return request;
}

Request ProcessGroup::Impl::request(Op op, const Timeout& timeout,
                                    const Where& where) const noexcept {
  Request request = blank_;
  request.op = op;
  request.where = where;
  if (timeout) {
    request.arrive = Deadline::after(*timeout);
    request.has_own_timeout = true;
  }
  return request;
}

void ProcessGroup::Impl::refuse(const Request& request, const std::string& text) const {
  throw group::make_error(ErrorCode::kInvalidArgument, request, self(), text);
}

void ProcessGroup::Impl::throw_closed(const Request& request) const {
  throw group::make_error(ErrorCode::kClosed, request, self(), "the group has been closed");
}

/// Calls of CUDA before `request` is under way. What fails there is the end of the group: the
/// others must not wait for this rank.
template <class Call>
void ProcessGroup::Impl::at_device(const Request& request, Call&& call) const try {
  group::with_heading(request, self(), call);
} catch (const Error& failure) {
  if (!group::is_harmless(failure.code())) fail_alone(failure);
  throw;
}

ProcessGroup::Impl::Way ProcessGroup::Impl::admit(Request& request, bool blocking) {
  // Mistakes in the arguments first: if all ranks make one, the first to die of it fails the group,
  // and the others should still read about the mistake.
  if (auto wrong = group::objection(request, rank(), group_size(), blocking)) {
    refuse(request, *wrong);
  }
  if (failed()) membership().throw_cause(request);
  if (closed_.load(std::memory_order_relaxed)) throw_closed(request);
  Way way = way_of(request);
  if (way == Way::unknown) way = find_way(request);
  if (way != Way::host || uses_device()) admit_to_device(request);
  return way;
}

void ProcessGroup::Impl::admit_to_device(Request& request) {
  const bool on_device = group::is_on_device(request);
  if (on_device) request.stream = group::stream_of(request);
  if (!uses_device_.exchange(true) && rank() == 0 && !parts_.why_staged.empty()) {
    log(LogLevel::info, fmt::format("group {}: device memory goes through the host: {}",
                                    parts_.name, parts_.why_staged));
  }
  at_device(request, [&] {
    std::optional<device::Current> current;
    if (on_device) current.emplace(cuda(), group::device_of(request).index);
    check_place(request, request.input, "input");
    check_place(request, request.output, "output");
    if (on_device) check_stream(request, group::device_of(request), request.stream);
  });
}

const device::Cuda& ProcessGroup::Impl::cuda() const {
  return device::Cuda::open(parts_.cuda_library);
}

ProcessGroup::Impl::Answer ProcessGroup::Impl::answer(const OpKey& key) const {
  if (key.device == Device::Kind::cpu) return {parts_.backend->supports(key), Way::host};
  const Support direct = parts_.device_backend
                             ? parts_.device_backend->supports(key)
                             : Support{false, "the backend takes memory of the host"};
  if (direct.yes) return {{}, Way::direct};
  OpKey staged = key;
  staged.device = Device::Kind::cpu;
  const Support on_host = parts_.backend->supports(staged);
  if (!on_host.yes) return {on_host, Way::unknown};
  try {
    if (cuda().device_count() > 0) return {{true, "staged: " + direct.reason}, Way::staged};
  } catch (const Error& failure) {
    return {{false, failure.what()}, Way::unknown};
  }
  return {{false, "CUDA sees no device; see CUDA_VISIBLE_DEVICES and nvidia-smi"}, Way::unknown};
}

void ProcessGroup::Impl::check_device_of(const Request& request, const ConstBuffer& buffer,
                                         const std::string& name) const {
  const bool is_for_host = buffer.device.kind == Device::Kind::cpu;
  if (is_for_host && !uses_device()) return;
  at_device(request, [&] {
    std::optional<device::Current> current;
    if (!is_for_host) current.emplace(cuda(), buffer.device.index);
    check_place(request, buffer, name);
    if (!is_for_host) check_stream(request, buffer.device, buffer.stream);
  });
}

void ProcessGroup::Impl::check_place(const Request& request, const ConstBuffer& buffer,
                                     std::string_view name) const {
  if (buffer.byte_count() == 0) return;
  using Kind = device::Place::Kind;
  const device::Place place = cuda().place_of(buffer.data);
  const bool is_on_host = place.kind == Kind::host || place.kind == Kind::pinned;
  const bool is_for_host = buffer.device.kind == Device::Kind::cpu;
  const bool is_there =
      place.kind == Kind::managed ||
      (is_for_host ? is_on_host : !is_on_host && place.index == buffer.device.index);
  if (!is_there) {
    const Device found{is_on_host ? Device::Kind::cpu : Device::Kind::cuda,
                       static_cast<std::int16_t>(place.index)};
    refuse(request, fmt::format("{} was given as memory of {}, and is memory of {}", name,
                                name_of(buffer.device), name_of(found)));
  }
}

void ProcessGroup::Impl::check_stream(const Request& request, const Device& device,
                                      Stream stream) const {
  const std::optional<int> found = cuda().device_of(stream);
  if (found && *found != device.index) {
    const Device other{Device::Kind::cuda, static_cast<std::int16_t>(*found)};
    refuse(request, fmt::format("its stream is one of {}, and its memory is of {}: pass a stream "
                                "of the memory's device",
                                name_of(other), name_of(device)));
  }
  if (!cuda().is_capturing(stream)) return;
  throw group::make_error(ErrorCode::kUnsupported, request, self(),
                          "its stream is being captured into a CUDA graph, and operations of "
                          "several ranks cannot be recorded: call it outside of the capture");
}

void ProcessGroup::Impl::copy(void* to, const void* from, const ConstBuffer& buffer) const {
  if (buffer.byte_count() == 0) return;
  if (buffer.device.kind == Device::Kind::cpu) {
    std::memcpy(to, from, buffer.byte_count());
    return;
  }
  const device::Current current(cuda(), buffer.device.index);
  cuda().copy(to, from, buffer.byte_count(), buffer.stream);
}

void ProcessGroup::Impl::wait_for_device(const ConstBuffer& buffer) const {
  if (buffer.device.kind == Device::Kind::cpu) return;
  const device::Current current(cuda(), buffer.device.index);
  device::Event reached(cuda());
  reached.record(buffer.stream);
  reached.wait_on_host([this] { return failed(); });
  if (!reached.done()) throw membership().error(nullptr);
}

ProcessGroup::Impl::Way ProcessGroup::Impl::way_of(const Request& request) const noexcept {
  return ways_[way_index(request)].load(std::memory_order_relaxed);
}

ProcessGroup::Impl::Way ProcessGroup::Impl::find_way(const Request& request) {
  const ReduceOp::Kind kind = request.reduce.kind();
  const Device::Kind device = group::device_of(request).kind;
  const auto [support, way] = answer({request.op, request.dtype, kind, device});
  if (!support.yes) {
    const bool is_illegal = !why_illegal(request.op, request.dtype, kind).empty();
    const std::string what =
        is_illegal ? fmt::format("{} of {}: ", name_of(kind), name_of(request.dtype)) : "";
    throw group::make_error(ErrorCode::kUnsupported, request, self(), what + support.reason);
  }
  ways_[way_index(request)].store(way, std::memory_order_relaxed);
  return way;
}

void ProcessGroup::Impl::number(Request& request, Way way) {
  last_ = {last_.seq + 1, group::chain_next(last_.chain, request)};
  // Ranks must agree in which of the two backends does it.
  if (way == Way::direct) last_.chain = hash_combine(last_.chain, 1);
  request.seq = last_.seq;
  request.chain = last_.chain;
}

void ProcessGroup::Impl::after_failure(const Number& before, const Error& failure) noexcept {
  if (group::is_harmless(failure.code())) {
    last_ = before;  // found before anything was sent: nobody can have seen the number
  } else {
    fail_alone(failure);
  }
}

/// Something that only this rank knows of (memory, limits): the others must not wait for it.
void ProcessGroup::Impl::fail_alone(const Error& failure) const noexcept {
  if (failed()) return;
  until_done([&] { fail({failure.code(), failure.what(), {rank()}, {}}); });
}

/// Its number may have been used up: the others must not wait for this rank's part.
Error ProcessGroup::Impl::without_memory(const Request& request) const {
  std::optional<Error> failure;
  until_done([&] {
    fail_alone(group::make_error(ErrorCode::kSystem, request, self(),
                                 "the system has refused memory for it; see its limits (ulimit -a) "
                                 "and what else the host runs"));
    failure = membership().error(&request);
  });
  told(failure->code());
  return *std::move(failure);
}

void ProcessGroup::Impl::dispatch(const Request& request) {
  foreign_ ? foreign_->run(request) : parts_.backend->run(request);
}

Work ProcessGroup::Impl::dispatch_async(const Request& request) {
  return foreign_ ? foreign_->start(request) : parts_.backend->start(request);
}

void ProcessGroup::Impl::dispatch_direct(const Request& request) {
  if (foreign_) foreign_->finish_before(request);
  device_foreign_->run(request);
}

Work ProcessGroup::Impl::start_direct(const Request& request) {
  if (foreign_) foreign_->finish_before(request);
  return device_foreign_->start(request);
}

bool ProcessGroup::Impl::is_for_device_queue(const Request& request, Way way) const noexcept {
  if (way != Way::host || device_queue_->pending() > 0) return true;
  if (!parts_.may_stage || size() == 1) return false;
  return request.count * size_of(request.dtype) > device::Lane::kPieceBytes &&
         device::is_elementwise(request);
}

std::vector<Request> ProcessGroup::Impl::pieces_of(Request& request, Way way) {
  const bool may_cut = (parts_.may_stage || size() == 1) && way != Way::direct;
  std::vector<Request> pieces = may_cut ? device::cut(request) : std::vector<Request>{request};
  for (Request& piece : pieces) {
    piece.observer = nullptr;  // is told of the whole
    number(piece, way);
  }
  request.seq = pieces.front().seq;
  request.chain = pieces.front().chain;
  return pieces;
}

bool ProcessGroup::Impl::is_nothing(const Request& request) noexcept {
  if (!is_message(request.op) || request.message.peer != kNoRank) return false;
  const Request::Message& message = request.message;
  if (message.matched != nullptr) {
    *message.matched = {.rank = kNoRank, .tag = message.tag, .dtype = request.dtype};
  }
  return true;
}

group::Turn ProcessGroup::Impl::take_turn(const Request& request) {
  return {turnstile_, request.where, [&](const std::string& text) {
            return group::make_error(ErrorCode::kInvalidArgument, request, self(), text);
          }};
}

void ProcessGroup::Impl::run(Request& request) try {
  if (group::inside_callback()) {
    refuse(request,
           "it would block inside a callback of Work::then or on_failure: pass tutti::async");
  }
  callers_.note();
  const Way way = admit(request, true);
  if (is_nothing(request)) return;
  if (is_message(request.op)) {
    watched(request, [&] {
      if (way == Way::host) return dispatch(request);
      group::with_heading(request, self(), [&] { device_queue_->run_message(request); });
    });
    return;
  }
  const group::Turn turn = take_turn(request);
  const Number before = last_;
  try {
    if (is_for_device_queue(request, way)) {
      std::vector<Request> pieces = pieces_of(request, way);
      watched(request, [&] {
        group::with_heading(request, self(),
                            [&] { device_queue_->run(request, std::move(pieces)); });
      });
    } else {
      number(request, way);
      watched(request, [&] { dispatch(request); });
    }
  } catch (const Error& failure) {
    after_failure(before, failure);
    throw;
  }
} catch (const Error& failure) {
  told(failure.code());
  throw;
} catch (const std::bad_alloc&) {
  throw without_memory(request);
}

namespace {

/// Of what was posted before one that throws: its failures are nobody's news.
void end_unseen(std::span<Work> works) {
  try {
    wait_all(works);
  } catch (const Error&) {
  }
}

}  // namespace

std::vector<Work> ProcessGroup::Impl::start_all(std::span<Request> messages) try {
  for (Request& message : messages) admit(message, false);
  if (auto wrong = group::overlap_objection(messages)) refuse(messages.front(), *wrong);
  std::vector<Work> works;
  works.reserve(messages.size());
  try {
    for (Request& message : messages) works.push_back(start(message));
  } catch (const Error&) {
    if (failed()) end_unseen(works);  // theirs is the same failure
    throw;
  }
  return works;
} catch (const Error& failure) {
  told(failure.code());
  throw;
} catch (const std::bad_alloc&) {
  throw without_memory(messages.front());
}

Work ProcessGroup::Impl::start_message(const Request& request, Way way) try {
  if (way != Way::host) {
    return group::with_heading(request, self(),
                               [&] { return device_queue_->start_message(request); });
  }
  return dispatch_async(request);
} catch (const Error& failure) {
  if (!group::is_harmless(failure.code())) fail_alone(failure);
  throw;
}

Work ProcessGroup::Impl::start(Request& request) try {
  note_caller();
  const Way way = admit(request, false);
  if (is_nothing(request)) return {};
  request.keep_alive = retain(request);
  if (request.uneven) keep_counts(request);
  if (is_message(request.op)) return start_message(request, way);
  const group::Turn turn = take_turn(request);
  const Number before = last_;
  try {
    if (is_for_device_queue(request, way)) {
      std::vector<Request> pieces = pieces_of(request, way);
      membership().queue(pieces.back());
      return group::with_heading(request, self(),
                                 [&] { return device_queue_->start(request, std::move(pieces)); });
    }
    number(request, way);
    membership().queue(request);
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
} catch (const std::bad_alloc&) {
  throw without_memory(request);
}

}  // namespace tutti
