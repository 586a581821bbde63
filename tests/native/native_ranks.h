// Ranks that are threads of a test, each with a native backend, and requests as a group makes them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "control/board/board.h"
#include "control/host.h"
#include "group/chain.h"
#include "group/native_spec.h"
#include "native/channels.h"
#include "native/native.h"
#include "wires.h"

namespace tutti::native {

inline constexpr GroupId kTestGroup = 0x7e57;

/// On which host a rank of n is, where tests run on several (streams.cc); null: on one. They share
/// a board all the same, but neither memory nor bells where they move data.
using HostOf = int (*)(int rank, int n);
inline HostOf host_of = nullptr;

/// One rank of a test: what the ProcessGroup would be.
class NativeRank {
 public:
  NativeRank(Backend& backend_in, control::Membership& membership_in)
      : backend(backend_in),
        membership(membership_in),
        rank(membership.rank()),
        n(membership.group_size()) {}

  Backend& backend;
  control::Membership& membership;
  const int rank;
  const int n;
  std::chrono::nanoseconds timeout = std::chrono::seconds(20);

  /// The next collective of this rank.
  Request next(Op op, DType dtype, std::size_t count, const void* input, void* output,
               int root = -1, ReduceOp reduce = ReduceOp::sum) {
    Request request = blank(op, dtype, count);
    request.input = {input, count, dtype};
    request.output = {output, count, dtype};
    request.root = root;
    request.reduce = reduce;
    request.seq = ++seq_;
    request.chain = chain_ = group::chain_next(chain_, request);
    return request;
  }
  template <class T>
  Request next(Op op, std::size_t count, const T* input, T* output, int root = -1,
               ReduceOp reduce = ReduceOp::sum) {
    return next(op, dtype_of<T>, count, input, output, root, reduce);
  }
  Request barrier() { return next(Op::barrier, DType::u8, 0, nullptr, nullptr); }

  template <class T>
  Request send_of(const std::vector<T>& data, int to, int tag = 0, bool buffered = false) const {
    Request request = blank(Op::send, dtype_of<T>, data.size());
    request.input = {data.data(), data.size(), dtype_of<T>};
    request.message.peer = to;
    request.message.tag = tag;
    request.message.buffered = buffered;
    return request;
  }
  template <class T>
  Request recv_of(std::vector<T>& data, int from, int tag = 0) const {
    Request request = blank(Op::recv, dtype_of<T>, data.size());
    request.output = {data.data(), data.size(), dtype_of<T>};
    request.message.peer = from;
    request.message.tag = tag;
    return request;
  }

  /// What ProcessGroup::close does.
  void close(std::chrono::nanoseconds budget = std::chrono::seconds(20)) {
    const Deadline deadline = Deadline::after(budget);
    backend.close(deadline);
    membership.close(seq_, chain_, deadline);
  }

  void run(const Request& request) { backend.run(request); }
  template <class T>
  void send(const std::vector<T>& data, int to, int tag = 0, bool buffered = false) {
    backend.run(send_of(data, to, tag, buffered));
  }
  template <class T>
  void recv(std::vector<T>& data, int from, int tag = 0) {
    backend.run(recv_of(data, from, tag));
  }

 private:
  Request blank(Op op, DType dtype, std::size_t count) const {
    Request request;
    request.op = op;
    request.dtype = dtype;
    request.count = count;
    request.group = kTestGroup;
    request.arrive = Deadline::after(timeout);
    request.stall = Deadline::after(timeout);
    request.where = {"native_test.cc", 1};
    return request;
  }

  std::uint64_t seq_ = 0;
  std::uint64_t chain_ = group::chain_seed(kTestGroup);
};

/// Makes rank `rank` of n a member of the test's group and runs `body`.
inline void on_native_member(int rank, int n, int board, const std::shared_ptr<Store>& store,
                             const std::function<void(const group::NativeSpec&)>& body,
                             Wires* wires = nullptr) {
  control::HostOptions options;
  options.board_fd = board;
  options.rank = rank;
  options.world_size = n;
  options.timeout = std::chrono::seconds(20);
  if (wires != nullptr) options.deadlock = control::Deadlock::off;  // as between hosts
  const auto host = control::Host::join(options);
  std::vector<int> ranks;
  for (int each = 0; each < n; ++each) ranks.push_back(each);
  const auto membership = host->make_membership({kTestGroup, "test", world_ranks(ranks), rank});
  membership->meet(nullptr, Where::current(), Deadline::after(std::chrono::seconds(20)));
  group::NativeSpec spec;
  spec.id = kTestGroup;
  spec.rank = rank;
  spec.world_ranks = ranks;
  spec.hosts.assign(ranks.size(), 0);
  spec.store = store;
  spec.membership = membership.get();
  std::optional<WireSockets> sockets;
  if (wires != nullptr) {
    spec.sockets = &sockets.emplace(*wires, rank);
    spec.hosts = wires->hosts();
  }
  spec.timeout = std::chrono::seconds(20);
  body(spec);
}

/// The same with a backend.
inline void be_native_rank(int rank, int n, int board, const std::shared_ptr<Store>& store,
                           const std::function<void(NativeRank&)>& body, Wires* wires = nullptr) {
  const auto live = [&](const group::NativeSpec& spec) {
    const auto backend = make_native(spec);
    // Else a host may fail the group while another one makes it, where that is what its ranks see.
    if (wires != nullptr) wires->all_have_made_it();
    NativeRank me(*backend, *spec.membership);
    body(me);
  };
  on_native_member(rank, n, board, store, live, wires);
}

/// Runs `body` on n threads. Failures that `body` lets out are the test's.
inline void on_native_ranks(int n, const std::function<void(NativeRank&)>& body,
                            Wires* wires = nullptr) {
  const std::shared_ptr<Store> store = make_memory_store();
  std::optional<Wires> own_wires;
  if (wires == nullptr && host_of != nullptr && n > 1) {
    std::vector<int> hosts;
    for (int rank = 0; rank < n; ++rank) hosts.push_back(host_of(rank, n));
    wires = &own_wires.emplace(std::move(hosts));
  }
  net::Fd own_board;
  if (wires == nullptr) own_board = control::Board::make(n);
  const int board = wires != nullptr ? wires->board_fd() : own_board.get();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        be_native_rank(rank, n, board, store, body, wires);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The Error that `call` throws.
template <class Call>
Error thrown_by(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no tutti::Error was thrown";
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

}  // namespace tutti::native
