#include "plugins/nccl/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/of_rank.h"

namespace tutti::nccl_backend {

namespace {

const std::byte* at(const void* data, std::size_t offset) noexcept {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* at(void* data, std::size_t offset) noexcept {
  return static_cast<std::byte*>(data) + offset;
}

/// `next` is not called once something has failed; NCCL may say here already that it is not done.
template <class Next>
void follow(ncclResult_t& result, Next&& next) {
  if (result == ncclSuccess || result == ncclInProgress) result = next();
}

std::size_t bytes_of(const Request& request, std::size_t count) noexcept {
  return count * size_of(request.dtype);
}

}  // namespace

Collectives::Collectives(Communicator& communicator)
    : communicator_(communicator),
      nccl_(communicator.nccl()),
      rank_(communicator.rank()),
      ranks_(communicator.ranks()),
      to_(static_cast<std::size_t>(ranks_)),
      from_(static_cast<std::size_t>(ranks_)) {}

void Collectives::run(const Request& request) {
  Deadline deadline = request.stall;
  switch (request.op) {
    case Op::broadcast:
      return broadcast(request, deadline);
    case Op::all_gather:
      return all_gather(request, deadline);
    case Op::gather:
      return gather(request, deadline);
    case Op::scatter:
      return scatter(request, deadline);
    case Op::all_to_all:
      return all_to_all(request, deadline);
    case Op::all_reduce:
    case Op::reduce:
    case Op::reduce_scatter:
      return reduce(request, deadline);
    case Op::barrier:
    case Op::scan:
    case Op::exclusive_scan:
    case Op::send:
    case Op::recv:
      break;
  }
  throw Error(ErrorCode::kUnsupported, fmt::format("nccl has no {}", name_of(request.op)));
}

// ---- what only moves

void Collectives::broadcast(const Request& request, Deadline& deadline) {
  communicator_.call("ncclBroadcast", deadline, [&](ncclComm_t comm) {
    return nccl_.broadcast(request.input.data, request.output.data,
                           bytes_of(request, request.count), ncclUint8, request.root, comm,
                           request.stream.handle);
  });
}

void Collectives::all_gather(const Request& request, Deadline& deadline) {
  if (!request.uneven) {
    return communicator_.call("ncclAllGather", deadline, [&](ncclComm_t comm) {
      return nccl_.all_gather(request.input.data, request.output.data,
                              bytes_of(request, request.count), ncclUint8, comm,
                              request.stream.handle);
    });
  }
  lay_out(request, request.recv_counts, from_);
  batch(deadline, [&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    for (int root = 0; root < ranks_; ++root) {
      const Part& part = of_rank(from_, root);
      if (part.count == 0) continue;
      std::byte* const there = at(request.output.data, part.offset);
      follow(result, [&] {
        return nccl_.broadcast(root == rank_ ? request.input.data : there, there, part.count,
                               ncclUint8, root, comm, request.stream.handle);
      });
    }
    return result;
  });
}

void Collectives::gather(const Request& request, Deadline& deadline) {
  if (!request.uneven && nccl_.gather != nullptr) {
    return communicator_.call("ncclGather", deadline, [&](ncclComm_t comm) {
      return nccl_.gather(request.input.data, request.output.data, bytes_of(request, request.count),
                          ncclUint8, request.root, comm, request.stream.handle);
    });
  }
  lay_out_one(request.root, request.input.byte_count(), to_);
  if (rank_ == request.root) {
    lay_out(request, request.recv_counts, from_);
  } else {
    lay_out_one(rank_, 0, from_);
  }
  exchange(request.input.data, request, deadline);
}

void Collectives::scatter(const Request& request, Deadline& deadline) {
  if (!request.uneven && nccl_.scatter != nullptr) {
    return communicator_.call("ncclScatter", deadline, [&](ncclComm_t comm) {
      return nccl_.scatter(request.input.data, request.output.data,
                           bytes_of(request, request.count), ncclUint8, request.root, comm,
                           request.stream.handle);
    });
  }
  if (rank_ == request.root) {
    lay_out(request, request.send_counts, to_);
  } else {
    lay_out_one(rank_, 0, to_);
  }
  lay_out_one(request.root, request.output.byte_count(), from_);
  exchange(request.input.data, request, deadline);
}

void Collectives::all_to_all(const Request& request, Deadline& deadline) {
  const std::size_t byte_count = request.input.byte_count();
  const bool is_in_place = request.input.data == request.output.data && byte_count > 0;
  if (!request.uneven && !is_in_place && nccl_.all_to_all != nullptr) {
    return communicator_.call("ncclAlltoAll", deadline, [&](ncclComm_t comm) {
      return nccl_.all_to_all(request.input.data, request.output.data,
                              bytes_of(request, request.count), ncclUint8, comm,
                              request.stream.handle);
    });
  }
  lay_out(request, request.send_counts, to_);
  lay_out(request, request.recv_counts, from_);
  if (!is_in_place) return exchange(request.input.data, request, deadline);
  // What comes would be written over what is yet to go.
  void* const input = communicator_.scratch(byte_count, request.stream);
  communicator_.cuda().copy(input, request.input.data, byte_count, request.stream);
  exchange(input, request, deadline);
  communicator_.free_scratch(request.stream);
}

void Collectives::lay_out(const Request& request, std::span<const std::size_t> counts,
                          std::vector<Part>& parts) const {
  std::size_t offset = 0;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    parts[rank] = {offset, bytes_of(request, request.uneven ? counts[rank] : request.count)};
    offset += parts[rank].count;
  }
}

void Collectives::lay_out_one(int rank, std::size_t byte_count, std::vector<Part>& parts) const {
  std::fill(parts.begin(), parts.end(), Part{});
  of_rank(parts, rank) = {0, byte_count};
}

void Collectives::exchange(const void* input, const Request& request, Deadline& deadline) {
  const Part& own = of_rank(to_, rank_);
  if (own.count > 0) {
    const std::byte* const from = at(input, own.offset);
    std::byte* const to = at(request.output.data, of_rank(from_, rank_).offset);
    if (from != to) communicator_.cuda().copy(to, from, own.count, request.stream);
  }
  batch(deadline, [&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    for (int peer = 0; peer < ranks_; ++peer) {
      const Part &to = of_rank(to_, peer), &from = of_rank(from_, peer);
      if (peer == rank_) continue;
      if (to.count > 0) {
        follow(result, [&] {
          return nccl_.send(at(input, to.offset), to.count, ncclUint8, peer, comm,
                            request.stream.handle);
        });
      }
      if (from.count > 0) {
        follow(result, [&] {
          return nccl_.recv(at(request.output.data, from.offset), from.count, ncclUint8, peer, comm,
                            request.stream.handle);
        });
      }
    }
    return result;
  });
}

template <class Use>
void Collectives::batch(Deadline& deadline, Use&& use) {
  communicator_.call("ncclGroupEnd", deadline, [&](ncclComm_t comm) {
    if (const ncclResult_t result = nccl_.group_start(); result != ncclSuccess) return result;
    const ncclResult_t inside = use(comm);
    const ncclResult_t result = nccl_.group_end();
    return inside == ncclSuccess || inside == ncclInProgress ? result : inside;
  });
}

// ---- what combines

void Collectives::reduce(const Request& request, Deadline& deadline) {
  const SeenAs seen = seen_when_reduced(request.dtype);
  ReduceOp::Kind kind = request.reduce.kind();
  // Of one rank it is the same, and a copy or nothing instead of a slow kernel.
  if (kind == ReduceOp::Kind::avg && communicator_.ranks() == 1) kind = ReduceOp::Kind::sum;
  if (kind != ReduceOp::Kind::premul_sum) {
    return queue_reduction(request, seen, operator_of(kind), deadline);
  }
  const ncclRedOp_t op = make_premul_sum(request, seen, deadline);
  queue_reduction(request, seen, op, deadline);
  communicator_.call("ncclRedOpDestroy", deadline,
                     [&](ncclComm_t comm) { return nccl_.destroy_op(op, comm); });
}

ncclRedOp_t Collectives::make_premul_sum(const Request& request, SeenAs seen, Deadline& deadline) {
  double in_f64 = request.reduce.factor();
  auto in_f32 = static_cast<float>(in_f64);
  float16 in_f16(in_f32);
  bfloat16 in_bf16(in_f32);
  void* factor = &in_f32;
  if (seen.type == ncclFloat64) factor = &in_f64;
  if (seen.type == ncclFloat16) factor = &in_f16;
  if (seen.type == ncclBfloat16) factor = &in_bf16;
  ncclRedOp_t op = ncclSum;
  communicator_.call("ncclRedOpCreatePreMulSum", deadline, [&](ncclComm_t comm) {
    return nccl_.create_premul_sum(&op, factor, seen.type, ncclScalarHostImmediate, comm);
  });
  return op;
}

void Collectives::queue_reduction(const Request& request, SeenAs seen, ncclRedOp_t op,
                                  Deadline& deadline) {
  const void* const input = request.input.data;
  void* const output = request.output.data;
  void* const stream = request.stream.handle;
  const std::size_t count = request.count * seen.per_element;
  if (request.op == Op::all_reduce) {
    return communicator_.call("ncclAllReduce", deadline, [&](ncclComm_t comm) {
      return nccl_.all_reduce(input, output, count, seen.type, op, comm, stream);
    });
  }
  if (request.op == Op::reduce) {
    return communicator_.call("ncclReduce", deadline, [&](ncclComm_t comm) {
      return nccl_.reduce(input, output, count, seen.type, op, request.root, comm, stream);
    });
  }
  if (!request.uneven) {
    return communicator_.call("ncclReduceScatter", deadline, [&](ncclComm_t comm) {
      return nccl_.reduce_scatter(input, output, count, seen.type, op, comm, stream);
    });
  }
  lay_out(request, request.send_counts, to_);
  batch(deadline, [&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    for (int root = 0; root < ranks_; ++root) {
      const Part& part = of_rank(to_, root);
      if (part.count == 0) continue;
      const std::size_t elements = part.count / size_of(request.dtype) * seen.per_element;
      follow(result, [&] {
        return nccl_.reduce(at(input, part.offset), root == rank_ ? output : nullptr, elements,
                            seen.type, op, root, comm, stream);
      });
    }
    return result;
  });
}

}  // namespace tutti::nccl_backend
