#include "plugins/mpi/calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace tutti::mpi {

namespace {

/// Calls `post(data, count, peer)` for each piece; pieces of one edge arrive in order.
template <class Post>
void in_pieces(std::span<const Transfer> transfers, Post&& post) {
  for (const Transfer& transfer : transfers) {
    for (std::size_t begin = 0; begin < transfer.byte_count; begin += kLargestCall) {
      const std::size_t count = std::min(kLargestCall, transfer.byte_count - begin);
      post(transfer.data + begin, static_cast<int>(count), transfer.peer);
    }
  }
}

}  // namespace

void Calls::check_code(int code) const {
  if (code == MPI_SUCCESS) return;
  process_.set_failed();
  gate_.await_cause();
  gate_.check();
  mpi::check(code, "an operation");
}

std::vector<MPI_Request> Calls::start(std::span<const Transfer> receives,
                                      std::span<const Transfer> sends, int tag, MPI_Comm comm) {
  std::vector<MPI_Request> pending;
  const auto lock = process_.lock();
  in_pieces(receives, [&](void* data, int count, int peer) {
    check_code(MPI_Irecv(data, count, MPI_BYTE, peer, tag, comm, &pending.emplace_back()));
  });
  in_pieces(sends, [&](const void* data, int count, int peer) {
    check_code(MPI_Isend(data, count, MPI_BYTE, peer, tag, comm, &pending.emplace_back()));
  });
  return pending;
}

void Calls::exchange(const Request& request, std::span<const Transfer> receives,
                     std::span<const Transfer> sends, int tag, MPI_Comm comm) {
  if (tested_) gate_.check();
  std::vector<MPI_Request> pending = start(receives, sends, tag, comm);
  if (tested_) {
    finish(request, pending);
  } else {
    check_code(MPI_Waitall(static_cast<int>(pending.size()), pending.data(), MPI_STATUSES_IGNORE));
  }
}

bool Calls::test(std::span<MPI_Request> pending) {
  process_.check_thread("waiting");
  int all_ended = 0;
  const auto lock = process_.lock();
  check_code(MPI_Testall(static_cast<int>(pending.size()), pending.data(), &all_ended,
                         MPI_STATUSES_IGNORE));
  return all_ended != 0;
}

void Calls::finish(const Request& request, std::span<MPI_Request> pending) {
  Deadline stall = request.stall;
  while (!test(pending)) {
    check_hope(request, stall);
    std::this_thread::yield();
  }
}

void Calls::check_hope(const Request& request, Deadline& stall) const {
  if (!gate_.is_aborted() && !stall.expired(Deadline::Clock::now())) return;
  process_.set_failed();
  gate_.check();
  throw Error(ErrorCode::kTimeout, fmt::format("MPI has not ended {}", call_name(request)));
}

}  // namespace tutti::mpi
