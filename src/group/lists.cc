// The forms that take a list of buffers where others take one: each goes through one *staged*
// buffer, in which those of the list lie side by side, copied in before and out after.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include "base/of_rank.h"
#include "group/check.h"
#include "group/group_impl.h"

namespace tutti {

namespace {

using Impl = ProcessGroup::Impl;

/// Refuses what cannot be copied into a staged buffer of `dtype` that holds `count` elements so
/// far.
void check_buffer(const Impl& group, const Request& request, const ConstBuffer& given,
                  std::size_t index, DType dtype, std::size_t count) {
  if (static_cast<std::size_t>(given.dtype) >= kDTypeCount) {
    group.refuse(request, fmt::format("dtype {} of buffer {} of the list does not exist",
                                      static_cast<int>(given.dtype), index));
  }
  if (given.dtype != dtype) {
    group.refuse(request,
                 fmt::format("buffer {} of the list is of {}, the first of {}: they must be of one "
                             "dtype",
                             index, name_of(given.dtype), name_of(dtype)));
  }
  if (given.is_struct && reduces(request.op)) {
    group.refuse(request, fmt::format("buffer {} of the list is of structs or enums, which can be "
                                      "moved but not combined",
                                      index));
  }
  if (given.count > group::kMaxElements || count + given.count > group::kMaxElements) {
    group.refuse(request, fmt::format("buffer {} of the list has {} elements, which no memory "
                                      "holds; the count may have been negative",
                                      index, given.count));
  }
  if (given.data == nullptr && given.count > 0) {
    group.refuse(request, fmt::format("buffer {} of the list is null", index));
  }
  group.check_device_of(request, given, fmt::format("buffer {} of the list", index));
}

class Staged {
 public:
  /// Refuses null buffers, those of another dtype than the first, and those that are not where they
  /// are said to be.
  template <class AnyBuffer>
  Staged(const Impl& group, const Request& request, std::span<const AnyBuffer> list)
      : group_(group) {
    const DType dtype = list.empty() ? DType::f32 : list[0].dtype;
    std::size_t count = 0;
    for (const AnyBuffer& given : list) {
      check_buffer(group, request, given, counts_.size(), dtype, count);
      counts_.push_back(given.count);
      count += given.count;
    }
    try {
      bytes_.resize(count * size_of(dtype));
    } catch (const std::bad_alloc&) {
      throw group::make_error(ErrorCode::kSystem, request, group.self(),
                              fmt::format("no memory for {} bytes, which is what the buffers of "
                                          "the list hold together",
                                          count * size_of(dtype)));
    }
    whole_ = Buffer(bytes_.data(), count, dtype);
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

  const Buffer& whole() const { return whole_; }
  std::span<const std::size_t> counts() const { return counts_; }

  template <class AnyBuffer>
  void fill(std::span<const AnyBuffer> list) {
    std::byte* to = bytes_.data();
    for (const AnyBuffer& from : list) {
      group_.copy(to, from.data, from);
      to += from.byte_count();
    }
  }
  void spread(std::span<const Buffer> list) const {
    const std::byte* from = bytes_.data();
    for (const Buffer& to : list) {
      group_.copy(to.data, from, to);
      from += to.byte_count();
    }
  }
  /// Until what was spread is there.
  void wait(std::span<const Buffer> list) const {
    for (const Buffer& to : list) group_.wait_for_device(to);
  }

 private:
  const Impl& group_;
  std::vector<std::size_t> counts_;
  std::vector<std::byte> bytes_;
  Buffer whole_;
};

/// A list of an asynchronous call, and what its buffers point into.
class Kept {
 public:
  explicit Kept(std::span<const Buffer> list) : list_(list.begin(), list.end()) {
    for (const Buffer& buffer : list) {
      if (buffer.retain != nullptr) owners_.push_back(buffer.retain(buffer.source));
    }
  }
  std::span<const Buffer> list() const { return list_; }

