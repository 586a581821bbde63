// The collectives: each makes one Request and submits it. Those of lists are in lists.cc.
#include "tutti/collectives.h"

#include <fmt/format.h>

#include "group/check.h"
#include "group/group_impl.h"

namespace tutti {

namespace {

using Impl = ProcessGroup::Impl;

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
  request.root = options.root;
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

/// `op`: scan or exclusive_scan.
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
  request.root = options.root;
  return request;
}

Request gather_request(const Impl& group, ConstBuffer input, Buffer output,
                       const RootedOptions& options, Where where) {
  Request request = group.request(Op::gather, options.timeout, where);
  request.dtype = input.dtype;
  request.count = input.count;
  request.input = input;
  if (options.root == group.rank()) request.output = output;
  request.root = options.root;
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
  request.root = options.root;
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
  request.count = input.count / group.size();
  request.input = input;
  request.output = output;
  return request;
}

/// The parts of a whole in-place buffer: their count, which must be the same for all ranks.
std::size_t part_count(const Impl& group, const Request& request, std::size_t whole) {
  if (whole % group.size() != 0) {
    group.refuse(request,
                 fmt::format("in place, the whole buffer holds one part for each of {} ranks, but "
                             "{} cannot be divided so",
                             group.group_size(), group::elements_text(whole)));
  }
  return whole / group.size();
}

// In place: one buffer, of which one part is this rank's.

Request all_gather_in_place(const Impl& group, Buffer data, const CollectiveOptions& options,
                            Where where) {
  Request request = all_gather_request(group, data, data, options, where);
  request.count = part_count(group, request, data.count);
  request.input = part_of(data, request.count, static_cast<std::size_t>(group.rank()));
  return request;
}

Request reduce_scatter_in_place(const Impl& group, Buffer data, const AllReduceOptions& options,
                                Where where) {
  Request request = reduce_scatter_request(group, data, data, options, where);
  request.count = part_count(group, request, data.count);
  request.output = part_of(data, request.count, static_cast<std::size_t>(group.rank()));
  return request;
}

// The v-variants: the same requests with counts, which come in items of their buffer. The request
// points into them.

std::span<const std::size_t> elements(CountList& counts, const ConstBuffer& buffer) {
  counts.scale(buffer.per_item);
  return counts.numbers();
}

Request uneven(Request request, std::span<const std::size_t> send_counts,
               std::span<const std::size_t> recv_counts) {
  request.uneven = true;
  request.send_counts = send_counts;
  request.recv_counts = recv_counts;
  return request;
}

Request all_gatherv_request(const Impl& group, ConstBuffer input, Buffer output, CountList& counts,
                            const CollectiveOptions& options, Where where) {
  Request request = all_gather_request(group, input, output, options, where);
  request.count = output.count;
  return uneven(request, {}, elements(counts, output));
}

Request gatherv_request(const Impl& group, ConstBuffer input, Buffer output, CountList& counts,
                        const RootedOptions& options, Where where) {
  if (options.root != group.rank()) counts = {};
  return uneven(gather_request(group, input, output, options, where), {}, elements(counts, output));
}

Request scatterv_request(const Impl& group, ConstBuffer input, CountList& counts, Buffer output,
                         const RootedOptions& options, Where where) {
  if (options.root != group.rank()) counts = {};
  return uneven(scatter_request(group, input, output, options, where), elements(counts, input), {});
}

Request reduce_scatterv_request(const Impl& group, ConstBuffer input, Buffer output,
                                CountList& counts, const AllReduceOptions& options, Where where) {
  Request request = reduce_scatter_request(group, input, output, options, where);
  request.count = input.count;
  return uneven(request, elements(counts, input), {});
}

Request all_to_allv_request(const Impl& group, ConstBuffer input, CountList& send_counts,
                            Buffer output, CountList& recv_counts, const CollectiveOptions& options,
                            Where where) {
  Request request = all_to_all_request(group, input, output, options, where);
  request.count = input.count;
  return uneven(request, elements(send_counts, input), elements(recv_counts, output));
}

void run(Impl& group, Request request) { group.run(request); }
Work start(Impl& group, Request request) { return group.start(request); }

}  // namespace

void Collectives::broadcast(Buffer data, RootedOptions options, Where where) {
  run(impl(where), broadcast_request(impl(where), data, options, where));
}
Work Collectives::broadcast(Buffer data, RootedOptions options, Async, Where where) {
  return start(impl(where), broadcast_request(impl(where), data, options, where));
}

