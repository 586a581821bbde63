#include "plugins/gloo/collectives.h"

#include <algorithm>
#include <array>

#include "base/identity.h"
#include "base/of_rank.h"
#include "base/pages.h"
#include "kernels/kernels.h"
#include "plugins/gloo/slots.h"

namespace tutti::gloo_backend {

namespace {

/// So that no element is cut.
constexpr std::size_t aligned(std::size_t byte_count) noexcept {
  constexpr std::size_t kAlignment = 64;  // a multiple of every element
  return (byte_count + kAlignment - 1) / kAlignment * kAlignment;
}

// Why Gloo's own all_reduces are not used: f32 sums on 2026-11-21, two cores, medians of
// interleaved rounds in microseconds (two ranks in slices from 64 Ki on), the check off, beside the
// fastest of ring, bcube and halving-doubling (bench/peers/run.py --peers
// tutti-gloo-unchecked,gloo).
//
//      ranks, bytes   here    Gloo
//      2      8         53     220  bcube
//      2      64 Ki    115     281  halving-doubling
//      2      1 Mi     576     650  halving-doubling
//      2      16 Mi  11857   12924  bcube
//      4      8        199     933  ring
//      4      64 Ki    488     823  halving-doubling
//      4      1 Mi    1179    2958  halving-doubling
//      4      16 Mi  23626   29665  bcube

/// Pieces of all ranks that are under way together; 1 MiB was 1.2 times slower at 16 MiB.
constexpr std::size_t kWindowBytes = 4 * 1024 * 1024;

std::byte* at(const void* data, std::size_t offset) noexcept {
  return const_cast<std::byte*>(static_cast<const std::byte*>(data)) + offset;
}

Bytes bytes_of(const ConstBuffer& buffer) noexcept {
  return {at(buffer.data, 0), buffer.byte_count()};
}

bool has_result(const Request& request, int rank) noexcept {
  return request.op != Op::reduce || request.root == rank;
}

/// Whether the output holds the slices of all, not the own one alone.
bool has_slices(const Request& request) noexcept { return request.op != Op::reduce_scatter; }

/// Calls `each` with every other rank, beginning after the own one.
template <class Each>
void for_peers(const Mesh& mesh, Each&& each) {
  for (int distance = 1; distance < mesh.ranks(); ++distance) {
    each((mesh.rank() + distance) % mesh.ranks());
  }
}

/// The parts of all ranks that lie side by side in one buffer.
std::vector<Range> parts_of(const Request& request, std::span<const std::size_t> counts,
                            std::size_t ranks) {
  const std::size_t element_bytes = size_of(request.dtype);
  std::vector<Range> parts(ranks);
  std::size_t offset = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t count = request.uneven ? counts[rank] : request.count;
    parts[rank] = {offset, count * element_bytes};
    offset += count * element_bytes;
  }
  return parts;
}

/// `part` for one rank, nothing for the others.
std::vector<Range> only(int rank, Range part, std::size_t ranks) {
  std::vector<Range> parts(ranks);
  of_rank(parts, rank) = part;
  return parts;
}

std::vector<Range> even_slices(std::size_t byte_count, std::size_t ranks) {
  const std::size_t share = aligned((byte_count + ranks - 1) / ranks);
  std::vector<Range> slices(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t offset = std::min(rank * share, byte_count);
    slices[rank] = {offset, std::min(share, byte_count - offset)};
  }
  return slices;
}

/// Up to this many bytes a buffer is reduced whole. Two ranks move as many either way, and save the
/// trip that hands out the slices.
std::size_t whole_limit(const Mailbox& mailbox, std::size_t ranks) noexcept {
  return ranks <= 2 ? mailbox.box_bytes() : Mailbox::kMessageBytes / 4;
}

bool is_mail(const Range& part) noexcept { return part.byte_count <= Mailbox::kMessageBytes; }

}  // namespace

/// The slices of one reduction while they travel.
class Collectives::Slices {
 public:
  Slices(Mesh& mesh, const Request& request, const std::vector<Range>& slices,
         std::size_t piece_bytes, std::byte* scratch)
      : mesh_(mesh),
        request_(request),
        slices_(slices),
        own_(of_rank(slices, mesh.rank())),
        piece_bytes_(piece_bytes),
        window_bytes_(piece_bytes * slices.size()),
        scratch_(scratch),
        result_(place_result()),
        windows_{window(0), window(1)},
        results_(mesh, slot_of_phase(request, 2), stall_of(request), result_,
                 bytes_of(request.output)) {}

