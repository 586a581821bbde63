// The public calls: each makes one Request and submits it.
#include "tutti/process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "group/callback.h"
#include "group/group_impl.h"

namespace tutti {

namespace {

using Impl = ProcessGroup::Impl;

std::size_t ranks_of(const Impl& group) { return static_cast<std::size_t>(group.group_size()); }

/// Part `index` of a buffer in which the parts of all ranks lie side by side.
Buffer part_of(const Buffer& whole, std::size_t part_count, std::size_t index) {
  Buffer part = whole;
  part.count = part_count;
  if (whole.data != nullptr) {
    part.data = static_cast<std::byte*>(whole.data) + index * part_count * size_of(whole.dtype);
  }
  return part;
}

Request broadcast_request(const Impl& group, Buffer data, const RootedOptions& options,
                          Where where) {
  Request request = group.request(Op::broadcast, options.timeout, where);
  request.dtype = data.dtype;
  request.count = data.count;
  request.input = data;
  request.output = data;
  request.root_or_peer = options.root;
  return request;
}

Request all_reduce_request(const Impl& group, ConstBuffer input, Buffer output,
                           const AllReduceOptions& options, Where where) {
  Request request = group.request(Op::all_reduce, options.timeout, where);
  request.dtype = input.dtype;
  request.count = input.count;
  request.reduce = options.op;
  request.input = input;
  request.output = output;
  return request;
}

/// `op`: scan or exscan.
Request scan_request(const Impl& group, Op op, ConstBuffer input, Buffer output,
                     const AllReduceOptions& options, Where where) {
  Request request = all_reduce_request(group, input, output, options, where);
  request.op = op;
  return request;
}

Request reduce_request(const Impl& group, ConstBuffer input, Buffer output,
                       const ReduceOptions& options, Where where) {
  Request request = group.request(Op::reduce, options.timeout, where);
  request.dtype = input.dtype;
  request.count = input.count;
  request.reduce = options.op;
  request.input = input;
  if (options.root == group.rank()) request.output = output;
  request.root_or_peer = options.root;
  return request;
}

Request gather_request(const Impl& group, ConstBuffer input, Buffer output,
                       const RootedOptions& options, Where where) {
  Request request = group.request(Op::gather, options.timeout, where);
  request.dtype = input.dtype;
  request.count = input.count;
  request.input = input;
  if (options.root == group.rank()) request.output = output;
  request.root_or_peer = options.root;
  return request;
}

Request all_gather_request(const Impl& group, ConstBuffer input, Buffer output,
                           const CollectiveOptions& options, Where where) {
  Request request = group.request(Op::all_gather, options.timeout, where);
  request.dtype = input.dtype;
  request.count = input.count;
  request.input = input;
  request.output = output;
  return request;
}

Request scatter_request(const Impl& group, ConstBuffer input, Buffer output,
                        const RootedOptions& options, Where where) {
  Request request = group.request(Op::scatter, options.timeout, where);
  request.dtype = output.dtype;
  request.count = output.count;
  if (options.root == group.rank()) request.input = input;
  request.output = output;
  request.root_or_peer = options.root;
  return request;
}

Request reduce_scatter_request(const Impl& group, ConstBuffer input, Buffer output,
                               const AllReduceOptions& options, Where where) {
  Request request = group.request(Op::reduce_scatter, options.timeout, where);
  request.dtype = input.dtype;
  request.count = output.count;
  request.reduce = options.op;
  request.input = input;
  request.output = output;
  return request;
}

Request all_to_all_request(const Impl& group, ConstBuffer input, Buffer output,
                           const CollectiveOptions& options, Where where) {
  Request request = group.request(Op::all_to_all, options.timeout, where);
  request.dtype = input.dtype;
  request.count = input.count / ranks_of(group);
  request.input = input;
  request.output = output;
  return request;
}

// The v-variants: the same requests with counts.

Request uneven(Request request, std::span<const std::size_t> send_counts,
               std::span<const std::size_t> recv_counts) {
  request.uneven = true;
  request.send_counts = send_counts;
  request.recv_counts = recv_counts;
  return request;
}

Request all_gatherv_request(const Impl& group, ConstBuffer input, Buffer output,
                            std::span<const std::size_t> counts, const CollectiveOptions& options,
                            Where where) {
  Request request = all_gather_request(group, input, output, options, where);
  request.count = output.count;
  return uneven(request, {}, counts);
}

Request gatherv_request(const Impl& group, ConstBuffer input, Buffer output,
                        std::span<const std::size_t> counts, const RootedOptions& options,
                        Where where) {
  if (options.root != group.rank()) counts = {};
  return uneven(gather_request(group, input, output, options, where), {}, counts);
}

Request scatterv_request(const Impl& group, ConstBuffer input, std::span<const std::size_t> counts,
                         Buffer output, const RootedOptions& options, Where where) {
  if (options.root != group.rank()) counts = {};
  return uneven(scatter_request(group, input, output, options, where), counts, {});
}

Request reduce_scatterv_request(const Impl& group, ConstBuffer input, Buffer output,
                                std::span<const std::size_t> counts,
                                const AllReduceOptions& options, Where where) {
  Request request = reduce_scatter_request(group, input, output, options, where);
  request.count = input.count;
  return uneven(request, counts, {});
}

Request all_to_allv_request(const Impl& group, ConstBuffer input,
                            std::span<const std::size_t> send_counts, Buffer output,
                            std::span<const std::size_t> recv_counts,
                            const CollectiveOptions& options, Where where) {
  Request request = all_to_all_request(group, input, output, options, where);
  request.count = input.count;
  return uneven(request, send_counts, recv_counts);
}

Request send_request(const Impl& group, ConstBuffer data, int to, const SendOptions& options,
                     Where where) {
  Request request = group.request(Op::send, options.timeout, where);
  request.dtype = data.dtype;
  request.count = data.count;
  request.input = data;
  request.root_or_peer = to;
  request.tag = options.tag;
  request.buffered = options.buffered;
  return request;
}

Request recv_request(const Impl& group, Buffer data, int from, const RecvOptions& options,
                     Where where) {
  Request request = group.request(Op::recv, options.timeout, where);
  request.dtype = data.dtype;
  request.count = data.count;
  request.output = data;
  request.root_or_peer = from;
  request.tag = options.tag;
  request.matched = options.info;
  return request;
}

/// Blocking: returns what the message was.
MessageInfo run_recv(Impl& group, Request request) {
  MessageInfo info;
  request.matched = &info;
  group.run(request);
  return info;
}

/// The parts of a whole in-place buffer: their count, which must be the same for all ranks.
std::size_t part_count(const Impl& group, const Request& request, std::size_t whole) {
  if (whole % ranks_of(group) != 0) {
    group.refuse(request,
                 fmt::format("in place, the whole buffer holds one part for each of {} ranks, but "
                             "{} elements cannot be divided so",
                             group.group_size(), whole));
  }
  return whole / ranks_of(group);
}

void run(Impl& group, Request request) { group.run(request); }
Work start(Impl& group, Request request) { return group.start(request); }

}  // namespace

ProcessGroup::ProcessGroup() noexcept = default;
ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;
ProcessGroup::~ProcessGroup() = default;

ProcessGroup::Impl& ProcessGroup::impl() const {
  if (!impl_) {
    throw Error(ErrorCode::kInvalidArgument,
                "this group is empty: the calling rank is not a member of it, or it has been moved "
                "from. Ask is_member() first.");
  }
  return *impl_;
}

detail::BorrowedGroup::BorrowedGroup(const ProcessGroup& group)
    : impl_(group.impl_), number_(group.impl().count_borrower()) {}

ProcessGroup detail::BorrowedGroup::lock() const noexcept { return ProcessGroup(impl_.lock()); }

bool ProcessGroup::is_member() const noexcept { return impl_ != nullptr; }
int ProcessGroup::rank() const { return impl().rank(); }
int ProcessGroup::world_size() const { return impl().group_size(); }
std::span<const int> ProcessGroup::world_ranks() const { return impl().parts().world_ranks; }
const std::string& ProcessGroup::name() const { return impl().parts().name; }
BackendInfo ProcessGroup::backend() const { return impl().info(); }
Support ProcessGroup::supports(const OpKey& key) const { return impl().supports(key); }

// ---- collectives ------------------------------------------------------------------------------

void ProcessGroup::broadcast(Buffer data, RootedOptions options, Where where) {
  run(impl(), broadcast_request(impl(), data, options, where));
}
Work ProcessGroup::broadcast(Buffer data, RootedOptions options, Async, Where where) {
  return start(impl(), broadcast_request(impl(), data, options, where));
}
Work ProcessGroup::broadcast(Buffer data, Async, Where where) {
  return start(impl(), broadcast_request(impl(), data, {}, where));
}

void ProcessGroup::all_reduce(Buffer data, AllReduceOptions options, Where where) {
  run(impl(), all_reduce_request(impl(), data, data, options, where));
}
void ProcessGroup::all_reduce(Buffer data, ReduceOp op, Where where) {
  run(impl(), all_reduce_request(impl(), data, data, {.op = op}, where));
}
void ProcessGroup::all_reduce(ConstBuffer input, Buffer output, AllReduceOptions options,
                              Where where) {
  run(impl(), all_reduce_request(impl(), input, output, options, where));
}
Work ProcessGroup::all_reduce(Buffer data, AllReduceOptions options, Async, Where where) {
  return start(impl(), all_reduce_request(impl(), data, data, options, where));
}
Work ProcessGroup::all_reduce(Buffer data, ReduceOp op, Async, Where where) {
  return start(impl(), all_reduce_request(impl(), data, data, {.op = op}, where));
}
Work ProcessGroup::all_reduce(Buffer data, Async, Where where) {
  return start(impl(), all_reduce_request(impl(), data, data, {}, where));
}
Work ProcessGroup::all_reduce(ConstBuffer input, Buffer output, AllReduceOptions options, Async,
                              Where where) {
  return start(impl(), all_reduce_request(impl(), input, output, options, where));
}

void ProcessGroup::reduce(Buffer data, ReduceOptions options, Where where) {
  run(impl(), reduce_request(impl(), data, data, options, where));
}
void ProcessGroup::reduce(ConstBuffer input, Buffer output, ReduceOptions options, Where where) {
  run(impl(), reduce_request(impl(), input, output, options, where));
}
Work ProcessGroup::reduce(Buffer data, ReduceOptions options, Async, Where where) {
  return start(impl(), reduce_request(impl(), data, data, options, where));
}
Work ProcessGroup::reduce(ConstBuffer input, Buffer output, ReduceOptions options, Async,
                          Where where) {
  return start(impl(), reduce_request(impl(), input, output, options, where));
}

void ProcessGroup::gather(ConstBuffer input, Buffer output, RootedOptions options, Where where) {
  run(impl(), gather_request(impl(), input, output, options, where));
}
Work ProcessGroup::gather(ConstBuffer input, Buffer output, RootedOptions options, Async,
                          Where where) {
  return start(impl(), gather_request(impl(), input, output, options, where));
}

void ProcessGroup::all_gather(ConstBuffer input, Buffer output, CollectiveOptions options,
                              Where where) {
  run(impl(), all_gather_request(impl(), input, output, options, where));
}
void ProcessGroup::all_gather(Buffer data, CollectiveOptions options, Where where) {
  Request request = all_gather_request(impl(), data, data, options, where);
  request.count = part_count(impl(), request, data.count);
  request.input = part_of(data, request.count, static_cast<std::size_t>(rank()));
  run(impl(), request);
}
Work ProcessGroup::all_gather(ConstBuffer input, Buffer output, CollectiveOptions options, Async,
                              Where where) {
  return start(impl(), all_gather_request(impl(), input, output, options, where));
}
Work ProcessGroup::all_gather(ConstBuffer input, Buffer output, Async, Where where) {
  return start(impl(), all_gather_request(impl(), input, output, {}, where));
}

void ProcessGroup::scatter(ConstBuffer input, Buffer output, RootedOptions options, Where where) {
  run(impl(), scatter_request(impl(), input, output, options, where));
}
Work ProcessGroup::scatter(ConstBuffer input, Buffer output, RootedOptions options, Async,
                           Where where) {
  return start(impl(), scatter_request(impl(), input, output, options, where));
}

void ProcessGroup::reduce_scatter(ConstBuffer input, Buffer output, AllReduceOptions options,
                                  Where where) {
  run(impl(), reduce_scatter_request(impl(), input, output, options, where));
}
void ProcessGroup::reduce_scatter(Buffer data, AllReduceOptions options, Where where) {
  Request request = reduce_scatter_request(impl(), data, data, options, where);
  request.count = part_count(impl(), request, data.count);
  request.output = part_of(data, request.count, static_cast<std::size_t>(rank()));
  run(impl(), request);
}
Work ProcessGroup::reduce_scatter(ConstBuffer input, Buffer output, AllReduceOptions options, Async,
                                  Where where) {
  return start(impl(), reduce_scatter_request(impl(), input, output, options, where));
}

void ProcessGroup::all_to_all(ConstBuffer input, Buffer output, CollectiveOptions options,
                              Where where) {
  run(impl(), all_to_all_request(impl(), input, output, options, where));
}
void ProcessGroup::all_to_all(Buffer data, CollectiveOptions options, Where where) {
  run(impl(), all_to_all_request(impl(), data, data, options, where));
}
Work ProcessGroup::all_to_all(ConstBuffer input, Buffer output, CollectiveOptions options, Async,
                              Where where) {
  return start(impl(), all_to_all_request(impl(), input, output, options, where));
}
Work ProcessGroup::all_to_all(ConstBuffer input, Buffer output, Async, Where where) {
  return start(impl(), all_to_all_request(impl(), input, output, {}, where));
}

void ProcessGroup::scan(Buffer data, AllReduceOptions options, Where where) {
  run(impl(), scan_request(impl(), Op::scan, data, data, options, where));
}
void ProcessGroup::scan(ConstBuffer input, Buffer output, AllReduceOptions options, Where where) {
  run(impl(), scan_request(impl(), Op::scan, input, output, options, where));
}
Work ProcessGroup::scan(Buffer data, AllReduceOptions options, Async, Where where) {
  return start(impl(), scan_request(impl(), Op::scan, data, data, options, where));
}
Work ProcessGroup::scan(ConstBuffer input, Buffer output, AllReduceOptions options, Async,
                        Where where) {
  return start(impl(), scan_request(impl(), Op::scan, input, output, options, where));
}

void ProcessGroup::exclusive_scan(Buffer data, AllReduceOptions options, Where where) {
  run(impl(), scan_request(impl(), Op::exscan, data, data, options, where));
}
void ProcessGroup::exclusive_scan(ConstBuffer input, Buffer output, AllReduceOptions options,
                                  Where where) {
  run(impl(), scan_request(impl(), Op::exscan, input, output, options, where));
}
Work ProcessGroup::exclusive_scan(Buffer data, AllReduceOptions options, Async, Where where) {
  return start(impl(), scan_request(impl(), Op::exscan, data, data, options, where));
}
Work ProcessGroup::exclusive_scan(ConstBuffer input, Buffer output, AllReduceOptions options, Async,
                                  Where where) {
  return start(impl(), scan_request(impl(), Op::exscan, input, output, options, where));
}

void ProcessGroup::all_gatherv(ConstBuffer input, Buffer output,
                               std::span<const std::size_t> counts, CollectiveOptions options,
                               Where where) {
  run(impl(), all_gatherv_request(impl(), input, output, counts, options, where));
}
Work ProcessGroup::all_gatherv(ConstBuffer input, Buffer output,
                               std::span<const std::size_t> counts, CollectiveOptions options,
                               Async, Where where) {
  return start(impl(), all_gatherv_request(impl(), input, output, counts, options, where));
}

void ProcessGroup::gatherv(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                           RootedOptions options, Where where) {
  run(impl(), gatherv_request(impl(), input, output, counts, options, where));
}
Work ProcessGroup::gatherv(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                           RootedOptions options, Async, Where where) {
  return start(impl(), gatherv_request(impl(), input, output, counts, options, where));
}

void ProcessGroup::scatterv(ConstBuffer input, std::span<const std::size_t> counts, Buffer output,
                            RootedOptions options, Where where) {
  run(impl(), scatterv_request(impl(), input, counts, output, options, where));
}
Work ProcessGroup::scatterv(ConstBuffer input, std::span<const std::size_t> counts, Buffer output,
                            RootedOptions options, Async, Where where) {
  return start(impl(), scatterv_request(impl(), input, counts, output, options, where));
}

void ProcessGroup::reduce_scatterv(ConstBuffer input, Buffer output,
                                   std::span<const std::size_t> counts, AllReduceOptions options,
                                   Where where) {
  run(impl(), reduce_scatterv_request(impl(), input, output, counts, options, where));
}
Work ProcessGroup::reduce_scatterv(ConstBuffer input, Buffer output,
                                   std::span<const std::size_t> counts, AllReduceOptions options,
                                   Async, Where where) {
  return start(impl(), reduce_scatterv_request(impl(), input, output, counts, options, where));
}

void ProcessGroup::all_to_allv(ConstBuffer input, std::span<const std::size_t> send_counts,
                               Buffer output, std::span<const std::size_t> recv_counts,
                               CollectiveOptions options, Where where) {
  run(impl(), all_to_allv_request(impl(), input, send_counts, output, recv_counts, options, where));
}
Work ProcessGroup::all_to_allv(ConstBuffer input, std::span<const std::size_t> send_counts,
                               Buffer output, std::span<const std::size_t> recv_counts,
                               CollectiveOptions options, Async, Where where) {
  return start(
      impl(), all_to_allv_request(impl(), input, send_counts, output, recv_counts, options, where));
}

void ProcessGroup::barrier(CollectiveOptions options, Where where) {
  run(impl(), impl().request(Op::barrier, options.timeout, where));
}
Work ProcessGroup::barrier(CollectiveOptions options, Async, Where where) {
  return start(impl(), impl().request(Op::barrier, options.timeout, where));
}
Work ProcessGroup::barrier(Async, Where where) {
  return start(impl(), impl().request(Op::barrier, {}, where));
}

void ProcessGroup::monitored_barrier(MonitoredBarrierOptions options, Where where) {
  Request request = impl().request(Op::barrier, options.timeout, where);
  request.monitored = options.wait_all_ranks;
  run(impl(), request);
}

// ---- messages ---------------------------------------------------------------------------------

void ProcessGroup::send(ConstBuffer data, int to, SendOptions options, Where where) {
  run(impl(), send_request(impl(), data, to, options, where));
}
Work ProcessGroup::send(ConstBuffer data, int to, SendOptions options, Async, Where where) {
  return start(impl(), send_request(impl(), data, to, options, where));
}
Work ProcessGroup::send(ConstBuffer data, int to, Async, Where where) {
  return start(impl(), send_request(impl(), data, to, {}, where));
}

MessageInfo ProcessGroup::recv(Buffer data, int from, RecvOptions options, Where where) {
  return run_recv(impl(), recv_request(impl(), data, from, options, where));
}
Work ProcessGroup::recv(Buffer data, int from, RecvOptions options, Async, Where where) {
  return start(impl(), recv_request(impl(), data, from, options, where));
}
Work ProcessGroup::recv(Buffer data, int from, Async, Where where) {
  return start(impl(), recv_request(impl(), data, from, {}, where));
}

namespace {

constexpr auto room_request = [](const Impl& group, const auto& room, int from,
                                 const RecvOptions& options, Where where) {
  Request request = recv_request(group, Buffer(nullptr, 0, room.dtype), from, options, where);
  request.make_room = room.make;
  request.room_context = room.context;
  return request;
};

}  // namespace

MessageInfo ProcessGroup::recv_into(Room room, int from, RecvOptions options, Where where) {
  return run_recv(impl(), room_request(impl(), room, from, options, where));
}
Work ProcessGroup::recv_into(Room room, int from, RecvOptions options, Async, Where where) {
  return start(impl(), room_request(impl(), room, from, options, where));
}

namespace {

Request message_request(const Impl& group, const Message& message, Where where) {
  return message.op == Op::send
             ? send_request(group, message.input, message.peer,
                            {.tag = message.tag, .timeout = message.timeout}, where)
             : recv_request(group, message.output, message.peer,
                            {.tag = message.tag, .timeout = message.timeout}, where);
}

}  // namespace

std::vector<Work> ProcessGroup::batch(std::span<const Message> messages, Async, Where where) {
  std::vector<Request> requests;
  requests.reserve(messages.size());
  for (const Message& message : messages) {
    requests.push_back(message_request(impl(), message, where));
  }
  return impl().start_all(requests);
}
void ProcessGroup::batch(std::span<const Message> messages, Where where) {
  group::refuse_in_callback("batch");  // before anything is posted
  std::vector<Work> works = batch(messages, async, where);
  wait_all(works);
}
void ProcessGroup::sendrecv(ConstBuffer input, Buffer output, SendRecvOptions options,
                            Where where) {
  const std::array<Message, 2> both = {
      Message::recv(output, options.from, {.tag = options.recv_tag, .timeout = options.timeout}),
      Message::send(input, options.to, {.tag = options.send_tag, .timeout = options.timeout})};
  batch(both, where);
}

// ---- groups, memory, life ---------------------------------------------------------------------

ProcessGroup ProcessGroup::new_group(std::span<const int> ranks, Where where) {
  return impl().new_group(ranks, where);
}
ProcessGroup ProcessGroup::new_group(std::initializer_list<int> ranks, Where where) {
  return impl().new_group(std::span<const int>(ranks.begin(), ranks.size()), where);
}
ProcessGroup ProcessGroup::split(SplitOptions options, Where where) {
  const auto ranks = ranks_of(impl());
  const std::array<std::int32_t, 2> mine = {options.color, options.key};
  std::vector<std::int32_t> all(2 * ranks);
  all_gather(mine, all, {}, where);
  if (options.color < 0) return {};
  std::vector<int> members;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (all[2 * rank] == options.color) members.push_back(static_cast<int>(rank));
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return all[2 * static_cast<std::size_t>(a) + 1] < all[2 * static_cast<std::size_t>(b) + 1];
  });
  return new_group(members, where);
}
Memory ProcessGroup::allocate(std::size_t byte_count) { return impl().allocate(byte_count); }
std::optional<Error> ProcessGroup::error() const { return impl().error(); }
void ProcessGroup::on_failure(FailureCallback callback) { impl().on_failure(std::move(callback)); }
void ProcessGroup::abort(const std::string& reason) { impl().abort(reason); }
void ProcessGroup::close(Timeout deadline) { impl().close(deadline); }

}  // namespace tutti
