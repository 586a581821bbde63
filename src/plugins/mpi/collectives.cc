#include "plugins/mpi/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "base/identity.h"
#include "base/of_rank.h"
#include "kernels/kernels.h"

namespace tutti::mpi {

namespace {

/// Staged reductions run in pieces of this many bytes, so that the copy stays near the cores.
constexpr std::size_t kStagedPiece = std::size_t{4} << 20;
/// A reduce_scatter is staged as a whole up to this many bytes.
constexpr std::size_t kLargestStaged = std::size_t{64} << 20;
constexpr int kExchangeTag = 0;

std::byte* bytes_of(const void* data) noexcept {
  return const_cast<std::byte*>(static_cast<const std::byte*>(data));
}

/// Bytes of one element as it is accumulated.
std::size_t partial_size(DType dtype) noexcept {
  return size_of(kernels::accumulation_dtype(dtype));
}

}  // namespace

MPI_Datatype reduced_as(DType dtype) noexcept {
  switch (kernels::accumulation_dtype(dtype)) {
    case DType::bool_:
    case DType::u8:
      return MPI_UINT8_T;
    case DType::i8:
      return MPI_INT8_T;
    case DType::i16:
      return MPI_INT16_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::i64:
      return MPI_INT64_T;
    case DType::u16:
      return MPI_UINT16_T;
    case DType::u32:
      return MPI_UINT32_T;
    case DType::u64:
      return MPI_UINT64_T;
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::complex64:
      return MPI_C_FLOAT_COMPLEX;
    case DType::complex128:
      return MPI_C_DOUBLE_COMPLEX;
    case DType::f16:
    case DType::bf16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      break;
  }
  return MPI_DATATYPE_NULL;
}

std::byte* Scratch::at_least(std::size_t byte_count) {
  if (byte_count > byte_count_) {
    memory_.reset();
    byte_count_ = 0;
    memory_.reset(new (std::nothrow) std::byte[byte_count]);
    if (!memory_) {
      throw Error(ErrorCode::kSystem,
                  fmt::format("backend \"mpi\": no memory for a copy of {} bytes", byte_count));
    }
    byte_count_ = byte_count;
  }
  return memory_.get();
}

void Scratch::abandon() noexcept {
  [[maybe_unused]] const std::byte* const left_to_mpi = memory_.release();
  byte_count_ = 0;
}

void Collectives::run(const Request& request) try {
  switch (request.op) {
    case Op::barrier:
      calls_(request, MPI_Barrier, MPI_Ibarrier, comm_);
      return;
    case Op::broadcast:
      return broadcast(request);
    case Op::gather:
    case Op::all_gather:
    case Op::scatter:
    case Op::all_to_all:
      return move(request);
    case Op::all_reduce:
    case Op::reduce:
      return reduce(request);
    case Op::reduce_scatter:
      return reduce_scatter(request);
    case Op::scan:
    case Op::exclusive_scan:
      return scan(request);
    case Op::send:
    case Op::recv:
      break;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("backend \"mpi\" does not know {}", name_of(request.op)));
} catch (const Error&) {
  if (calls_.tested()) {  // MPI may still write there
    scratch_.abandon();
    input_copy_.abandon();
    counts_.abandon();
  }
  throw;
}

// ---- moves

void Collectives::broadcast(const Request& request) {
  const std::size_t byte_count = request.count * size_of(request.dtype);
  const std::byte* const input = bytes_of(request.input.data);
  std::byte* const output = bytes_of(request.output.data);
  const bool copies = calls_.tested();
  for (std::size_t begin = 0; begin < byte_count; begin += kLargestCall) {
    const std::size_t count = std::min(kLargestCall, byte_count - begin);
    std::byte* const data = copies ? scratch_.at_least(count) : output + begin;
    if (copies && is_root(request)) kernels::copy(data, input + begin, count);
    calls_(request, MPI_Bcast, MPI_Ibcast, data, static_cast<int>(count), MPI_BYTE, request.root,
           comm_);
    if (copies && !is_root(request)) kernels::copy(output + begin, data, count);
  }
}

void Collectives::move(const Request& request) {
  const std::size_t input_bytes = request.input.byte_count();
  const std::size_t output_bytes = request.output.byte_count();
  std::byte* input = bytes_of(request.input.data);
  std::byte* output = bytes_of(request.output.data);
  if (calls_.tested() || (request.op == Op::all_to_all && input == output)) {
    input = input_copy_.at_least(input_bytes);
    kernels::copy(input, request.input.data, input_bytes);
  }
  if (calls_.tested()) output = scratch_.at_least(output_bytes);
  const std::size_t part_bytes = request.count * size_of(request.dtype);
  if (request.uneven || part_bytes > kLargestCall / ranks_) {
    move_by_exchange(request, input, output);
  } else {
    move_evenly(request, input, output);
  }
  if (calls_.tested()) kernels::copy(request.output.data, output, output_bytes);
}

void Collectives::move_evenly(const Request& request, const void* input, void* output) {
  const auto count = static_cast<int>(request.count * size_of(request.dtype));
  const std::size_t own = static_cast<std::size_t>(rank_) * static_cast<std::size_t>(count);
  const int root = request.root;
  if (count == 0) return;
  if (request.op == Op::scatter) {
    void* const to = is_root(request) && output == bytes_of(input) + own ? MPI_IN_PLACE : output;
    calls_(request, MPI_Scatter, MPI_Iscatter, input, count, MPI_BYTE, to, count, MPI_BYTE, root,
           comm_);
    return;
  }
  const bool receives = request.op != Op::gather || is_root(request);
  const void* const from = receives && input == bytes_of(output) + own ? MPI_IN_PLACE : input;
  if (request.op == Op::gather) {
    calls_(request, MPI_Gather, MPI_Igather, from, count, MPI_BYTE, output, count, MPI_BYTE, root,
           comm_);
  } else if (request.op == Op::all_gather) {
    calls_(request, MPI_Allgather, MPI_Iallgather, from, count, MPI_BYTE, output, count, MPI_BYTE,
           comm_);
  } else {
    calls_(request, MPI_Alltoall, MPI_Ialltoall, input, count, MPI_BYTE, output, count, MPI_BYTE,
           comm_);
  }
}

/// What goes to (sent) or comes from each rank, by rank; empty where nothing does.
std::vector<Transfer> Collectives::parts(const Request& request, bool sent, std::byte* data) const {
  const std::size_t element = size_of(request.dtype);
  const std::span<const std::size_t> counts = sent ? request.send_counts : request.recv_counts;
  const ConstBuffer whole = sent ? request.input : ConstBuffer(request.output);
  const bool from_root = request.op == Op::scatter;
  const bool rooted = from_root || request.op == Op::gather;
  // Either one buffer goes to (comes from) several ranks whole, or each has a part of it.
  const bool in_parts = request.op == Op::all_to_all || sent == from_root;
  std::vector<Transfer> transfers(ranks_);
  std::size_t begin = 0;
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    Transfer& transfer = transfers[peer];
    transfer.peer = static_cast<int>(peer);
    const bool has_part =
        !rooted || (sent == from_root ? is_root(request) : transfer.peer == request.root);
    if (!has_part) continue;
    const std::size_t count = !in_parts        ? whole.count
                              : request.uneven ? counts[peer]
                                               : request.count;
    transfer.data = data + begin;
    transfer.byte_count = count * element;
    if (in_parts) begin += transfer.byte_count;
  }
  return transfers;
}