void Collectives::all_reduce(Operand data, AllReduceOptions options, Where where) {
  run(impl(where), all_reduce_request(impl(where), data, data, options, where));
}
Work Collectives::all_reduce(Operand data, AllReduceOptions options, Async, Where where) {
  return start(impl(where), all_reduce_request(impl(where), data, data, options, where));
}

void Collectives::all_reduce(ConstOperand input, Operand output, AllReduceOptions options,
                             Where where) {
  run(impl(where), all_reduce_request(impl(where), input, output, options, where));
}
Work Collectives::all_reduce(ConstOperand input, Operand output, AllReduceOptions options, Async,
                             Where where) {
  return start(impl(where), all_reduce_request(impl(where), input, output, options, where));
}

void Collectives::reduce(Operand data, ReduceOptions options, Where where) {
  run(impl(where), reduce_request(impl(where), data, data, options, where));
}
Work Collectives::reduce(Operand data, ReduceOptions options, Async, Where where) {
  return start(impl(where), reduce_request(impl(where), data, data, options, where));
}

void Collectives::reduce(ConstOperand input, Operand output, ReduceOptions options, Where where) {
  run(impl(where), reduce_request(impl(where), input, output, options, where));
}
Work Collectives::reduce(ConstOperand input, Operand output, ReduceOptions options, Async,
                         Where where) {
  return start(impl(where), reduce_request(impl(where), input, output, options, where));
}

void Collectives::gather(ConstBuffer input, Buffer output, RootedOptions options, Where where) {
  run(impl(where), gather_request(impl(where), input, output, options, where));
}
Work Collectives::gather(ConstBuffer input, Buffer output, RootedOptions options, Async,
                         Where where) {
  return start(impl(where), gather_request(impl(where), input, output, options, where));
}

void Collectives::all_gather(ConstBuffer input, Output output, CollectiveOptions options,
                             Where where) {
  run(impl(where), all_gather_request(impl(where), input, output, options, where));
}
Work Collectives::all_gather(ConstBuffer input, Output output, CollectiveOptions options, Async,
                             Where where) {
  return start(impl(where), all_gather_request(impl(where), input, output, options, where));
}

void Collectives::all_gather(Buffer data, CollectiveOptions options, Where where) {
  run(impl(where), all_gather_in_place(impl(where), data, options, where));
}
Work Collectives::all_gather(Buffer data, CollectiveOptions options, Async, Where where) {
  return start(impl(where), all_gather_in_place(impl(where), data, options, where));
}

void Collectives::scatter(ConstBuffer input, Buffer output, RootedOptions options, Where where) {
  run(impl(where), scatter_request(impl(where), input, output, options, where));
}
Work Collectives::scatter(ConstBuffer input, Buffer output, RootedOptions options, Async,
                          Where where) {
  return start(impl(where), scatter_request(impl(where), input, output, options, where));
}

void Collectives::reduce_scatter(ConstOperand input, Operand output, AllReduceOptions options,
                                 Where where) {
  run(impl(where), reduce_scatter_request(impl(where), input, output, options, where));
}
Work Collectives::reduce_scatter(ConstOperand input, Operand output, AllReduceOptions options,
                                 Async, Where where) {
  return start(impl(where), reduce_scatter_request(impl(where), input, output, options, where));
}

void Collectives::reduce_scatter(Operand data, AllReduceOptions options, Where where) {
  run(impl(where), reduce_scatter_in_place(impl(where), data, options, where));
}
Work Collectives::reduce_scatter(Operand data, AllReduceOptions options, Async, Where where) {
  return start(impl(where), reduce_scatter_in_place(impl(where), data, options, where));
}

void Collectives::all_to_all(ConstBuffer input, Output output, CollectiveOptions options,
                             Where where) {
  run(impl(where), all_to_all_request(impl(where), input, output, options, where));
}
Work Collectives::all_to_all(ConstBuffer input, Output output, CollectiveOptions options, Async,
                             Where where) {
  return start(impl(where), all_to_all_request(impl(where), input, output, options, where));
}

void Collectives::all_to_all(Buffer data, CollectiveOptions options, Where where) {
  run(impl(where), all_to_all_request(impl(where), data, data, options, where));
}
Work Collectives::all_to_all(Buffer data, CollectiveOptions options, Async, Where where) {
  return start(impl(where), all_to_all_request(impl(where), data, data, options, where));
}

