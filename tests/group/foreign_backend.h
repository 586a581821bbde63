// A backend that checks nothing itself: thread-ranks add what lies in a shared table, whatever the
// others meant. It knows broadcast, all_reduce (f32 sum), barrier and recv (which waits for ever).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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

  void run(const Request& request, int rank, std::uint64_t call) {
    std::unique_lock lock(mutex_);
    const auto me = static_cast<std::size_t>(rank);
    if (request.op == Op::recv) {
      changed_.wait(lock, [&] { return aborted_[me]; });
      throw Error(ErrorCode::kAborted, "foreign: aborted");
    }
    Round& round = rounds_[call];
    round.inputs.resize(static_cast<std::size_t>(ranks_));
    const auto* const from = static_cast<const float*>(request.input.data);
    round.inputs[me].assign(from, from + request.input.count);
    ++round.arrived;
    changed_.notify_all();
    changed_.wait(lock, [&] { return aborted_[me] || round.arrived == ranks_; });
    if (round.arrived < ranks_) throw Error(ErrorCode::kAborted, "foreign: aborted");
    auto* const to = static_cast<float*>(request.output.data);
    for (std::size_t i = 0; i < request.output.count; ++i) {
      to[i] = request.op == Op::broadcast ? at(round, request.root_or_peer, i) : 0;
      for (int from_rank = 0; request.op == Op::all_reduce && from_rank < ranks_; ++from_rank) {
        to[i] += at(round, from_rank, i);
      }
    }
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
  std::vector<bool> aborted_;
};

class ForeignBackend final : public Backend {
 public:
  ForeignBackend(std::shared_ptr<ForeignTable> table, int rank)
      : table_(std::move(table)), rank_(rank) {}
  ~ForeignBackend() override {
    if (last_.valid()) last_.wait();
  }

  Support supports(const OpKey& key) const override {
    if (key.dtype == DType::f32 || key.op == Op::barrier) return {};
    return {false, "foreign knows f32 only"};
  }
  void run(const Request& request) override {
    if (last_.valid()) last_.wait();
    table_->run(request, rank_, ++calls_);
  }
  Work start(Request request) override {
    auto state = std::make_shared<State>(std::move(request));
    const std::uint64_t call = ++calls_;
    // Moved out of the future's function: the state holds the future, so it must not hold the
    // state.
    last_ = std::async(std::launch::async, [this, own = state, call, before = last_]() mutable {
              const std::shared_ptr<State> mine = std::move(own);
              if (before.valid()) std::exchange(before, {}).wait();
              mine->begin();
              try {
                table_->run(mine->request(), rank_, call);
                mine->end();
              } catch (const Error& failure) {
                mine->end(failure);
              }
            }).share();
    state->ended = last_;
    return Work(state);
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
  struct State final : WorkState {
    using WorkState::WorkState;
    bool help(Deadline::Clock::time_point until) override {
      if (until == Deadline::Clock::time_point::max()) {
        ended.wait();
        return true;
      }
      return ended.wait_until(until) == std::future_status::ready;
    }
    std::shared_future<void> ended;
  };

  const std::shared_ptr<ForeignTable> table_;
  const int rank_;
  std::uint64_t calls_ = 0;
  std::shared_future<void> last_;
};

enum class Side { native, none };

/// A world of thread-ranks on the foreign backend, with or without a side group.
inline ProcessGroup make_foreign_world(const test_kit::Rank& me,
                                       const std::shared_ptr<ForeignTable>& table, Side side,
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
  return group::make_group(std::move(parts), nullptr, Where::current(),
                           [&](group::Parts& made, const GroupSpec& spec) {
                             made.backend = std::make_shared<ForeignBackend>(table, me.rank);
                             if (side == Side::native) made.side = native::make_native(spec);
                           });
}

}  // namespace tutti