  void run() {
    std::size_t longest = 0;
    for (const Range& slice : slices_) longest = std::max(longest, slice.byte_count);
    const std::size_t pieces = (longest + piece_bytes_ - 1) / piece_bytes_;
    for (std::size_t piece = 0; piece <= pieces; ++piece) {
      if (piece < pieces) post(piece);
      if (piece > 0) reduce(piece - 1);
    }
    for (Exchange* const exchange : {&windows_[0], &windows_[1], &results_}) {
      exchange->wait_for_recvs();
      exchange->wait_for_sends();
    }
  }

 private:
  Exchange window(int index) const {
    const std::size_t offset = static_cast<std::size_t>(index) * window_bytes_;
    return Exchange(mesh_, slot_of_phase(request_, index), stall_of(request_),
                    bytes_of(request_.input), {scratch_ + offset, window_bytes_});
  }

  /// Where the own slice is reduced: in the output, or apart where that does not hold all slices.
  Bytes place_result() {
    if (!has_slices(request_)) return bytes_of(request_.output);
    if (has_result(request_, mesh_.rank())) {
      shift_ = own_.offset;
      return bytes_of(request_.output);
    }
    apart_ = allocate_pages(own_.byte_count);
    return {apart_.get(), own_.byte_count};
  }

  Range piece_of(int rank, std::size_t piece) const {
    const Range& slice = of_rank(slices_, rank);
    const std::size_t begin = std::min(piece * piece_bytes_, slice.byte_count);
    return {slice.offset + begin, std::min(piece_bytes_, slice.byte_count - begin)};
  }
  std::size_t place_in_window(int rank) const {
    return static_cast<std::size_t>(rank) * piece_bytes_;
  }

  void post(std::size_t piece) {
    Exchange& window = windows_[piece % 2];
    const std::size_t own_bytes = piece_of(mesh_.rank(), piece).byte_count;
    for_peers(mesh_, [&](int peer) { window.recv(peer, {place_in_window(peer), own_bytes}); });
    if (has_slices(request_) && has_result(request_, mesh_.rank())) {
      for_peers(mesh_, [&](int peer) { results_.recv(peer, piece_of(peer, piece)); });
    }
    for_peers(mesh_, [&](int peer) { window.send(peer, piece_of(peer, piece)); });
  }

  void reduce(std::size_t piece) {
    windows_[piece % 2].wait_for_recvs();
    const Range own = piece_of(mesh_.rank(), piece);
    if (own.byte_count == 0) return;
    const Range result = {own.offset - own_.offset + shift_, own.byte_count};
    std::vector<const void*> inputs(slices_.size());
    for_peers(mesh_, [&](int peer) {
      of_rank(inputs, peer) = scratch_ + piece % 2 * window_bytes_ + place_in_window(peer);
    });
    of_rank(inputs, mesh_.rank()) = at(request_.input.data, own.offset);
    kernels::reduce_tree(request_.dtype, request_.reduce, inputs.data(), mesh_.ranks(),
                         at(result_.data, result.offset), nullptr,
                         own.byte_count / size_of(request_.dtype));
    if (!has_slices(request_)) return;
    for_peers(mesh_, [&](int peer) {
      if (has_result(request_, peer)) results_.send(peer, result);
    });
  }

  Mesh& mesh_;
  const Request& request_;
  const std::vector<Range>& slices_;
  const Range own_;
  const std::size_t piece_bytes_;
  const std::size_t window_bytes_;
  std::byte* const scratch_;
  std::shared_ptr<void> apart_;
  std::size_t shift_ = 0;  // of the own slice in result_
  const Bytes result_;
  std::array<Exchange, 2> windows_;
  Exchange results_;
};