void Collectives::scan(Operand data, AllReduceOptions options, Where where) {
  run(impl(where), scan_request(impl(where), Op::scan, data, data, options, where));
}
Work Collectives::scan(Operand data, AllReduceOptions options, Async, Where where) {
  return start(impl(where), scan_request(impl(where), Op::scan, data, data, options, where));
}

void Collectives::scan(ConstOperand input, Operand output, AllReduceOptions options, Where where) {
  run(impl(where), scan_request(impl(where), Op::scan, input, output, options, where));
}
Work Collectives::scan(ConstOperand input, Operand output, AllReduceOptions options, Async,
                       Where where) {
  return start(impl(where), scan_request(impl(where), Op::scan, input, output, options, where));
}

void Collectives::exclusive_scan(Operand data, AllReduceOptions options, Where where) {
  run(impl(where), scan_request(impl(where), Op::exclusive_scan, data, data, options, where));
}
Work Collectives::exclusive_scan(Operand data, AllReduceOptions options, Async, Where where) {
  return start(impl(where),
               scan_request(impl(where), Op::exclusive_scan, data, data, options, where));
}

void Collectives::exclusive_scan(ConstOperand input, Operand output, AllReduceOptions options,
                                 Where where) {
  run(impl(where), scan_request(impl(where), Op::exclusive_scan, input, output, options, where));
}
Work Collectives::exclusive_scan(ConstOperand input, Operand output, AllReduceOptions options,
                                 Async, Where where) {
  return start(impl(where),
               scan_request(impl(where), Op::exclusive_scan, input, output, options, where));
}

void Collectives::all_gatherv(ConstBuffer input, Buffer output, CountList counts,
                              CollectiveOptions options, Where where) {
  run(impl(where), all_gatherv_request(impl(where), input, output, counts, options, where));
}
Work Collectives::all_gatherv(ConstBuffer input, Buffer output, CountList counts,
                              CollectiveOptions options, Async, Where where) {
  return start(impl(where),
               all_gatherv_request(impl(where), input, output, counts, options, where));
}

void Collectives::gatherv(ConstBuffer input, Buffer output, CountList counts, RootedOptions options,
                          Where where) {
  run(impl(where), gatherv_request(impl(where), input, output, counts, options, where));
}
Work Collectives::gatherv(ConstBuffer input, Buffer output, CountList counts, RootedOptions options,
                          Async, Where where) {
  return start(impl(where), gatherv_request(impl(where), input, output, counts, options, where));
}

void Collectives::scatterv(ConstBuffer input, CountList counts, Buffer output,
                           RootedOptions options, Where where) {
  run(impl(where), scatterv_request(impl(where), input, counts, output, options, where));
}
Work Collectives::scatterv(ConstBuffer input, CountList counts, Buffer output,
                           RootedOptions options, Async, Where where) {
  return start(impl(where), scatterv_request(impl(where), input, counts, output, options, where));
}

void Collectives::reduce_scatterv(ConstOperand input, Operand output, CountList counts,
                                  AllReduceOptions options, Where where) {
  run(impl(where), reduce_scatterv_request(impl(where), input, output, counts, options, where));
}
Work Collectives::reduce_scatterv(ConstOperand input, Operand output, CountList counts,
                                  AllReduceOptions options, Async, Where where) {
  return start(impl(where),
               reduce_scatterv_request(impl(where), input, output, counts, options, where));
}

void Collectives::all_to_allv(ConstBuffer input, CountList send_counts, Buffer output,
                              CountList recv_counts, CollectiveOptions options, Where where) {
  run(impl(where),
      all_to_allv_request(impl(where), input, send_counts, output, recv_counts, options, where));
}
Work Collectives::all_to_allv(ConstBuffer input, CountList send_counts, Buffer output,
                              CountList recv_counts, CollectiveOptions options, Async,
                              Where where) {
  return start(impl(where), all_to_allv_request(impl(where), input, send_counts, output,
                                                recv_counts, options, where));
}

void Collectives::barrier(CollectiveOptions options, Where where) {
  run(impl(where), impl(where).request(Op::barrier, options.timeout, where));
}
Work Collectives::barrier(CollectiveOptions options, Async, Where where) {
  return start(impl(where), impl(where).request(Op::barrier, options.timeout, where));
}

void Collectives::monitored_barrier(MonitoredBarrierOptions options, Where where) {
  Request request = impl(where).request(Op::barrier, options.timeout, where);
  request.monitored = true;
  request.names_all = options.wait_all_ranks;
  run(impl(where), request);
}

}  // namespace tutti
