// A backend that checks nothing itself: thread-ranks add what lies in a shared table, whatever the
// others meant, and leave their messages there. It knows broadcast, all_reduce (f32 sum), barrier
// and messages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "control/host.h"
#include "group/group_impl.h"
#include "native/native.h"
#include "tutti/process_group.h"
#include "tutti/test_kit.h"

namespace tutti {

/// The table of one foreign group, shared by its ranks.
class ForeignTable {
 public:
  explicit ForeignTable(int ranks) : ranks_(ranks), aborted_(static_cast<std::size_t>(ranks)) {}

  /// From now on collectives wait until they are aborted.
  void stick() { sticky_ = true; }
  void await_stuck() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stuck_ > 0; });
  }
  /// From now on the collectives of this rank fail, with an exception that is no Error.
  void break_on(int rank) { broken_ = rank; }
  /// How many messages were moved.
  int messages() const { return messages_; }

  void run(const Request& request, int rank, std::uint64_t call) {
    if (rank == broken_) throw std::runtime_error("foreign: out of order");
    std::unique_lock lock(mutex_);
    const auto me = static_cast<std::size_t>(rank);
    Round& round = rounds_[call];
    round.inputs.resize(static_cast<std::size_t>(ranks_));
    const auto* const from = static_cast<const float*>(request.input.data);
    round.inputs[me].assign(from, from + request.input.count);
    ++round.arrived;
    if (sticky_) ++stuck_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return aborted_[me] || (round.arrived == ranks_ && !sticky_); });
    if (round.arrived < ranks_ || sticky_) throw Error(ErrorCode::kAborted, "foreign: aborted");
    auto* const to = static_cast<float*>(request.output.data);
    for (std::size_t i = 0; i < request.output.count; ++i) {
      to[i] = request.op == Op::broadcast ? at(round, request.root, i) : 0;
      for (int from_rank = 0; request.op == Op::all_reduce && from_rank < ranks_; ++from_rank) {
        to[i] += at(round, from_rank, i);
      }
    }
  }
  void leave_message(const Request& request, int rank) {
    const std::lock_guard lock(mutex_);
    const auto* const data = static_cast<const float*>(request.input.data);
    left_[{rank, request.message.peer, request.message.number}].assign(data, data + request.count);
    changed_.notify_all();
  }
  /// False: it has not come until then.
  bool take_message(const Request& request, int rank, Deadline::Clock::time_point until) {
    std::unique_lock lock(mutex_);
    const std::tuple key(request.message.peer, rank, request.message.number);
    const auto come = [&] {
      return left_.contains(key) || aborted_[static_cast<std::size_t>(rank)];
    };
    if (!changed_.wait_until(lock, std::min(until, Deadline::Clock::now() + std::chrono::hours(1)),
                             come))
      return false;
    if (!left_.contains(key)) throw Error(ErrorCode::kAborted, "foreign: aborted");
    const std::vector<float> data = left_.extract(key).mapped();
    EXPECT_EQ(data.size(), request.output.count);
    std::copy(data.begin(), data.end(), static_cast<float*>(request.output.data));
    ++messages_;
    return true;
  }
  /// Ends the waits of `rank`, now and later.
  void abort(int rank) {
    const std::lock_guard lock(mutex_);
    aborted_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
  }

 private:
  struct Round {
    std::vector<std::vector<float>> inputs;
    int arrived = 0;
  };
  static float at(const Round& round, int rank, std::size_t i) {
    const std::vector<float>& input = round.inputs[static_cast<std::size_t>(rank)];
    return i < input.size() ? input[i] : 0;
  }

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Round> rounds_;
  std::map<std::tuple<int, int, std::uint64_t>, std::vector<float>> left_;  // from, to, number
  std::vector<bool> aborted_;
  std::atomic<int> messages_{0};
  int stuck_ = 0;
  std::atomic<bool> sticky_{false};
  std::atomic<int> broken_{-1};
};

class ForeignBackend final : public Backend {
 public:
  ForeignBackend(std::shared_ptr<ForeignTable> table, int rank)
      : table_(std::move(table)), rank_(rank) {}

  Support supports(const OpKey& key) const override {
    if (key.dtype == DType::f32 || key.op == Op::barrier) return {};
    return {false, "foreign knows f32 only"};
  }
  void run(const Request& request) override { table_->run(request, rank_, ++calls_); }
  Work start(Request request) override {
    EXPECT_GT(request.message.number, 0u);
    if (request.op == Op::send) {
      table_->leave_message(request, rank_);
      return {};
    }
    return Work(std::make_shared<Receive>(*table_, rank_, std::move(request)));
  }
  std::unique_ptr<Backend> make_group(const GroupSpec& spec) override {
    return std::make_unique<ForeignBackend>(table_, spec.rank);
  }
  Memory allocate(std::size_t byte_count) override {
    return {std::shared_ptr<void>(::operator new(byte_count),
                                  [](void* data) { ::operator delete(data); }),
            byte_count};
  }
  void abort(const Cause&) noexcept override { table_->abort(rank_); }
  void close(Deadline) override {}
  BackendInfo info() const override {
    return {.name = "foreign", .version = "1", .checks_itself = false};
  }

 private:
  struct Receive final : WorkState {
    Receive(ForeignTable& table_in, int rank_in, Request request)
        : WorkState(std::move(request)), table(table_in), rank(rank_in) {}
    bool help(Deadline::Clock::time_point until) override {
      try {
        if (!table.take_message(request(), rank, until)) return false;
        end();
      } catch (const Error& failure) {
        end(failure);
      }
      return true;
    }
    ForeignTable& table;
    const int rank;
  };

  const std::shared_ptr<ForeignTable> table_;
  const int rank_;
  std::uint64_t calls_ = 0;
};

/// Whether the side group checks collectives.
enum class Side { native, none };

/// A world of thread-ranks on whatever `add_backends` adds.
inline ProcessGroup make_world_on(const test_kit::Rank& me, const group::AddBackends& add_backends,
                                  std::shared_ptr<Observer> observer = nullptr) {
  group::Parts parts;
  parts.observer = std::move(observer);
  parts.name = "foreign";
  parts.id = 17;
  parts.rank = me.rank;
  for (int rank = 0; rank < me.world_size; ++rank) parts.world_ranks.push_back(rank);
  parts.arrive = std::chrono::seconds(30);
  parts.stall = std::chrono::seconds(30);
  parts.close_timeout = std::chrono::seconds(30);
  parts.store = me.init.store;
  control::HostOptions options;
  options.store = me.init.store;
  options.rank = me.rank;
  options.world_size = me.world_size;
  parts.host = control::Host::join(options);
  return group::make_group(std::move(parts), nullptr, Where::current(), add_backends);
}

/// A world of thread-ranks on the foreign backend, with or without a side group.
inline ProcessGroup make_foreign_world(const test_kit::Rank& me,
                                       const std::shared_ptr<ForeignTable>& table, Side side,
                                       std::shared_ptr<Observer> observer = nullptr) {
  return make_world_on(
      me,
      [&](group::Parts& made, const GroupSpec& spec) {
        made.backend = std::make_shared<ForeignBackend>(table, me.rank);
        made.side = native::make_side(spec);
        made.check = side == Side::native;
      },
      std::move(observer));
}

}  // namespace tutti