void Collectives::run(const Request& request) {
  const Bytes own = bytes_of(request.input);
  const Range whole_input = {0, own.byte_count};
  const Range whole_output = {0, request.output.byte_count()};
  const std::vector<Range> nothing(ranks());
  const int root = request.root;
  const bool at_root = root == mesh_.rank();
  switch (request.op) {
    case Op::barrier:
      return barrier(request);
    case Op::broadcast:
      return broadcast(request);
    case Op::all_gather:
      return move(request, own.data, std::vector<Range>(ranks(), whole_input),
                  parts_of(request, request.recv_counts, ranks()));
    case Op::gather:
      return move(request, own.data, only(root, whole_input, ranks()),
                  at_root ? parts_of(request, request.recv_counts, ranks()) : nothing);
    case Op::scatter:
      return move(request, own.data,
                  at_root ? parts_of(request, request.send_counts, ranks()) : nothing,
                  only(root, whole_output, ranks()));
    case Op::all_to_all:
      return all_to_all(request);
    case Op::all_reduce:
    case Op::reduce:
      return reduce(request);
    case Op::reduce_scatter:
      return reduce_slices(request, parts_of(request, request.send_counts, ranks()));
    case Op::scan:
    case Op::exclusive_scan:
      return scan(request);
    case Op::send:
    case Op::recv:
      break;
  }
  throw make_error(ErrorCode::kUnsupported, request, mesh_.rank(),
                   "the backend gloo does not know this collective; use the backend native");
}

void Collectives::barrier(const Request& request) {
  static constexpr std::byte kNothing{};
  for_peers(mesh_, [&](int peer) { mailbox_.expect(peer); });
  for_peers(mesh_, [&](int peer) { mailbox_.send(peer, &kNothing, sizeof kNothing); });
  for_peers(mesh_, [&](int peer) { mailbox_.wait_for(peer, sizeof kNothing, stall_of(request)); });
  mailbox_.wait_for_sends(stall_of(request));
}

void Collectives::broadcast(const Request& request) {
  const Range all = {0, request.output.byte_count()};
  const int root = request.root;
  const bool at_root = root == mesh_.rank();
  if (is_mail(all) || ranks() == 1) {
    return move(request, request.input.data, std::vector<Range>(ranks(), at_root ? all : Range{}),
                only(root, all, ranks()));
  }
  const void* const source = at_root ? request.input.data : request.output.data;
  Exchange exchange(mesh_, slot_of_phase(request, 0), stall_of(request),
                    {at(source, 0), all.byte_count}, bytes_of(request.output));
  // A binomial tree, the ranks counted from the root.
  const int self = (mesh_.rank() + mesh_.ranks() - root) % mesh_.ranks();
  for (int reach = 1; reach < mesh_.ranks(); reach *= 2) {
    if (self < reach && self + reach < mesh_.ranks()) {
      exchange.send((self + reach + root) % mesh_.ranks(), all);
    } else if (self >= reach && self < 2 * reach) {
      exchange.recv((self - reach + root) % mesh_.ranks(), all);
      exchange.wait_for_recvs();
    }
  }
  if (source != request.output.data) kernels::copy(request.output.data, source, all.byte_count);
  exchange.wait_for_sends();
}

void Collectives::move(const Request& request, const void* input, const std::vector<Range>& to,
                       const std::vector<Range>& from) {
  const std::chrono::milliseconds timeout = stall_of(request);
  const auto part_of = [](const std::vector<Range>& parts, int rank) {
    return of_rank(parts, rank);
  };
  Exchange exchange(mesh_, slot_of_phase(request, 0), timeout,
                    {at(input, 0), request.input.byte_count()}, bytes_of(request.output));
  for_peers(mesh_, [&](int peer) {
    const Range part = part_of(from, peer);
    is_mail(part) ? mailbox_.expect(peer) : exchange.recv(peer, part);
  });
  for_peers(mesh_, [&](int peer) {
    const Range part = part_of(to, peer);
    is_mail(part) ? mailbox_.send(peer, at(input, part.offset), part.byte_count)
                  : exchange.send(peer, part);
  });
  const Range own = part_of(from, mesh_.rank());
  std::byte* const target = at(request.output.data, own.offset);
  const std::byte* const source = at(input, part_of(to, mesh_.rank()).offset);
  if (source != target) kernels::copy(target, source, own.byte_count);
  for_peers(mesh_, [&](int peer) {
    const Range part = part_of(from, peer);
    if (!is_mail(part)) return;
    kernels::copy(at(request.output.data, part.offset),
                  mailbox_.wait_for(peer, part.byte_count, timeout), part.byte_count);
  });
  mailbox_.wait_for_sends(timeout);
  exchange.wait_for_recvs();
  exchange.wait_for_sends();
}

void Collectives::all_to_all(const Request& request) {
  const Bytes input = bytes_of(request.input);
  std::shared_ptr<void> copy;
  if (input.data == request.output.data) {
    copy = allocate_pages(input.byte_count);
    kernels::copy(copy.get(), input.data, input.byte_count);
  }
  move(request, copy ? copy.get() : input.data, parts_of(request, request.send_counts, ranks()),
       parts_of(request, request.recv_counts, ranks()));
}