void Collectives::move_by_exchange(const Request& request, std::byte* input, std::byte* output) {
  std::vector<Transfer> sends = parts(request, true, input);
  std::vector<Transfer> receives = parts(request, false, output);
  Transfer& to_self = of_rank(sends, rank_);
  Transfer& from_self = of_rank(receives, rank_);
  if (to_self.data != from_self.data) {
    kernels::copy(from_self.data, to_self.data, std::min(to_self.byte_count, from_self.byte_count));
  }
  to_self.byte_count = from_self.byte_count = 0;
  calls_.exchange(request, receives, sends, kExchangeTag, comm_);
}

// ---- reductions

bool Collectives::is_staged(const Request& request) const noexcept {
  return calls_.tested() || request.dtype == DType::bool_ ||
         kernels::accumulation_dtype(request.dtype) != request.dtype ||
         request.reduce.kind() == ReduceOp::Kind::premul_sum;
}

MPI_Op Collectives::operation(const Request& request) const noexcept {
  const ReduceOp::Kind kind = request.reduce.kind();
  const bool is_wide = partial_size(request.dtype) >= 4;
  switch (kind) {
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::avg:
    case ReduceOp::Kind::premul_sum:
      return is_wide ? MPI_SUM : process_.kernel_operation(ReduceOp::Kind::sum);
    case ReduceOp::Kind::product:
      return is_wide ? MPI_PROD : process_.kernel_operation(kind);
    case ReduceOp::Kind::min:
    case ReduceOp::Kind::max:
      return process_.kernel_operation(kind);
    case ReduceOp::Kind::band:
      return MPI_BAND;
    case ReduceOp::Kind::bor:
      return MPI_BOR;
    case ReduceOp::Kind::bxor:
      return MPI_BXOR;
  }
  return MPI_OP_NULL;
}

