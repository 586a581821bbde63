#include "native/collectives.h"

#include <algorithm>
#include <utility>

#include "base/of_rank.h"
#include "kernels/kernels.h"

namespace tutti::native {

class Collectives::EngineOperation final : public Operation {
 public:
  EngineOperation(const EngineView& view, const EngineTuning& tuning, EngineSignals& signals)
      : engine_(view, tuning, signals) {}
  void begin(const Request& request) noexcept { engine_.begin(request); }
  bool step() override { return engine_.step(); }
  bool take_moved() noexcept override { return engine_.take_moved(); }
  int awaited() const noexcept override { return engine_.awaited(); }

 private:
  Engine engine_;
};

Collectives::Collectives(Arena* arena, std::vector<int> hosts, const Table& table,
                         Channels& channels, control::Membership& membership)
    : arena_(arena),
      hosts_(std::move(hosts)),
      table_(table),
      channels_(channels),
      membership_(membership),
      executor_(channels, membership) {
  static_assert(sizeof(EngineHead) <= kEngineHeadBytes);
  if (arena == nullptr || arena->group_size() > static_cast<int>(kMaxEngineRanks)) return;
  for (int rank = 0; rank < arena->group_size(); ++rank) {
    heads_.push_back(arena->peer(rank).engine_head().data());
    rings_.push_back(arena->peer(rank).engine_ring().data());
  }
  const EngineTuning tuning = engine_tuning(arena->group_size(), membership.cores());
  const EngineView view{.rank = arena->rank(),
                        .head = arena->engine_head().data(),
                        .heads = heads_,
                        .rings = rings_,
                        .ring_bytes = kEngineRingBytes,
                        .abort_word = &membership.abort_word()};
  engine_ = std::make_unique<EngineOperation>(view, tuning, *this);
}

Collectives::~Collectives() = default;

Operation& Collectives::begin(const Request& request, const Request& shown) {
  shown_ = &shown;
  const bool engine_serves =
      request.op == Op::all_reduce || request.op == Op::broadcast || request.op == Op::barrier;
  if (engine_serves && engine_ != nullptr) {
    engine_->begin(request);
    return *engine_;
  }
  const Plan planned = plan({.op = request.op,
                             .dtype = request.dtype,
                             .reduce = request.reduce.kind(),
                             .bytes = request.count * size_of(request.dtype),
                             .uneven = request.uneven,
                             .group_size = membership_.group_size(),
                             .hosts = hosts_},
                            table_, channels_.max_payload());
  const bool in_place = is_in_place(request);
  const bool is_apart =
      in_place && !has_algorithm(request.op, planned.algorithm, membership_.group_size(), true);
  executor_.begin(is_apart ? apart(request) : request,
                  schedule_for(request, planned.algorithm, in_place && !is_apart), planned.cut,
                  shown);
  return executor_;
}

/// The same with a copy of its input: other ranks may have theirs elsewhere, so an algorithm that
/// does not go in place is not left out for one of them.
const Request& Collectives::apart(const Request& request) {
  const std::size_t byte_count =
      static_cast<std::size_t>(membership_.group_size()) * request.count * size_of(request.dtype);
  if (input_.size() < byte_count) input_.resize(byte_count);
  kernels::copy(input_.data(), request.input.data, byte_count);
  apart_ = request;
  apart_.input.data = input_.data();
  return apart_;
}

/// As far as it matters.
bool Collectives::is_in_place(const Request& request) const noexcept {
  const bool matters =
      request.op == Op::all_to_all || request.op == Op::scan || request.op == Op::exclusive_scan;
  return matters && !request.uneven && request.count > 0 &&
         request.input.data == request.output.data;
}

const Schedule& Collectives::schedule_for(const Request& request, Algorithm algorithm,
                                          bool in_place) {
  const int root = std::max(request.root, 0);
  auto& by_root = schedules_[static_cast<std::size_t>(request.op)]
                            [static_cast<std::size_t>(algorithm)][in_place ? 1 : 0];
  if (by_root.empty()) by_root.resize(static_cast<std::size_t>(membership_.group_size()));
  std::unique_ptr<Schedule>& schedule = of_rank(by_root, root);
  if (schedule == nullptr) {
    schedule = std::make_unique<Schedule>(make_schedule({.op = request.op,
                                                         .algorithm = algorithm,
                                                         .group_size = membership_.group_size(),
                                                         .rank = membership_.rank(),
                                                         .root = root,
                                                         .in_place = in_place,
                                                         .hosts = hosts_}));
  }
  return *schedule;
}

void Collectives::notify_all() noexcept { membership_.notify_all(); }

void Collectives::progressed() noexcept { membership_.progressed(); }

void Collectives::disagree(int peer) noexcept { membership_.fail_mismatch(*shown_, peer, nullptr); }

std::byte* Collectives::open_ring() { return arena_->engine_ring().data(); }

}  // namespace tutti::native