void Collectives::reduce(const Request& request) {
  const std::size_t byte_count = request.input.byte_count();
  if (byte_count > whole_limit(mailbox_, ranks())) {
    return reduce_slices(request, even_slices(byte_count, ranks()));
  }
  std::vector<Range> whole(ranks());
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    if (has_result(request, static_cast<int>(rank))) whole[rank] = {0, byte_count};
  }
  reduce_by_mail(request, whole, false);
}

void Collectives::reduce_by_mail(const Request& request, const std::vector<Range>& slices,
                                 bool hand_out) {
  const std::chrono::milliseconds timeout = stall_of(request);
  const auto slice_of = [&](int rank) { return of_rank(slices, rank); };
  const Range own = slice_of(mesh_.rank());
  for_peers(mesh_, [&](int peer) { mailbox_.expect(peer); });
  for_peers(mesh_, [&](int peer) {
    mailbox_.send(peer, at(request.input.data, slice_of(peer).offset), slice_of(peer).byte_count);
  });
  mailbox_.wait_for_sends(timeout);  // the result may overwrite them

  const bool apart = !has_result(request, mesh_.rank());
  std::byte* const result = apart ? scratch(own.byte_count)
                                  : at(request.output.data, has_slices(request) ? own.offset : 0);
  std::vector<const void*> inputs(ranks(), at(request.input.data, own.offset));
  for_peers(mesh_, [&](int peer) {
    of_rank(inputs, peer) = mailbox_.wait_for(peer, own.byte_count, timeout);
  });
  kernels::reduce_tree(request.dtype, request.reduce, inputs.data(), mesh_.ranks(), result, nullptr,
                       own.byte_count / size_of(request.dtype));
  if (!hand_out) return;

  for_peers(mesh_, [&](int peer) { mailbox_.expect(peer); });
  for_peers(mesh_, [&](int peer) {
    if (has_result(request, peer)) mailbox_.send(peer, result, own.byte_count);
  });
  for_peers(mesh_, [&](int peer) {
    const Range part = slice_of(peer);
    if (apart) return;
    kernels::copy(at(request.output.data, part.offset),
                  mailbox_.wait_for(peer, part.byte_count, timeout), part.byte_count);
  });
  mailbox_.wait_for_sends(timeout);
}

void Collectives::reduce_slices(const Request& request, const std::vector<Range>& slices) {
  std::size_t longest = 0;
  for (const Range& slice : slices) longest = std::max(longest, slice.byte_count);
  if (longest == 0) return;
  if (longest <= Mailbox::kMessageBytes) {
    return reduce_by_mail(request, slices, has_slices(request));
  }
  const std::size_t piece =
      aligned(std::min(longest, std::max(kWindowBytes / ranks(), kPageBytes)));
  Slices(mesh_, request, slices, piece, scratch(2 * piece * ranks())).run();
}

void Collectives::scan(const Request& request) {
  const std::size_t byte_count = request.input.byte_count();
  if (byte_count == 0) return;
  const auto own = static_cast<std::size_t>(mesh_.rank());
  std::byte* const lower = scratch(own * byte_count);
  Exchange exchange(mesh_, slot_of_phase(request, 0), stall_of(request), bytes_of(request.input),
                    {lower, own * byte_count});
  for_peers(mesh_, [&](int peer) {
    const auto other = static_cast<std::size_t>(peer);
    other < own ? exchange.recv(peer, {other * byte_count, byte_count})
                : exchange.send(peer, {0, byte_count});
  });
  exchange.wait_for_recvs();
  exchange.wait_for_sends();  // the output may be the input
  std::vector<const void*> inputs;
  for (std::size_t rank = 0; rank < own; ++rank) inputs.push_back(lower + rank * byte_count);
  if (request.op == Op::scan) inputs.push_back(request.input.data);
  if (inputs.empty()) {
    return fill_identity(request.dtype, request.reduce.kind(), request.output.data, request.count);
  }
  kernels::reduce_tree(request.dtype, request.reduce, inputs.data(),
                       static_cast<int>(inputs.size()), request.output.data, nullptr,
                       request.count);
}

std::byte* Collectives::scratch(std::size_t byte_count) {
  if (byte_count > scratch_bytes_) {
    scratch_.reset();
    scratch_ = allocate_pages(byte_count);
    scratch_bytes_ = byte_count;
  }
  return static_cast<std::byte*>(scratch_.get());
}

}  // namespace tutti::gloo_backend