void Collectives::reduce(const Request& request) {
  reduce_run(request, bytes_of(request.input.data), bytes_of(request.output.data), request.count,
             request.op == Op::all_reduce ? -1 : request.root);
}

void Collectives::reduce_run(const Request& request, const std::byte* input, std::byte* output,
                             std::size_t count, int root) {
  const std::size_t element = size_of(request.dtype);
  // Who knows whether the root reduces in place, for which it needs a copy: the root alone.
  const std::size_t largest = root < 0 ? kLargestCall : kLargestStaged;
  const std::size_t piece = (is_staged(request) ? kStagedPiece : largest) / element;
  const bool receives = root < 0 || root == rank_;
  for (std::size_t begin = 0; begin < count; begin += piece) {
    reduce_piece(request, input + begin * element, receives ? output + begin * element : nullptr,
                 std::min(piece, count - begin), root);
  }
}

/// Instead of MPI_IN_PLACE, with which MPI_Reduce of MPICH 4.0.2 reads address -1.
const void* Collectives::copy_of(const void* data, std::size_t byte_count) {
  std::byte* const copy = input_copy_.at_least(byte_count);
  kernels::copy(copy, data, byte_count);
  return copy;
}

Collectives::Ends Collectives::ends_of(const Request& request, const void* input, void* output,
                                       std::size_t count) {
  if (!is_staged(request)) return {input, output};
  void* const partials = scratch_.at_least(count * partial_size(request.dtype));
  kernels::reduce_partial(request.dtype, request.reduce, &input, 1, partials, count);
  return {partials, partials};
}

void Collectives::reduce_piece(const Request& request, const void* input, void* output,
                               std::size_t count, int root) {
  const auto [from, to] = ends_of(request, input, output, count);
  const auto n = static_cast<int>(count);
  const MPI_Datatype dtype = reduced_as(request.dtype);
  const void* const source = from == to && output != nullptr ? MPI_IN_PLACE : from;
  if (root < 0) {
    calls_(request, MPI_Allreduce, MPI_Iallreduce, source, to, n, dtype, operation(request), comm_);
  } else {
    calls_(request, MPI_Reduce, MPI_Ireduce,
           source == MPI_IN_PLACE ? copy_of(to, count * partial_size(request.dtype)) : source,
           output == nullptr ? nullptr : to, n, dtype, operation(request), root, comm_);
  }
  const bool is_finished = !is_staged(request) && request.reduce.kind() != ReduceOp::Kind::avg;
  if (output == nullptr || is_finished) return;
  kernels::finish_partial(request.dtype, request.reduce, static_cast<int>(ranks_), to, output,
                          nullptr, count);
}