 private:
  std::vector<Buffer> list_;
  std::vector<std::shared_ptr<const void>> owners_;
};

/// Refuses a list that has not one buffer per rank, or whose own one does not fit `part`, which is
/// what this rank gives or gets.
template <class AnyBuffer>
void check_parts(const Impl& group, const Request& request, std::span<const AnyBuffer> list,
                 const ConstBuffer& part, std::string_view what) {
  if (list.size() != group.size()) {
    group.refuse(request, fmt::format("the list has {} buffers, but the group has {} ranks",
                                      list.size(), group.group_size()));
  }
  const AnyBuffer& own = of_rank(list, group.rank());
  if (own.count == part.count && own.dtype == part.dtype) return;
  group.refuse(
      request,
      fmt::format("buffer {} of the list, this rank's own, holds {} x {}, but {} has {} x {}",
                  group.rank(), own.count, name_of(own.dtype), what, part.count,
                  name_of(part.dtype)));
}

/// One operation with its staged buffers; which of them there are depends on the operation.
struct ListCall {
  Request request;
  std::shared_ptr<Staged> input = {}, output = {};
  std::span<const Buffer> outputs = {};  // of `output`; the caller's
};

void run(Impl& group, ListCall call) {
  group.run(call.request);
  if (call.output) call.output->spread(call.outputs);
}

Work start(Impl& group, ListCall call) {
  Work work = group.start(call.request);
  if (!call.input && !call.output) return work;
  const Kept kept(call.outputs);
  return group::continue_with(
      std::move(work), [input = call.input, output = call.output, kept](const Error* failure) {
        if (failure != nullptr || !output) return;
        output->spread(kept.list());
        output->wait(kept.list());
      });
}

// The parts of a list may differ in count. gather and scatter therefore go as their v-variants on
// all ranks, since only root sees the list; all_gather and reduce_scatter, of whose lists every
// rank has one, where parts do differ.

/// Has the dtype and count of one part.
Request part_request(const Impl& group, Op op, const ConstBuffer& part, const Timeout& timeout,
                     const Where& where) {
  Request request = group.request(op, timeout, where);
  request.dtype = part.dtype;
  request.count = part.count;
  request.uneven = op == Op::gather || op == Op::scatter;
  return request;
}

/// `whole`: the list of all parts. Makes an operation whose counts differ its v-variant.
void set_counts(Request& request, const Staged& whole,
                std::span<const std::size_t> Request::*counts) {
  const std::span<const std::size_t> given = whole.counts();
  const bool alike = std::ranges::all_of(given, [&](std::size_t c) { return c == given[0]; });
  if (!request.uneven && !alike) {
    request.uneven = true;
    request.count = whole.whole().count;
  }
  if (request.uneven) request.*counts = given;
}

/// One buffer beside lists, which are on the host: so is that one.
void put_input(const Impl& group, const ConstBuffer& input, ListCall* call) {
  call->request.input = input;
  if (input.device.kind == Device::Kind::cpu) return;
  const std::span<const ConstBuffer> one(&input, 1);
  call->input = std::make_shared<Staged>(group, call->request, one);
  call->input->fill(one);
  call->request.input = call->input->whole();
}
void put_output(const Impl& group, const Buffer& output, ListCall* call) {
  call->request.output = output;
  if (output.device.kind == Device::Kind::cpu) return;
  call->outputs = std::span<const Buffer>(&output, 1);
  call->output = std::make_shared<Staged>(group, call->request, call->outputs);
  call->request.output = call->output->whole();
}

ListCall coalesced(const Impl& group, std::span<const Buffer> list, const AllReduceOptions& options,
                   const Where& where) {
  ListCall call{.request = group.request(Op::all_reduce, options.timeout, where)};
  call.output = std::make_shared<Staged>(group, call.request, list);
  call.output->fill(list);
  call.outputs = list;
  const Buffer& whole = call.output->whole();
  call.request.dtype = whole.dtype;
  call.request.count = whole.count;
  call.request.reduce = options.op;
  call.request.input = whole;
  call.request.output = whole;
  call.request.send_counts = call.output->counts();
  return call;
}

/// gather and all_gather; `root` -1: every rank gets all.
ListCall gathered(const Impl& group, Op op, const ConstBuffer& input,
                  std::span<const Buffer> outputs, int root, const Timeout& timeout,
                  const Where& where) {
  ListCall call{.request = part_request(group, op, input, timeout, where)};
  put_input(group, input, &call);
  call.request.root = root;
  if (root >= 0 && root != group.rank()) return call;
  check_parts(group, call.request, outputs, input, "input");
  call.output = std::make_shared<Staged>(group, call.request, outputs);
  call.outputs = outputs;
  call.request.output = call.output->whole();
  set_counts(call.request, *call.output, &Request::recv_counts);
  return call;
}

/// The parts of all ranks as the input of `call`.
void stage_input(const Impl& group, std::span<const ConstBuffer> inputs, ListCall* call) {
  call->input = std::make_shared<Staged>(group, call->request, inputs);
  call->input->fill(inputs);
  call->request.input = call->input->whole();
  set_counts(call->request, *call->input, &Request::send_counts);
}

ListCall scattered(const Impl& group, std::span<const ConstBuffer> inputs, const Buffer& output,
                   const RootedOptions& options, const Where& where) {
  ListCall call{.request = part_request(group, Op::scatter, output, options.timeout, where)};
  put_output(group, output, &call);
  call.request.root = options.root;
  if (options.root != group.rank()) return call;
  check_parts(group, call.request, inputs, output, "output");
  stage_input(group, inputs, &call);
  return call;
}

ListCall reduce_scattered(const Impl& group, std::span<const ConstBuffer> inputs,
                          const Buffer& output, const AllReduceOptions& options,
                          const Where& where) {
  ListCall call{.request = part_request(group, Op::reduce_scatter, output, options.timeout, where)};
  put_output(group, output, &call);
  call.request.reduce = options.op;
  check_parts(group, call.request, inputs, output, "output");
  stage_input(group, inputs, &call);
  return call;
}

/// As the v-variant: the buffers of a list may differ in count.
ListCall exchanged(const Impl& group, std::span<const ConstBuffer> inputs,
                   std::span<const Buffer> outputs, const CollectiveOptions& options,
                   const Where& where) {
  ListCall call{.request = group.request(Op::all_to_all, options.timeout, where)};
  Request& request = call.request;
  request.uneven = true;
  call.input = std::make_shared<Staged>(group, request, inputs);
  call.input->fill(inputs);
  call.output = std::make_shared<Staged>(group, request, outputs);
  call.outputs = outputs;
  request.input = call.input->whole();
  request.output = call.output->whole();
  request.dtype = request.input.dtype;
  request.count = request.input.count;
  request.send_counts = call.input->counts();
  request.recv_counts = call.output->counts();
  return call;
}

}  // namespace

void Collectives::all_reduce(List<Buffer> list, AllReduceOptions options, Where where) {
  run(impl(where), coalesced(impl(where), list, options, where));
}
Work Collectives::all_reduce(List<Buffer> list, AllReduceOptions options, Async, Where where) {
  return start(impl(where), coalesced(impl(where), list, options, where));
}

void Collectives::gather(ConstBuffer input, List<Buffer> outputs, RootedOptions options,
                         Where where) {
  run(impl(where),
      gathered(impl(where), Op::gather, input, outputs, options.root, options.timeout, where));
}
Work Collectives::gather(ConstBuffer input, List<Buffer> outputs, RootedOptions options, Async,
                         Where where) {
  return start(impl(where), gathered(impl(where), Op::gather, input, outputs, options.root,
                                     options.timeout, where));
}

void Collectives::all_gather(ConstBuffer input, List<Buffer> outputs, CollectiveOptions options,
                             Where where) {
  run(impl(where),
      gathered(impl(where), Op::all_gather, input, outputs, -1, options.timeout, where));
}
Work Collectives::all_gather(ConstBuffer input, List<Buffer> outputs, CollectiveOptions options,
                             Async, Where where) {
  return start(impl(where),
               gathered(impl(where), Op::all_gather, input, outputs, -1, options.timeout, where));
}

void Collectives::scatter(List<ConstBuffer> inputs, Buffer output, RootedOptions options,
                          Where where) {
  run(impl(where), scattered(impl(where), inputs, output, options, where));
}
Work Collectives::scatter(List<ConstBuffer> inputs, Buffer output, RootedOptions options, Async,
                          Where where) {
  return start(impl(where), scattered(impl(where), inputs, output, options, where));
}

void Collectives::reduce_scatter(List<ConstBuffer> inputs, Operand output, AllReduceOptions options,
                                 Where where) {
  run(impl(where), reduce_scattered(impl(where), inputs, output, options, where));
}
Work Collectives::reduce_scatter(List<ConstBuffer> inputs, Operand output, AllReduceOptions options,
                                 Async, Where where) {
  return start(impl(where), reduce_scattered(impl(where), inputs, output, options, where));
}

void Collectives::all_to_all(List<ConstBuffer> inputs, List<Buffer> outputs,
                             CollectiveOptions options, Where where) {
  run(impl(where), exchanged(impl(where), inputs, outputs, options, where));
}
Work Collectives::all_to_all(List<ConstBuffer> inputs, List<Buffer> outputs,
                             CollectiveOptions options, Async, Where where) {
  return start(impl(where), exchanged(impl(where), inputs, outputs, options, where));
}

}  // namespace tutti