void Collectives::scan(const Request& request) {
  const std::size_t element = size_of(request.dtype);
  const std::size_t piece = (is_staged(request) ? kStagedPiece : kLargestCall) / element;
  const std::byte* const input = bytes_of(request.input.data);
  std::byte* const output = bytes_of(request.output.data);
  for (std::size_t begin = 0; begin < request.count; begin += piece) {
    scan_piece(request, input + begin * element, output + begin * element,
               std::min(piece, request.count - begin));
  }
}

void Collectives::scan_piece(const Request& request, const void* input, void* output,
                             std::size_t count) {
  const auto [from, to] = ends_of(request, input, output, count);
  const auto n = static_cast<int>(count);
  const MPI_Datatype dtype = reduced_as(request.dtype);
  const void* const source = from == to ? MPI_IN_PLACE : from;
  if (request.op == Op::scan) {
    calls_(request, MPI_Scan, MPI_Iscan, source, to, n, dtype, operation(request), comm_);
  } else {
    calls_(request, MPI_Exscan, MPI_Iexscan, source, to, n, dtype, operation(request), comm_);
  }
  if (request.op == Op::exclusive_scan && rank_ == 0) {  // which MPI leaves undefined
    return fill_identity(request.dtype, request.reduce.kind(), output, count);
  }
  if (!is_staged(request)) return;
  kernels::finish_partial(request.dtype, request.reduce, static_cast<int>(ranks_), to, output,
                          nullptr, count);
}

bool Collectives::is_in_place(const Request& request) const noexcept {
  const auto input = reinterpret_cast<std::uintptr_t>(request.input.data);
  const auto output = reinterpret_cast<std::uintptr_t>(request.output.data);
  return output >= input && output < input + request.input.byte_count();
}

/// At once where it is small enough, else a reduce to each rank in turn.
void Collectives::reduce_scatter(const Request& request) {
  const bool copies = is_staged(request) || is_in_place(request);
  const std::size_t limit = is_staged(request) ? kLargestStaged : kLargestCall;
  if (request.input.count <= limit / partial_size(request.dtype)) {
    return reduce_scatter_at_once(request, copies);
  }
  const std::byte* input = bytes_of(request.input.data);
  for (std::size_t root = 0; root < ranks_; ++root) {
    const std::size_t count = request.uneven ? request.send_counts[root] : request.count;
    reduce_run(request, input, bytes_of(request.output.data), count, static_cast<int>(root));
    input += count * size_of(request.dtype);
  }
}

void Collectives::reduce_scatter_at_once(const Request& request, bool copies) {
  const std::size_t all = request.input.count, own = request.output.count;
  const std::size_t partial = partial_size(request.dtype);
  const void* from = request.input.data;
  void* to = request.output.data;
  if (is_staged(request)) {
    std::byte* const copy = input_copy_.at_least(all * partial);
    kernels::reduce_partial(request.dtype, request.reduce, &from, 1, copy, all);
    from = copy;
  }
  if (copies) to = scratch_.at_least(own * partial);
  const MPI_Datatype dtype = reduced_as(request.dtype);
  if (request.uneven) {
    int* const counts = reinterpret_cast<int*>(counts_.at_least(ranks_ * sizeof(int)));
    std::copy(request.send_counts.begin(), request.send_counts.end(), counts);
    calls_(request, MPI_Reduce_scatter, MPI_Ireduce_scatter, from, to, counts, dtype,
           operation(request), comm_);
  } else {
    calls_(request, MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, from, to,
           static_cast<int>(own), dtype, operation(request), comm_);
  }
  if (!copies && request.reduce.kind() != ReduceOp::Kind::avg) return;
  kernels::finish_partial(request.dtype, request.reduce, static_cast<int>(ranks_), to,
                          request.output.data, nullptr, own);
}

}  // namespace tutti::mpi
